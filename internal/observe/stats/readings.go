package stats

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	summary "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"berth/internal/host/cgroupstat"
	"berth/internal/pod"
)

const (
	// fresh is how long readings serve further questions: several scrapers at a time are one
	// reading.
	fresh = time.Second
	// idle is how long descriptors stay open and earlier samples in memory after the last question.
	idle = 10 * time.Minute
	// rateWindow is the least time between two samples that a rate is taken over, once there are
	// such; rateMin the least at all.
	rateWindow, rateMin = 10 * time.Second, 100 * time.Millisecond
	// rateMax is the most: an average over longer says nothing of now.
	rateMax = 5 * time.Minute
	// maxOpen bounds the cgroups whose files stay open between readings: each has about twenty.
	maxOpen = 512
)

// Config is what a Collector needs. Its functions must not block.
type Config struct {
	NodeName            string
	RootDir, PodLogsDir string
	// Hierarchy finds the host's cgroups; it is called with the first question.
	Hierarchy func() (cgroupstat.Hierarchy, error)
	// Proc is where the kernel's files are: "/proc" when empty.
	Proc string
	// Observed returns what the runtime showed of every pod last; Pod returns the pod itself, false
	// when it is gone.
	Observed func() []*pod.Status
	Pod      func(uid pod.UID) (*v1.Pod, bool)
	// Cgroup returns the path of a pod's cgroup, Class that of the parent of a class's pods
	// (Guaranteed: of all pods); "" for unknown.
	Cgroup func(uid pod.UID) string
	Class  func(v1.PodQOSClass) string
	// System are the cgroups of the node's own parts by their names in the summary: kubelet,
	// runtime, misc. Without one for the kubelet it is that of this process.
	System map[string]string
	// Started is when the agent was.
	Started time.Time
	Runtime Runtime
	// Volume says what is used of a volume of a pod that has a claim or is somebody else's: of CSI
	// drivers, NFS. errors.ErrUnsupported is of those of which nothing is known; nil: nothing is of
	// any. It may take long.
	Volume func(ctx context.Context, p *v1.Pod, volume string) (VolumeUse, error)
	// VolumePeriod is how long sizes of volumes hold (volumeStatsAggPeriod); negative: they are not
	// computed.
	VolumePeriod time.Duration
	// Metrics is where metrics are registered; nil: nowhere.
	Metrics prometheus.Registerer
	Log     *slog.Logger
}

// Runtime is what is asked of the container runtime.
type Runtime interface {
	// ImageFsInfo returns the file systems of images and containers.
	ImageFsInfo(ctx context.Context) (*runtimeapi.ImageFsInfoResponse, error)
	// UpperDir returns the writable layer of a container, "" if the runtime tells of none.
	UpperDir(ctx context.Context, id pod.ContainerID) (string, error)
}

// Reading is what one cgroup used.
type Reading struct {
	// Path is the cgroup's, from the hierarchies' root. Created is when it was made.
	Path    string
	Created time.Time
	cgroupstat.Sample
	// NanoCores is CPU time per time, in billionths of a CPU; nil until there are two samples.
	NanoCores *uint64
}

// Container is a running container's.
type Container struct {
	ID        pod.ContainerID
	Name      string // "" for a sandbox
	Image     string
	CreatedAt time.Time
	Reading   *Reading // nil when its cgroup is gone or unknown
}

// Pod is a pod's, which has at least a running container.
type Pod struct {
	UID             pod.UID
	Namespace, Name string
	StartedAt       time.Time // of its sandbox
	HostNetwork     bool
	Reading         *Reading
	Sandbox         *Container
	Containers      []Container // by name
	// Network are the interfaces in the pod's network, by name; nil when not known.
	Network []Interface
}

// Readings is everything at one time.
type Readings struct {
	Time time.Time
	// Root is the whole machine; Classes are kubepods and those of the classes below it; System as
	// in Config.
	Root    *Reading
	Classes []*Reading
	System  map[string]*Reading
	Pods    []Pod // by namespace and name
	Network []Interface
}

// group is a cgroup that is read again.
type group struct {
	*cgroupstat.Group
	created time.Time
	base    cgroupstat.Sample // what rates are taken from
	rate    *uint64
	seen    bool // by the reading under way
}

