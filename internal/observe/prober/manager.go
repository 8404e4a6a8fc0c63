package prober

import (
	"container/list"
	"context"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"

	"berth/internal/checkpoint"
	"berth/internal/pod"
	"berth/internal/pod/lifecycle"
	"berth/internal/record/journal"
	"berth/internal/runtime/action"
)

// Actions makes one attempt of a probe, within the probe's timeoutSeconds. An attempt that could
// not be made is action.Unknown.
type Actions interface {
	Probe(ctx context.Context, t action.Target, p *v1.Probe) action.Result
}

// Recorder records events. It does not block.
type Recorder interface {
	Event(p *v1.Pod, container, eventtype, reason, message string)
}

// Config is the configuration of a Manager.
type Config struct {
	Actions  Actions
	Recorder Recorder
	Journal  *journal.Journal
	Log      *slog.Logger
	// Path is the file that persists results for the next agent; its directory must exist when Run
	// is called. "": results are not persisted.
	Path string
	// HostIPs returns the node's addresses, primary first: host-network pods are probed there.
	HostIPs func() []string
}

// Manager is probeManager. It is safe for concurrent use.
type Manager struct {
	Config
	began   time.Time // when the agent started
	jitter  func(most time.Duration) time.Duration
	results *pod.Inbox[pod.UID]
	wake    chan struct{} // capacity 1; the schedule may have work before until
	file    *checkpoint.WarmTable[pod.UID, savedPod]
	unsaved *pod.Inbox[pod.UID] // pods whose results may differ from the file; put under mu, before readers see them

	mu       sync.Mutex
	pods     map[pod.UID]*podProbes // guarded by mu; pods with probes
	restored map[pod.UID]savedPod   // guarded by mu; from the file, of pods that were not seen yet
	schedule schedule               // guarded by mu
}

type podProbes struct {
	pod         *v1.Pod // the newest
	ip          string
	containers  []*container
	terminating bool
	attempts    int       // running, including cancelled ones
	waiting     list.List // overdue probes while the pod has maxAttemptsPerPod
}

// container is a container with probes; its spec is that of the first Sync.
type container struct {
	pod     *podProbes
	spec    *v1.Container
	sidecar bool
	probes  [kinds]*probe // nil for absent kinds

	id      pod.ContainerID // the newest incarnation, "" before the first
	running bool
}

// New returns a Manager without probes.
func New(cfg Config) *Manager {
	m := &Manager{
		Config: cfg, began: time.Now(), jitter: rand.N[time.Duration],
		results: pod.NewInbox[pod.UID](), wake: make(chan struct{}, 1), unsaved: pod.NewInbox[pod.UID](),
		pods: map[pod.UID]*podProbes{}, restored: map[pod.UID]savedPod{},
	}
	m.file = m.newFile()
	return m
}

// Results returns the inbox of the pods of which a probe result changed.
func (m *Manager) Results() *pod.Inbox[pod.UID] { return m.results }

// Sync updates the pod's probes from its observation: those of a container that has started begin,
// those of one that has exited are suspended, and a new incarnation starts without results. A
// readiness probe whose container has started and is not ready runs immediately. It is called with
// each observation at the start of a pass, before the pass reads results, and does not block.
func (m *Manager) Sync(p *v1.Pod, observed *pod.Status) {
	now := time.Now()
	m.mu.Lock()
	pp := m.pods[p.UID]
	if pp == nil {
		if pp = newPodProbes(p); pp == nil {
			m.mu.Unlock()
			return
		}
		m.pods[p.UID] = pp
	}
	pp.pod = p
	switch {
	case len(observed.IPs) > 0:
		pp.ip = observed.IPs[0]
	case p.Spec.HostNetwork:
		if ips := m.HostIPs(); len(ips) > 0 {
			pp.ip = ips[0]
		}
	}
	var entries []journal.Entry
	saved, ok := m.restored[p.UID]
	if ok {
		delete(m.restored, p.UID) // unclaimed results are of removed containers
		m.unsaved.Put(p.UID)
	}
	for _, c := range pp.containers {
		entries = append(entries, m.syncContainerLocked(c, observed.FindContainer(c.spec.Name), saved, now)...)
	}
	m.unlock()
	for _, e := range entries {
		m.Journal.Record(e)
	}
}

// newPodProbes returns the pod's probes, nil if it has none. Plain init containers and ephemeral
// ones cannot have any.
func newPodProbes(p *v1.Pod) *podProbes {
	pp := &podProbes{}
	add := func(spec *v1.Container, sidecar bool) {
		c := &container{pod: pp, spec: spec, sidecar: sidecar}
		for k, s := range [kinds]*v1.Probe{liveness: spec.LivenessProbe, readiness: spec.ReadinessProbe, startup: spec.StartupProbe} {
			if s != nil {
				c.probes[k] = &probe{kind: kind(k), container: c, spec: s, thresholds: thresholdsOf(s), index: notInHeap}
			}
		}
		if c.probes != [kinds]*probe{} {
			pp.containers = append(pp.containers, c)
		}
	}
	for i := range p.Spec.InitContainers {
		if c := &p.Spec.InitContainers[i]; lifecycle.IsSidecar(c) {
			add(c, true)
		}
	}
	for i := range p.Spec.Containers {
		add(&p.Spec.Containers[i], false)
	}
	if len(pp.containers) == 0 {
		return nil
	}
	return pp
}

