package volumes

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	mount "k8s.io/mount-utils"
	utilexec "k8s.io/utils/exec"

	"berth/internal/beneath"
	"berth/internal/crispec"
	"berth/internal/journal"
	"berth/internal/pod"
)

// Config is what a Manager needs.
type Config struct {
	// Root is the root directory, an absolute path. podsync makes and removes Root/pods/<uid>.
	Root string
	// AllocatableMemory bounds the size of memory-backed volumes, in bytes; 0 means no bound.
	AllocatableMemory int64
	// Allocatable returns what the node has for pods, for downwardAPI files of limits that are not set; nil: it is not known.
	Allocatable func() v1.ResourceList
	// Objects are what configMap, secret and projected volumes show; nil without an API server.
	Objects Objects
	// Certificates are what projected volumes show besides; nil without an API server.
	Certificates Certificates
	// Claims are where persistent volumes come from; nil without an API server.
	Claims Claims
	// Node returns the newest Node, and whether it is known, for volumes that only some nodes have; nil: it is not known.
	Node func() (*v1.Node, bool)
	// Event records an event about a pod; nil records none.
	Event func(p *v1.Pod, eventtype, reason, message string)
	// Operated is told of each operation, by the type of the volume, and of CSI drivers by theirs; nil: nobody counts.
	Operated func(plugin string, o Operation, took time.Duration, err error)
	CSI      CSIConfig
	Mounter  mount.Interface
	Log      *slog.Logger
	Journal  *journal.Journal
}

// Manager (volumeManager) sets up and tears down the volumes of pods. It is safe for concurrent use on different pods.
type Manager struct {
	root              string
	files             beneath.Root // the same
	allocatableMemory int64
	allocatable       func() v1.ResourceList
	objects           Objects
	certificates      Certificates
	claims            Claims
	node              func() (*v1.Node, bool)
	event             func(p *v1.Pod, eventtype, reason, message string)
	told              func(plugin string, o Operation, took time.Duration, err error)
	mounter           mount.Interface
	log               *slog.Logger
	journal           *journal.Journal
	tmpfsNoswap       func() bool // asks the kernel once
	numberOf          func(path string, st *unix.Stat_t) uint64
	holdDisk          func(disk *os.File) (fresh bool, err error)
	freeDisk          func(path string) error
	exec              utilexec.Interface

	mu sync.Mutex
	// bound are what the claims of pods are bound to, by the names of the pods' volumes; guarded by mu.
	bound map[pod.UID]map[string]bound
	// firsts are the pods that had a directory of this machine before others, by the directory; guarded by mu.
	firsts map[string]pod.UID

	csi *csiState
}

// New checks the configuration and returns a manager. It touches no file.
func New(c Config) (*Manager, error) {
	if !filepath.IsAbs(c.Root) {
		return nil, fmt.Errorf("root directory %q: must be an absolute path", c.Root)
	}
	if c.Allocatable == nil {
		c.Allocatable = func() v1.ResourceList { return nil }
	}
	if c.Node == nil {
		c.Node = func() (*v1.Node, bool) { return nil, false }
	}
	if c.Event == nil {
		c.Event = func(*v1.Pod, string, string, string) {}
	}
	if c.Operated == nil {
		c.Operated = func(string, Operation, time.Duration, error) {}
	}
	m := &Manager{
		root:              filepath.Clean(c.Root),
		files:             beneath.Root(filepath.Clean(c.Root)),
		allocatableMemory: c.AllocatableMemory,
		allocatable:       c.Allocatable,
		objects:           c.Objects,
		certificates:      c.Certificates,
		claims:            c.Claims,
		node:              c.Node,
		event:             c.Event,
		told:              c.Operated,
		bound:             map[pod.UID]map[string]bound{},
		firsts:            map[string]pod.UID{},
		csi:               newCSIState(c.CSI),
		mounter:           c.Mounter,
		log:               c.Log,
		journal:           c.Journal,
		exec:              utilexec.New(),
		tmpfsNoswap:       sync.OnceValue(tmpfsKnowsNoswap),
		numberOf:          numberOf,
		holdDisk:          func(disk *os.File) (bool, error) { return holdDisk("/", disk) },
	}
	m.freeDisk = func(path string) error {
		real, err := m.files.Real(path)
		if err != nil {
			return err
		}
		return freeDisk("/", real)
	}
	return m, nil
}