// cgroupReader reads cgroups, whose files it keeps open, and what the kernel counts of networks. It
// has one user at a time.
type cgroupReader struct {
	cfg       *Config
	proc      procFS
	hierarchy *cgroupstat.Hierarchy // nil before the first question
	groups    map[string]*group
	parents   map[pod.UID]string // cgroups of pods, as they were found
	last      *Readings
}

func newCgroupReader(cfg *Config) *cgroupReader {
	return &cgroupReader{cfg: cfg, proc: procFS(cfg.Proc), groups: map[string]*group{}, parents: map[pod.UID]string{}}
}

func (r *cgroupReader) closeAll() {
	for _, g := range r.groups {
		g.Close()
	}
	clear(r.groups)
	clear(r.parents)
	r.last = nil
}

// current returns readings that are a second old at most.
func (r *cgroupReader) current() (*Readings, error) {
	if r.last != nil && time.Since(r.last.Time) < fresh {
		return r.last, nil
	}
	err := r.findHierarchy()
	if err == nil {
		r.last, err = r.readAll(time.Now())
	}
	if err != nil {
		return nil, fmt.Errorf("read usage: %w", err)
	}
	return r.last, nil
}

// findHierarchy finds the host's cgroups with the first question.
func (r *cgroupReader) findHierarchy() error {
	if r.hierarchy != nil {
		return nil
	}
	h, err := r.cfg.Hierarchy()
	if err == nil {
		r.hierarchy = &h
	}
	return err
}

// containersOf returns the cgroups of the pod's containers by their ids; none where there are no
// cgroups.
func (r *cgroupReader) containersOf(uid pod.UID) (map[string]string, error) {
	parent := r.cfg.Cgroup(uid)
	if parent == "" || r.findHierarchy() != nil {
		return nil, nil
	}
	return r.hierarchy.List(parent)
}

// firstProcess returns a process of the cgroup, 0 when none is known. Unlike the rest, it can be
// called by anybody who has had an answer from the reader.
func (r *cgroupReader) firstProcess(cgroup string) int {
	if cgroup == "" || r.hierarchy == nil {
		return 0
	}
	return r.hierarchy.FirstProcess(cgroup)
}

// readSystem reads the cgroups of the node's own parts.
func (r *cgroupReader) readSystem(into map[string]*Reading) error {
	paths := map[string]string{}
	maps.Copy(paths, r.cfg.System)
	if paths[summary.SystemContainerKubelet] == "" {
		own, err := r.hierarchy.Own(string(r.proc))
		if err != nil {
			return err
		}
		paths[summary.SystemContainerKubelet] = own
	}
	for name, path := range paths {
		g, err := r.readKnown(path)
		if err != nil {
			return err
		}
		into[name] = g
	}
	return nil
}

func (r *cgroupReader) readAll(now time.Time) (*Readings, error) {
	out := &Readings{Time: now, System: map[string]*Reading{}}
	var err error
	if out.Root, err = r.read("/"); err != nil {
		return nil, err
	}
	if out.Root == nil {
		return nil, fmt.Errorf("the root cgroup has neither CPU nor memory")
	}
	for _, class := range []v1.PodQOSClass{v1.PodQOSGuaranteed, v1.PodQOSBurstable, v1.PodQOSBestEffort} {
		g, err := r.readKnown(r.cfg.Class(class))
		if err != nil {
			return nil, err
		}
		if g != nil {
			out.Classes = append(out.Classes, g)
		}
	}
	if err := r.readSystem(out.System); err != nil {
		return nil, err
	}
	for _, s := range r.cfg.Observed() {
		p, ok, err := r.readPod(s)
		if err != nil {
			return nil, err
		}
		if ok {
			out.Pods = append(out.Pods, p)
		}
	}
	slices.SortFunc(out.Pods, func(a, b Pod) int {
		return strings.Compare(a.Namespace+"/"+a.Name+"/"+string(a.UID), b.Namespace+"/"+b.Name+"/"+string(b.UID))
	})
	out.Network = r.proc.network(1)
	maps.DeleteFunc(r.parents, func(_ pod.UID, path string) bool { return r.groups[path] == nil })
	for path, g := range r.groups {
		if !g.seen {
			g.Close()
			delete(r.groups, path)
			continue
		}
		g.seen = false
		if len(r.groups) > maxOpen {
			g.Close()
		}
	}
	return out, nil
}