func (m *Manager) syncContainerLocked(c *container, cs *pod.ContainerStatus, saved savedPod, now time.Time) (entries []journal.Entry) {
	running := false
	if cs != nil {
		if cs.ID != c.id {
			entries = m.beginIncarnationLocked(c, cs, saved)
		}
		running = cs.State == pod.StateRunning
		if running && !c.running {
			m.setNotBeforeLocked(c, cs.StartedAt, now)
		}
		if p := c.probes[readiness]; p != nil && cs.State == pod.StateExited && p.verdict != pod.ProbeFailure {
			p.tally = tally{verdict: pod.ProbeFailure}
			m.unsaved.Put(c.pod.pod.UID)
		}
	}
	c.running = running
	m.armLocked(c, now)
	if p := c.probes[readiness]; p != nil && p.verdict != pod.ProbeSuccess && p.index != notInHeap && now.After(p.began) {
		m.schedule.set(p, later(now, p.notBefore))
	}
	return entries
}

// beginIncarnationLocked resets the probes for the incarnation, with the known results.
func (m *Manager) beginIncarnationLocked(c *container, cs *pod.ContainerStatus, saved savedPod) (entries []journal.Entry) {
	c.id, c.running = cs.ID, false
	known := m.knownOf(c, cs, saved)
	for k, p := range c.probes {
		if p == nil {
			continue
		}
		m.schedule.remove(p)
		p.begin(known[k])
		if known[k] != pod.ProbeUnknown {
			entries = append(entries, p.entry(p.kind.String()+" probe: "+known[k].String()+", as before the agent's start"))
		}
		if c.pod.terminating {
			p.end()
		}
	}
	m.unsaved.Put(c.pod.pod.UID)
	return entries
}

// setNotBeforeLocked sets the time of the first attempt for the probes of a started container.
// Those of containers from an earlier agent are spread over their period, since otherwise all
// probes of the node would run at the agent's start.
func (m *Manager) setNotBeforeLocked(c *container, startedAt, now time.Time) {
	ran := max(now.Sub(startedAt), 0) // the runtime's clock may be ahead
	if startedAt.IsZero() {
		ran = 0
	}
	for _, p := range c.probes {
		if p == nil {
			continue
		}
		p.notBefore = now.Add(time.Duration(p.spec.InitialDelaySeconds)*time.Second - ran)
		if period := p.thresholds.period; now.Add(-ran).Before(m.began) && now.Sub(m.began) < period {
			p.notBefore = later(p.notBefore, now.Add(m.jitter(period)))
		}
	}
}

// armLocked sets the deadlines of the container's active probes, and removes those of the others.
func (m *Manager) armLocked(c *container, now time.Time) {
	for _, p := range c.probes {
		switch {
		case p == nil:
		case !p.isActive():
			m.schedule.remove(p)
		case p.isIdle():
			m.schedule.set(p, later(now, p.notBefore))
		}
	}
}

// Terminating stops the liveness and startup probes of the pod's regular containers, which must not
// affect containers that are being stopped. All other probes run until their containers have
// exited. Sync must come first for a new pod.
func (m *Manager) Terminating(uid pod.UID) {
	m.mu.Lock()
	defer m.unlock()
	pp := m.pods[uid]
	if pp == nil || pp.terminating {
		return
	}
	pp.terminating = true
	now := time.Now()
	for _, c := range pp.containers {
		for _, p := range c.probes {
			if p != nil {
				p.end()
			}
		}
		m.armLocked(c, now)
	}
}

// Remove deletes the pod and stops its probes.
func (m *Manager) Remove(uid pod.UID) {
	m.mu.Lock()
	defer m.unlock()
	if _, ok := m.restored[uid]; ok {
		delete(m.restored, uid)
		m.unsaved.Put(uid)
	}
	pp := m.pods[uid]
	if pp == nil {
		return
	}
	delete(m.pods, uid)
	for _, c := range pp.containers {
		for _, p := range c.probes {
			if p != nil {
				m.schedule.remove(p)
			}
		}
	}
	m.unsaved.Put(uid)
}

// Verdicts returns the pod's probe results for the newest incarnations.
func (m *Manager) Verdicts(uid pod.UID) pod.ProbeVerdicts {
	m.mu.Lock()
	defer m.mu.Unlock()
	pp := m.pods[uid]
	if pp == nil {
		return pod.ProbeVerdicts{}
	}
	return pod.ProbeVerdicts{Liveness: pp.verdicts(liveness), Readiness: pp.verdicts(readiness), Startup: pp.verdicts(startup)}
}

func (pp *podProbes) verdicts(k kind) map[pod.ContainerID]pod.ProbeVerdict {
	var out map[pod.ContainerID]pod.ProbeVerdict
	for _, c := range pp.containers {
		if p := c.probes[k]; p != nil && c.id != "" {
			if out == nil {
				out = map[pod.ContainerID]pod.ProbeVerdict{}
			}
			out[c.id] = p.verdict
		}
	}
	return out
}

func later(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}
