package cgroups

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	lib "github.com/opencontainers/cgroups"
	libmanager "github.com/opencontainers/cgroups/manager"
	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"

	"berth/internal/pod"
)

// Allocatable is what the pods of the node may use together; a zero field is not limited.
type Allocatable struct {
	MilliCPU    int64 // millicores
	MemoryBytes int64
	Pids        int64
}

// Config configures a Manager.
type Config struct {
	// Root is the parent cgroup of kubepods ("/" if empty): a path from the root of each hierarchy,
	// never relative to the agent's own cgroup, so that pods are not accounted to the agent.
	Root string
	// Driver must be the runtime's.
	Driver Driver
	// Allocatable limits kubepods after a call of EnforceAllocatable; its MilliCPU does so from the
	// start.
	Allocatable Allocatable
	Settings    Settings
	Log         *slog.Logger
	// Metrics is the registry for metrics; nil means that they are not registered.
	Metrics prometheus.Registerer
}

// Manager (containerManager) maintains the cgroup tree of pods. It is safe for concurrent use on
// different pods.
type Manager struct {
	tree        tree
	allocatable Allocatable
	settings    Settings
	log         *slog.Logger

	mu      sync.Mutex
	pods    map[pod.UID]ensured // guarded by mu; pods with a cgroup
	written classValues         // guarded by mu; the zero value: never
	writing bool                // guarded by mu; a goroutine writes classValues
}

// tree accesses the cgroups below a root in all hierarchies.
type tree struct {
	driver  Driver
	root    name
	host    func() host // detects once
	metrics *metrics
}

// ensured is a pod with a cgroup.
type ensured struct {
	class    v1.PodQOSClass
	milliCPU int64 // requested
	memory   int64 // requested, in bytes
	// found: the cgroup is an earlier agent's, and the requests are read from it.
	found bool
}

// New validates the configuration and returns a Manager. It does not access cgroups.
func New(c Config) (*Manager, error) {
	switch c.Driver {
	case Cgroupfs, Systemd:
	default:
		return nil, fmt.Errorf("cgroupDriver %q: must be %q or %q", c.Driver, Cgroupfs, Systemd)
	}
	if c.Root == "" {
		c.Root = "/"
	}
	if !strings.HasPrefix(c.Root, "/") {
		return nil, fmt.Errorf("cgroupRoot %q: must begin with a slash", c.Root)
	}
	root := rootName(c.Root)
	for _, word := range root {
		if word == "." || word == ".." {
			return nil, fmt.Errorf("cgroupRoot %q: must not contain %q", c.Root, word)
		}
	}
	detect := sync.OnceValue(func() host {
		h := detectHost()
		if missing := h.missing(); len(missing) > 0 {
			c.Log.Warn("cgroup controllers are missing on this host; their limits are not applied to pods",
				"missing", strings.Join(missing, ","), "cgroupVersion", h.version)
		}
		return h
	})
	return &Manager{
		tree:        tree{driver: c.Driver, root: root, host: detect, metrics: newMetrics(c.Metrics)},
		allocatable: c.Allocatable,
		settings:    c.Settings,
		log:         c.Log,
		pods:        map[pod.UID]ensured{},
	}, nil
}

// EnsurePod creates the pod's cgroup and writes its values. It does nothing if this agent has
// ensured the pod before: only a resize rewrites values.
func (m *Manager) EnsurePod(ctx context.Context, p *v1.Pod) error {
	if p.UID == "" {
		return fmt.Errorf("ensure cgroup of pod %s/%s: the pod has no UID", p.Namespace, p.Name)
	}
	if ctx.Err() != nil {
		return fmt.Errorf("ensure cgroup of pod %s/%s: %w", p.Namespace, p.Name, context.Cause(ctx))
	}
	m.mu.Lock()
	e, known := m.pods[p.UID]
	m.mu.Unlock()
	if known && !e.found {
		return nil
	}
	class := QOSClass(p)
	g, err := m.tree.ensure(podName(m.tree.root, class, p.UID), computePodValues(p, m.settings))
	if err != nil {
		return fmt.Errorf("pod %s/%s: %w", p.Namespace, p.Name, err)
	}
	m.noteRequests(p, class, g)
	return m.syncClasses()
}

// noteRequests records the requests of a pod after its cgroup was written.
func (m *Manager) noteRequests(p *v1.Pod, class v1.PodQOSClass, g lib.Manager) {
	requests := podRequests(p)
	e := ensured{class: class, milliCPU: requests[v1.ResourceCPU], memory: requests[v1.ResourceMemory]}
	if m.tree.host().version == 2 && class == v1.PodQOSBurstable {
		if err := writeRequests(g.Path(""), e); err != nil {
			m.log.Debug("the next agent will know what a pod asks for by its cpu.weight, which is about right", "pod", p.Namespace+"/"+p.Name, "error", err)
		}
	}
	m.mu.Lock()
	m.pods[p.UID] = e
	m.mu.Unlock()
}

// PodParent returns the pod's cgroup for LinuxPodSandboxConfig.cgroup_parent: a path from the root
// of the hierarchies; with the systemd driver its last element is the pod's slice unit.
func (m *Manager) PodParent(p *v1.Pod) string {
	return podName(m.tree.root, QOSClass(p), p.UID).path(m.tree.driver)
}

// PodPath returns the path of the pod's cgroup from the root of the hierarchies, including a cgroup
// of an earlier agent; "" if it does not exist.
func (m *Manager) PodPath(uid pod.UID) string {
	for _, class := range classes {
		n := podName(m.tree.root, class, uid)
		if dirs, err := m.tree.dirs(n); err == nil && slices.ContainsFunc(dirs, lib.PathExists) {
			return n.path(m.tree.driver)
		}
	}
	return ""
}

// QoSPath returns the path of the cgroup of a QoS class from the root of the hierarchies; for
// Guaranteed that is the cgroup of all pods.
func (m *Manager) QoSPath(class v1.PodQOSClass) string {
	return qosName(m.tree.root, class).path(m.tree.driver)
}

// ensure creates the cgroup, if necessary, and writes the values.
func (t *tree) ensure(n name, v podValues) (lib.Manager, error) {
	defer t.metrics.operated(create, time.Now())
	g, err := t.open(n, v)
	if err == nil {
		err = g.Apply(-1)
	}
	if err != nil {
		return nil, fmt.Errorf("make cgroup %s: %w", n.path(t.driver), err)
	}
	if err := t.set(g, v); err != nil {
		return nil, fmt.Errorf("cgroup %s: %w", n.path(t.driver), err)
	}
	return g, nil
}

// set writes the values to an existing cgroup.
func (t *tree) set(g lib.Manager, v podValues) error {
	if err := g.Set(t.host().resources(v)); err != nil {
		return fmt.Errorf("set limits: %w", err)
	}
	return nil
}

// open returns the library's handle of the cgroup, which need not exist.
func (t *tree) open(n name, v podValues) (lib.Manager, error) {
	h := t.host()
	if h.version == 0 {
		return nil, fmt.Errorf("no cgroup hierarchy is mounted (expected at /sys/fs/cgroup)")
	}
	c := &lib.Cgroup{Resources: h.resources(v), Systemd: t.driver == Systemd}
	if c.Systemd {
		c.Name, c.Parent = n.unit(), n[:len(n)-1].unit()
		return libmanager.New(c)
	}
	c.Path = n.path(t.driver)
	return libmanager.NewWithPaths(c, h.paths(c.Path))
}