func (r *cgroupReader) readKnown(path string) (*Reading, error) {
	if path == "" {
		return nil, nil
	}
	return r.read(path)
}

// readPod reads a pod and what runs of it.
func (r *cgroupReader) readPod(s *pod.Status) (Pod, bool, error) {
	p := Pod{UID: s.UID, Namespace: s.Namespace, Name: s.Name}
	parent := r.parents[s.UID]
	if parent == "" {
		if parent = r.cfg.Cgroup(s.UID); parent == "" {
			return p, false, nil
		}
		r.parents[s.UID] = parent
	}
	paths, err := r.hierarchy.List(parent)
	if err != nil {
		return p, false, err
	}
	names := map[string]bool{}
	for i := range s.Containers {
		cs := &s.Containers[i]
		if cs.State != pod.StateRunning || names[cs.Name] { // newest first
			continue
		}
		names[cs.Name] = true
		ct := Container{ID: cs.ID, Name: cs.Name, Image: cs.Image, CreatedAt: cs.CreatedAt}
		if ct.Reading, err = r.readKnown(paths[string(cs.ID)]); err != nil {
			return p, false, err
		}
		p.Containers = append(p.Containers, ct)
	}
	if len(p.Containers) == 0 {
		return p, false, nil
	}
	slices.SortFunc(p.Containers, func(a, b Container) int { return strings.Compare(a.Name, b.Name) })
	if p.Reading, err = r.read(parent); err != nil {
		return p, false, err
	}
	if len(s.Sandboxes) == 0 {
		return p, true, nil
	}
	sb := &s.Sandboxes[0]
	p.StartedAt, p.HostNetwork = sb.CreatedAt, sb.HostNetwork
	path := paths[string(sb.ID)]
	p.Sandbox = &Container{ID: pod.ContainerID(sb.ID), CreatedAt: sb.CreatedAt}
	if p.Sandbox.Reading, err = r.readKnown(path); err != nil {
		return p, false, err
	}
	for _, cgroup := range inNetwork(path, paths, p.Containers) {
		if pid := r.hierarchy.FirstProcess(cgroup); pid > 0 {
			p.Network = r.proc.network(pid)
			break
		}
	}
	return p, true, nil
}

// inNetwork returns cgroups whose processes are in the pod's network: the sandbox's, or a
// container's where sandboxes have no process.
func inNetwork(sandbox string, paths map[string]string, containers []Container) []string {
	out := []string{sandbox}
	for i := range containers {
		out = append(out, paths[string(containers[i].ID)])
	}
	return slices.DeleteFunc(out, func(p string) bool { return p == "" })
}

// read reads one cgroup; nil when it is gone.
func (r *cgroupReader) read(path string) (*Reading, error) {
	g := r.groups[path]
	if g == nil {
		g = &group{Group: r.hierarchy.Open(path), created: r.hierarchy.Created(path)}
		r.groups[path] = g
	}
	g.seen = true
	s, err := g.Read()
	if cgroupstat.IsGone(err) {
		g.Close()
		delete(r.groups, path)
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	g.rate = computeRate(&g.base, s, g.rate)
	return &Reading{Path: path, Created: g.created, Sample: s, NanoCores: g.rate}, nil
}

// computeRate returns the CPU time per time since the base, in billionths of a CPU, and moves the
// base when it is old enough. A counter that went backwards begins anew; after a long silence there
// is no rate.
func computeRate(base *cgroupstat.Sample, s cgroupstat.Sample, last *uint64) *uint64 {
	if s.CPU == nil {
		return nil
	}
	since := s.Time.Sub(base.Time)
	if base.CPU == nil || s.CPU.Usage < base.CPU.Usage || since > rateMax {
		*base = s
		return nil
	}
	if since < rateMin {
		return last
	}
	rate := uint64(float64(s.CPU.Usage-base.CPU.Usage) / since.Seconds())
	if since >= rateWindow {
		*base = s
	}
	return &rate
}
