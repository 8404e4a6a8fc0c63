package stats

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/cgroupstat"
	"berth/internal/pod"
)

const (
	// fresh is how long readings serve further questions: several scrapers at a time are one reading.
	fresh = time.Second
	// idle is how long descriptors and earlier samples are kept after the last question.
	idle = 10 * time.Minute
	// rateWindow is the least time between two samples that a rate is taken over, once there are such; rateMin the least at all.
	rateWindow, rateMin = 10 * time.Second, 100 * time.Millisecond
	// rateMax is the most: an average over longer tells nothing of now.
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
	// Observed returns what the runtime showed of every pod last; Pod returns the pod itself, false when it is gone.
	Observed func() []*pod.Status
	Pod      func(uid pod.UID) (*v1.Pod, bool)
	// Cgroup returns the path of a pod's cgroup, Class that of the parent of a class's pods (Guaranteed: of all pods); "" for unknown.
	Cgroup func(uid pod.UID) string
	Class  func(v1.PodQOSClass) string
	// System are the cgroups of the node's own parts by their names in the summary: kubelet, runtime, misc.
	System map[string]string
	// Started is when the agent was.
	Started time.Time
	Runtime Runtime
	// Volume says what is used of a volume of a pod that has a claim or is somebody else's: of CSI drivers, NFS. errors.ErrUnsupported is of those of
	// which nothing is known; nil: nothing is of any. It may take long.
	Volume func(ctx context.Context, p *v1.Pod, volume string) (VolumeUse, error)
	// VolumePeriod is how long sizes of volumes hold (volumeStatsAggPeriod); negative: they are not computed.
	VolumePeriod time.Duration
	Log          *slog.Logger
}

