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
	// fresh is how long readings are reused: concurrent scrapes cause one read.
	fresh = time.Second
	// idle is how long descriptors stay open and samples cached after the last request.
	idle = 10 * time.Minute
	// rateWindow is the minimum interval of the samples of a rate, once available; rateMin the
	// absolute minimum.
	rateWindow, rateMin = 10 * time.Second, 100 * time.Millisecond
	// rateMax is the maximum: a longer average does not describe the present.
	rateMax = 5 * time.Minute
	// maxOpen bounds the cgroups whose files stay open between reads: each has about twenty.
	maxOpen = 512
)

// Config is the configuration of a Collector. Its functions must not block.
type Config struct {
	NodeName            string
	RootDir, PodLogsDir string
	// Hierarchy finds the host's cgroups; it is called on the first request.
	Hierarchy func() (cgroupstat.Hierarchy, error)
	// Proc is the directory of /proc: "/proc" if empty.
	Proc string
	// Observed returns the newest observation of every pod; Pod returns the pod itself, false if it
	// is deleted.
	Observed func() []*pod.Status
	Pod      func(uid pod.UID) (*v1.Pod, bool)
	// Cgroup returns the path of a pod's cgroup, Class that of the parent of a QoS class's pods
	// (Guaranteed: of all pods); "" if unknown.
	Cgroup func(uid pod.UID) string
	Class  func(v1.PodQOSClass) string
	// System are the cgroups of system components by their names in the summary: kubelet, runtime,
	// misc. The default for the kubelet is the cgroup of this process.
	System map[string]string
	// Started is the start time of the agent.
	Started time.Time
	Runtime Runtime
	// Volume returns the usage of a pod's volume that has a claim or belongs to a CSI driver or
	// NFS. errors.ErrUnsupported means that it is unknown; nil: always unknown. It may take long.
	Volume func(ctx context.Context, p *v1.Pod, volume string) (VolumeUse, error)
	// VolumePeriod is how long volume sizes are cached (volumeStatsAggPeriod); negative: they are
	// not computed.
	VolumePeriod time.Duration
	// Metrics registers metrics; nil: not registered.
	Metrics prometheus.Registerer
	Log     *slog.Logger
}

// Runtime is the part of the container runtime that a Collector uses.
type Runtime interface {
	// ImageFsInfo returns the file systems of images and containers.
	ImageFsInfo(ctx context.Context) (*runtimeapi.ImageFsInfoResponse, error)
	// UpperDir returns the writable layer of a container, "" if the runtime reports none.
	UpperDir(ctx context.Context, id pod.ContainerID) (string, error)
}

// Reading is the usage of one cgroup.
type Reading struct {
	// Path is the cgroup's path from the hierarchies' root. Created is its creation time.
	Path    string
	Created time.Time
	cgroupstat.Sample
	// NanoCores is the CPU usage rate in billionths of a CPU; nil until there are two samples.
	NanoCores *uint64
}

// Container is the usage of a running container.
type Container struct {
	ID        pod.ContainerID
	Name      string // "" for a sandbox
	Image     string
	CreatedAt time.Time
	Reading   *Reading // nil if its cgroup is removed or unknown
}

// Pod is the usage of a pod with at least one running container.
type Pod struct {
	UID             pod.UID
	Namespace, Name string
	StartedAt       time.Time // of its sandbox
	HostNetwork     bool
	Reading         *Reading
	Sandbox         *Container
	Containers      []Container // by name
	// Network are the interfaces in the pod's network namespace, by name; nil if unknown.
	Network []Interface
}

// Readings are all readings of one time.
type Readings struct {
	Time time.Time
	// Root is the whole machine; Classes are kubepods and the cgroups of the QoS classes below;
	// System as in Config.
	Root    *Reading
	Classes []*Reading
	System  map[string]*Reading
	Pods    []Pod // by namespace and name
	Network []Interface
}

// group is a cgroup that is read repeatedly.
type group struct {
	*cgroupstat.Group
	created time.Time
	base    cgroupstat.Sample // the first sample of rates
	rate    *uint64
	seen    bool // in the current read
}

// cgroupReader reads cgroups, whose files it keeps open, and network counters. It is not safe for
// concurrent use.
type cgroupReader struct {
	cfg       *Config
	proc      procFS
	hierarchy *cgroupstat.Hierarchy // nil before the first request
	groups    map[string]*group
	parents   map[pod.UID]string // cached cgroups of pods
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

// current returns readings that are at most a second old.
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

// findHierarchy finds the host's cgroups on the first request.
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

// containersOf returns the cgroups of the pod's containers by ID; none without cgroups.
func (r *cgroupReader) containersOf(uid pod.UID) (map[string]string, error) {
	parent := r.cfg.Cgroup(uid)
	if parent == "" || r.findHierarchy() != nil {
		return nil, nil
	}
	return r.hierarchy.List(parent)
}

// firstProcess returns a process of the cgroup, 0 if unknown. Unlike the other methods, it can be
// called concurrently after the first successful read.
func (r *cgroupReader) firstProcess(cgroup string) int {
	if cgroup == "" || r.hierarchy == nil {
		return 0
	}
	return r.hierarchy.FirstProcess(cgroup)
}

// readSystem reads the cgroups of system components.
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
// container's if sandboxes have no process.
func inNetwork(sandbox string, paths map[string]string, containers []Container) []string {
	out := []string{sandbox}
	for i := range containers {
		out = append(out, paths[string(containers[i].ID)])
	}
	return slices.DeleteFunc(out, func(p string) bool { return p == "" })
}

// read reads one cgroup; nil if it is removed.
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

// computeRate returns the CPU usage since base in billionths of a CPU, and replaces base when it is
// old enough. It restarts after a counter reset; after a long pause there is no rate.
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