// outcome is what setting up one volume led to.
type outcome struct {
	mounted crispec.Volume
	fresh   bool   // something was made, in contrast to found
	block   bool   // it is a disk
	step    string // in which err came; "" is SetUp
	err     error
}

func (o outcome) operation() Operation {
	if o.block {
		return MapVolume
	}
	return MountVolume
}

// Setup makes the pod's volumes present, side by side, and returns them by name; volumes that no container mounts are left
// out. It is idempotent, replaces files only where the inputs differ from what is shown, and blocks until all are done. The
// others are set up nonetheless if one fails. The pod's directories must exist.
func (m *Manager) Setup(ctx context.Context, p *v1.Pod, in Inputs) (map[string]crispec.Volume, Errors) {
	dir, err := m.podDir(p.UID)
	if err != nil {
		return nil, Errors{{Err: err}}
	}
	began := time.Now()
	needed := neededVolumes(p)
	outcomes := make([]outcome, len(p.Spec.Volumes))
	var wg sync.WaitGroup
	for i := range p.Spec.Volumes {
		if v := &p.Spec.Volumes[i]; needed[v.Name] {
			wg.Go(func() {
				o := m.setupOne(ctx, p, dir, v, in)
				if outcomes[i] = o; o.fresh || o.err != nil {
					m.operated(ctx, pluginOf(v, in.bound[v.Name]), o.operation(), time.Since(began), o.err)
				}
			})
		}
	}
	wg.Wait()

	mounted := map[string]crispec.Volume{}
	var fresh []string
	var errs Errors
	for i, o := range outcomes {
		name := p.Spec.Volumes[i].Name
		switch {
		case !needed[name]:
		case o.err != nil:
			if b, ok := in.bound[name]; ok {
				m.noteFailed(p.UID, name)
				name = b.Name
			}
			e := &Error{Volume: name, Step: o.step, Err: o.err}
			if o.block {
				e.Class = MapFailed
			}
			errs = append(errs, e)
		default:
			mounted[name] = o.mounted
			if o.fresh {
				fresh = append(fresh, name)
			}
		}
	}
	if len(fresh) > 0 || errs != nil {
		decision := "set up volumes"
		if len(fresh) > 0 {
			decision += ": " + strings.Join(fresh, ", ")
		}
		m.journal.Record(journal.Entry{
			Subject:   journal.Subject{UID: p.UID, Namespace: p.Namespace, Name: p.Name},
			Component: "volume",
			Decision:  decision,
			Took:      time.Since(began),
			Error:     journal.Error(errs.Err()),
		})
	}
	if errs != nil {
		return nil, errs
	}
	return mounted, nil
}

func (m *Manager) setupOne(ctx context.Context, p *v1.Pod, podDir string, v *v1.Volume, in Inputs) outcome {
	if err := ctx.Err(); err != nil {
		return outcome{err: context.Cause(ctx)}
	}
	if v.HostPath != nil {
		return setupHostPath(v.HostPath)
	}
	if !beneath.IsElement(v.Name) {
		return outcome{err: errors.New("the volume's name is not a file name")}
	}
	if claim, _ := claimOf(p, v); claim != "" {
		b, prepared := in.bound[v.Name]
		if !prepared {
			return outcome{err: fmt.Errorf("claim %q was not read before", claim)}
		}
		return m.setupBound(ctx, p, podDir, b)
	}
	if v.CSI != nil {
		return m.setupCSI(ctx, p, podDir, inlineCSI(p, v))
	}
	if v.NFS != nil {
		return m.setupNFS(ctx, podDir, v.Name, v.NFS, false, nil)
	}
	if kind, ok := payloadKindOf(v); ok {
		files, prepared := in.payloads[v.Name]
		if !prepared {
			return m.shownPayload(podDir, v.Name, kind)
		}
		return m.setupPayload(p, podDir, v.Name, kind, files)
	}
	src, ok := emptyDirOf(v)
	if !ok {
		return outcome{err: fmt.Errorf("volumes of type %s are not supported yet", sourceName(&v.VolumeSource))}
	}
	return m.setupEmptyDir(p, podDir, v.Name, src)
}

func (m *Manager) podDir(uid pod.UID) (string, error) {
	if !beneath.IsElement(string(uid)) {
		return "", fmt.Errorf("pod UID %q is not a file name", uid)
	}
	return filepath.Join(m.root, "pods", string(uid)), nil
}
