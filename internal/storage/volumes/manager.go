package volumes

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	mount "k8s.io/mount-utils"
	utilexec "k8s.io/utils/exec"

	"berth/internal/host/safepath"
	"berth/internal/pod"
	"berth/internal/record/journal"
	"berth/internal/runtime/crispec"
)

// Config is the configuration of a Manager.
type Config struct {
	// Root is the root directory, an absolute path. podsync creates and removes Root/pods/<uid>.
	Root string
	// AllocatableMemory limits the size of memory-backed volumes, in bytes; 0 means no limit.
	AllocatableMemory int64
	// Objects returns the objects of configMap, secret and projected volumes.
	Objects Objects
	// Certificates returns the certificates of projected volumes.
	Certificates Certificates
	// Claims is the API for claims and persistent volumes.
	Claims Claims
	// Node returns the newest Node, and whether it is known, for volumes with node affinity and for
	// downwardAPI files of limits that are not set; nil: it is not known.
	Node func() (*v1.Node, bool)
	// Recorder records events; nil: none are recorded.
	Recorder Recorder
	CSI      CSIConfig
	Mounter  mount.Interface
	// Metrics is where metrics are registered; nil: they are not.
	Metrics prometheus.Registerer
	Log     *slog.Logger
	Journal *journal.Journal
}

// Manager (volumeManager) sets up and tears down the volumes of pods. It is safe for concurrent use
// on different pods.
type Manager struct {
	// CSI does the work on CSI volumes that no setup or teardown of a pod does.
	CSI     *CSIReconciler
	host    *host
	claims  *claims
	kinds   map[string]kind // by name in the table
	journal *journal.Journal
}

// New validates the configuration and returns a manager. It accesses no file.
func New(c Config) (*Manager, error) {
	if !filepath.IsAbs(c.Root) {
		return nil, fmt.Errorf("root directory %q: must be an absolute path", c.Root)
	}
	if c.Node == nil {
		c.Node = func() (*v1.Node, bool) { return nil, false }
	}
	if c.Recorder == nil {
		c.Recorder = noEvents{}
	}
	root := filepath.Clean(c.Root)
	h := &host{
		root: root, files: safepath.Root(root), mounter: c.Mounter, exec: utilexec.New(), log: c.Log, recorder: c.Recorder, metrics: newMetrics(c.Metrics),
	}
	cl := &claims{api: c.Claims, node: c.Node, bound: map[pod.UID]map[string]bound{}, unbound: map[pod.UID]map[string]*v1.PersistentVolumeClaim{}}
	d := &disks{host: h, loops: loopDevices("/")}
	r := &resizes{host: h, claims: cl, nodeName: c.CSI.NodeName}
	csi := newCSIKind(c.CSI, d, r)
	return &Manager{CSI: csi.reconciler, host: h, claims: cl, kinds: newKinds(&c, d, r, csi), journal: c.Journal}, nil
}

// kindOf returns the kind of the volume; for a claim, that of its persistent volume.
func (m *Manager) kindOf(v *volume) kind {
	if k, ok := m.kinds[v.source()]; ok {
		return k
	}
	return unsupported{}
}

// each calls do for each volume that a container of the pod uses, in parallel, and returns the
// volumes in their order when all calls have returned.
func (m *Manager) each(p *v1.Pod, in Inputs, do func(v *volume)) ([]*volume, error) {
	podDir, err := m.host.podDir(p.UID)
	if err != nil {
		return nil, err
	}
	needed := neededVolumes(p)
	var all []*volume
	var wg sync.WaitGroup
	for i := range p.Spec.Volumes {
		if spec := &p.Spec.Volumes[i]; needed[spec.Name] {
			v := in.volumes[spec.Name]
			v.pod, v.podDir, v.spec = p, podDir, spec
			all = append(all, &v)
			wg.Go(func() { do(&v) })
		}
	}
	wg.Wait()
	return all, nil
}

// Setup makes the pod's volumes available, in parallel, and returns them by name; volumes that no
// container uses are skipped. It is idempotent, replaces files only if the inputs differ from the
// current files, and blocks until all volumes are done. A failure does not affect the other
// volumes. The pod's directories must exist.
func (m *Manager) Setup(ctx context.Context, p *v1.Pod, in Inputs) (map[string]crispec.Volume, Errors) {
	began := time.Now()
	all, err := m.each(p, in, func(v *volume) {
		operation := mountVolume
		if v.isBlock() {
			operation = mapVolume
		}
		var err error
		slow := time.AfterFunc(slowSetup, func() { m.noteSlow(v) })
		v.done, err = m.setupOne(ctx, v)
		slow.Stop()
		if err != nil {
			v.failure = failed(v.name(), err)
			m.claims.noteFailed(v)
			m.recordMismatch(v)
			if v.failure.Class != MapFailed {
				operation = mountVolume
			}
		}
		if v.done.fresh || err != nil {
			m.host.metrics.operated(ctx, v.counted(), operation, time.Since(began), err)
		}
	})
	if err != nil {
		return nil, Errors{{Err: err}}
	}
	mounted := map[string]crispec.Volume{}
	var fresh []string
	var errs Errors
	for _, v := range all {
		if v.failure != nil {
			errs = append(errs, v.failure)
			continue
		}
		mounted[v.spec.Name] = v.done.mounted
		if v.done.fresh {
			fresh = append(fresh, v.spec.Name)
			m.recordMapped(v)
		}
	}
	if len(fresh) > 0 || errs != nil {
		decision := "set up volumes"
		if errs != nil {
			decision = "volumes not set up"
			if len(fresh) > 0 {
				decision = "not all volumes set up; there are"
			}
		}
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

// slowSetup is the setup time of a volume after which the journal records a wait.
const slowSetup = 2 * time.Second

// noteSlow records in the journal that a volume's setup is slow, and its source.
func (m *Manager) noteSlow(v *volume) {
	why := v.source()
	source := v.spec.VolumeSource
	if v.bound != nil {
		source = persistentSource(&v.bound.Spec.PersistentVolumeSource)
		why += " of PersistentVolume " + v.bound.Name
	}
	switch {
	case source.NFS != nil:
		why += fmt.Sprintf(": server %s, path %s", source.NFS.Server, source.NFS.Path)
	case source.CSI != nil:
		why += ": driver " + source.CSI.Driver
	}
	m.journal.Record(journal.Entry{
		Subject:   journal.Subject{UID: v.pod.UID, Namespace: v.pod.Namespace, Name: v.pod.Name},
		Component: "volume", Decision: fmt.Sprintf("wait for volume %q to be mounted", v.spec.Name), Why: why,
	})
}

// persistentSource returns the part of a PersistentVolume's source that noteSlow records.
func persistentSource(s *v1.PersistentVolumeSource) v1.VolumeSource {
	out := v1.VolumeSource{NFS: s.NFS}
	if s.CSI != nil {
		out.CSI = &v1.CSIVolumeSource{Driver: s.CSI.Driver}
	}
	return out
}

func (m *Manager) setupOne(ctx context.Context, v *volume) (outcome, error) {
	claim, _ := claimOf(v.pod, v.spec)
	switch {
	case ctx.Err() != nil:
		return outcome{}, context.Cause(ctx)
	case !safepath.IsElement(v.name()):
		return outcome{}, errors.New("the volume's name is not a file name")
	case claim != "" && v.bound == nil:
		return outcome{}, fmt.Errorf("claim %q was not read before", claim)
	}
	if err := m.claims.check(v); err != nil {
		return outcome{}, err
	}
	return m.kindOf(v).setup(ctx, v)
}