// Runtime is what is asked of the container runtime.
type Runtime interface {
	// ImageFsInfo returns the file systems of images and containers.
	ImageFsInfo(ctx context.Context) (*runtimeapi.ImageFsInfoResponse, error)
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
	// Root is the whole machine; Classes are kubepods and those of the classes below it; System as in Config.
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

// Collector reads. It is safe for concurrent use.
type Collector struct {
	Config
	// sizes are those of directories, uses what is used of volumes that others keep.
	sizes *remembered[string, size]
	uses  *remembered[volumeKey, VolumeUse]
	// layers are those of containers.
	layers layers

	// turn has an element while nobody reads. What follows belongs to whoever took it.
	turn      chan struct{}
	hierarchy *cgroupstat.Hierarchy
	groups    map[string]*group
	parents   map[pod.UID]string // cgroups of pods, as they were found
	last      *Readings
	timer     *time.Timer // closes what is open
}

// New returns a Collector that has not looked at anything.
func New(cfg Config) *Collector {
	if cfg.Proc == "" {
		cfg.Proc = "/proc"
	}
	c := &Collector{Config: cfg, turn: make(chan struct{}, 1), groups: map[string]*group{}, parents: map[pod.UID]string{}}
	c.sizes = newRemembered(cfg.Log, walksAtOnce, c.walk)
	c.uses = newRemembered(cfg.Log, asksAtOnce, c.askVolume)
	c.turn <- struct{}{}
	return c
}

// Run frees everything when ctx is done, and waits for walks under way.
func (c *Collector) Run(ctx context.Context) error {
	var remembering sync.WaitGroup
	remembering.Go(func() { c.sizes.run(ctx) })
	remembering.Go(func() { c.uses.run(ctx) })
	remembering.Wait()
	<-c.turn // for good: nobody reads any more
	if c.timer != nil {
		c.timer.Stop()
	}
	c.closeAll()
	return ctx.Err()
}

// take waits for the turn.
func (c *Collector) take(ctx context.Context) error {
	select {
	case <-c.turn:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("read usage: %w", context.Cause(ctx))
	}
}

func (c *Collector) closeAll() {
	for _, g := range c.groups {
		g.Close()
	}
	clear(c.groups)
	clear(c.parents)
	c.last = nil
}

// forget frees what nobody asked for since long.
func (c *Collector) forget() {
	select {
	case <-c.turn:
	default:
		return // somebody asks
	}
	c.closeAll()
	c.layers.set(mounts{})
	c.sizes.forget(time.Now())
	c.uses.forget(time.Now())
	c.turn <- struct{}{}
}

// keep puts off that everything is forgotten. It is the caller's turn.
func (c *Collector) keep() {
	if c.timer == nil {
		c.timer = time.AfterFunc(idle, c.forget)
		return
	}
	c.timer.Reset(idle)
}

// Read returns readings that are a second old at most.
func (c *Collector) Read(ctx context.Context) (*Readings, error) {
	if err := c.take(ctx); err != nil {
		return nil, err
	}
	defer func() { c.turn <- struct{}{} }()
	c.keep()
	if c.last != nil && time.Since(c.last.Time) < fresh {
		return c.last, nil
	}
	if err := c.findHierarchy(); err != nil {
		return nil, fmt.Errorf("read usage: %w", err)
	}
	r, err := c.readAll(time.Now())
	if err != nil {
		return nil, fmt.Errorf("read usage: %w", err)
	}
	c.last = r
	return r, nil
}

// findHierarchy finds the host's cgroups with the first question. It is the caller's turn.
func (c *Collector) findHierarchy() error {
	if c.hierarchy != nil {
		return nil
	}
	h, err := c.Hierarchy()
	if err == nil {
		c.hierarchy = &h
	}
	return err
}

func (c *Collector) readAll(now time.Time) (*Readings, error) {
	r := &Readings{Time: now, System: map[string]*Reading{}}
	var err error
	if r.Root, err = c.read("/"); err != nil {
		return nil, err
	}
	if r.Root == nil {
		return nil, fmt.Errorf("the root cgroup has neither CPU nor memory")
	}
	for _, class := range []v1.PodQOSClass{v1.PodQOSGuaranteed, v1.PodQOSBurstable, v1.PodQOSBestEffort} {
		g, err := c.readKnown(c.Class(class))
		if err != nil {
			return nil, err
		}
		if g != nil {
			r.Classes = append(r.Classes, g)
		}
	}
	for name, path := range c.System {
		if r.System[name], err = c.readKnown(path); err != nil {
			return nil, err
		}
	}
	for _, s := range c.Observed() {
		p, ok, err := c.readPod(s)
		if err != nil {
			return nil, err
		}
		if ok {
			r.Pods = append(r.Pods, p)
		}
	}
	slices.SortFunc(r.Pods, func(a, b Pod) int {
		return strings.Compare(a.Namespace+"/"+a.Name+"/"+string(a.UID), b.Namespace+"/"+b.Name+"/"+string(b.UID))
	})
	r.Network = c.network(1)
	maps.DeleteFunc(c.parents, func(_ pod.UID, path string) bool { return c.groups[path] == nil })
	for path, g := range c.groups {
		if !g.seen {
			g.Close()
			delete(c.groups, path)
			continue
		}
		g.seen = false
		if len(c.groups) > maxOpen {
			g.Close()
		}
	}
	return r, nil
}

func (c *Collector) readKnown(path string) (*Reading, error) {
	if path == "" {
		return nil, nil
	}
	return c.read(path)
}

// readPod reads a pod and what runs of it.
func (c *Collector) readPod(s *pod.Status) (Pod, bool, error) {
	p := Pod{UID: s.UID, Namespace: s.Namespace, Name: s.Name}
	parent := c.parents[s.UID]
	if parent == "" {
		if parent = c.Cgroup(s.UID); parent == "" {
			return p, false, nil
		}
		c.parents[s.UID] = parent
	}
	paths, err := c.hierarchy.List(parent)
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
		if ct.Reading, err = c.readKnown(paths[string(cs.ID)]); err != nil {
			return p, false, err
		}
		p.Containers = append(p.Containers, ct)
	}
	if len(p.Containers) == 0 {
		return p, false, nil
	}
	slices.SortFunc(p.Containers, func(a, b Container) int { return strings.Compare(a.Name, b.Name) })
	if p.Reading, err = c.read(parent); err != nil {
		return p, false, err
	}
	if len(s.Sandboxes) == 0 {
		return p, true, nil
	}
	sb := &s.Sandboxes[0]
	p.StartedAt, p.HostNetwork = sb.CreatedAt, sb.HostNetwork
	path := paths[string(sb.ID)]
	p.Sandbox = &Container{ID: pod.ContainerID(sb.ID), CreatedAt: sb.CreatedAt}
	if p.Sandbox.Reading, err = c.readKnown(path); err != nil {
		return p, false, err
	}
	for _, cgroup := range c.inNetwork(path, paths, p.Containers) {
		if pid := c.hierarchy.FirstProcess(cgroup); pid > 0 {
			p.Network = c.network(pid)
			break
		}
	}
	return p, true, nil
}

// inNetwork returns cgroups whose processes are in the pod's network: the sandbox's, or a container's where sandboxes have no process.
func (c *Collector) inNetwork(sandbox string, paths map[string]string, containers []Container) []string {
	out := []string{sandbox}
	for i := range containers {
		out = append(out, paths[string(containers[i].ID)])
	}
	return slices.DeleteFunc(out, func(p string) bool { return p == "" })
}

// read reads one cgroup; nil when it is gone.
func (c *Collector) read(path string) (*Reading, error) {
	g := c.groups[path]
	if g == nil {
		g = &group{Group: c.hierarchy.Open(path), created: c.hierarchy.Created(path)}
		c.groups[path] = g
	}
	g.seen = true
	s, err := g.Read()
	if cgroupstat.IsGone(err) {
		g.Close()
		delete(c.groups, path)
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	g.rate = computeRate(&g.base, s, g.rate)
	return &Reading{Path: path, Created: g.created, Sample: s, NanoCores: g.rate}, nil
}

// computeRate returns the CPU time per time since the base, in billionths of a CPU, and moves the base when it is old enough. A counter that
// went backwards begins anew; after a long silence there is no rate.
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
