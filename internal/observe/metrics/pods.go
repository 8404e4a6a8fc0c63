package metrics

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"

	"berth/internal/pod"
	"berth/internal/record/journal"
)

// PodsConfig is the configuration of Pods.
type PodsConfig struct {
	// Changed gets every pod whose status changed; Pod returns the pod, false if it is deleted.
	// List returns all.
	Changed *pod.Inbox[pod.UID]
	Pod     func(uid pod.UID) (*v1.Pod, bool)
	List    func() []*v1.Pod
	// Wanted returns the desired pods.
	Wanted func() []*v1.Pod
	// Lifecycles returns the pods' lifecycles in the workers.
	Lifecycles func() map[pod.UID]pod.Lifecycle
	// Observed returns the pods in the runtime.
	Observed func() []*pod.Status
	// Timeline returns a pod's journal.
	Timeline func(uid pod.UID) (journal.Timeline, bool)
	// Started is the start of the agent: earlier starts belong to another agent.
	Started time.Time
	// Metrics registers the counting metrics; nil: not registered.
	Metrics prometheus.Registerer
}

// Pods counts pod lifecycle changes from their statuses, and collects the number of pods at a
// scrape.
type Pods struct {
	PodsConfig
	counts    *podCounts
	seen      map[pod.UID]*seenPod // used only by Run
	networked bool                 // used only by Run; a pod with its own network has run
}

// NewPods returns Pods that count once Run is called.
func NewPods(cfg PodsConfig) *Pods {
	return &Pods{PodsConfig: cfg, counts: newPodCounts(cfg.Metrics), seen: map[pod.UID]*seenPod{}}
}

// seenPod is the counted state of a pod.
type seenPod struct {
	first   time.Time
	running bool
	started map[string]bool // counted container IDs, of existing containers
	ended   map[string]bool
	resize  seenResize
}

var (
	runningPods       = desc("kubelet_running_pods", "[ALPHA] Number of pods that have a running pod sandbox")
	runningContainers = desc("kubelet_running_containers", "[ALPHA] Number of containers currently running", "container_state")
	desiredPods       = desc("kubelet_desired_pods", "[ALPHA] The number of pods the kubelet is being instructed to run. static is true if the pod is not from the apiserver.", "static")
	activePods        = desc("kubelet_active_pods", "[ALPHA] The number of pods the kubelet considers active and which are being considered when admitting new pods. static is true if the pod is not from the apiserver.", "static")
	workingPods       = desc("kubelet_working_pods", "[ALPHA] Number of pods the kubelet is actually running, broken down by lifecycle phase, whether the pod is desired, orphaned, or runtime only (also orphaned), and whether the pod is static. An orphaned pod has been removed from local configuration or force deleted in the API and consumes resources that are not otherwise visible.", "lifecycle", "config", "static")
	mirrorPods        = desc("kubelet_mirror_pods", "[ALPHA] The number of mirror pods the kubelet will try to create (one per admitted static pod)")
	ephemeralCount    = desc("kubelet_managed_ephemeral_containers", "[ALPHA] Current number of ephemeral containers in pods managed by this kubelet.")
)

// Describe describes the metrics that are computed at a scrape.
func (p *Pods) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{runningPods, runningContainers, desiredPods, activePods, workingPods, mirrorPods, ephemeralCount, pendingResizes, inProgressResizes} {
		ch <- d
	}
}

// Collect computes the metrics.
func (p *Pods) Collect(ch chan<- prometheus.Metric) {
	ready, states := 0, map[string]int{"created": 0, "exited": 0, "running": 0, "unknown": 0}
	for _, s := range p.Observed() {
		if s.ReadySandbox() != nil {
			ready++
		}
		for i := range s.Containers {
			states[s.Containers[i].State.String()]++
		}
	}
	ch <- prometheus.MustNewConstMetric(runningPods, gauge, float64(ready))
	for state, n := range states {
		ch <- prometheus.MustNewConstMetric(runningContainers, gauge, float64(n), state)
	}
	desired, active, ephemeral := map[bool]int{}, map[bool]int{}, 0
	for _, w := range p.Wanted() {
		desired[pod.IsStatic(w)]++
		ephemeral += len(w.Spec.EphemeralContainers)
	}
	for _, w := range p.List() {
		if !pod.IsTerminal(w.Status.Phase) {
			active[pod.IsStatic(w)]++
		}
	}
	for _, static := range []bool{true, false} {
		label := ""
		if static {
			label = "true"
		}
		ch <- prometheus.MustNewConstMetric(desiredPods, gauge, float64(desired[static]), label)
		ch <- prometheus.MustNewConstMetric(activePods, gauge, float64(active[static]), label)
	}
	ch <- prometheus.MustNewConstMetric(ephemeralCount, gauge, float64(ephemeral))
	p.collectLifecycles(ch)
	p.collectResizes(ch)
}

// collectLifecycles counts the pods that have not terminated by the state of their workers.
func (p *Pods) collectLifecycles(ch chan<- prometheus.Metric) {
	static := map[pod.UID]bool{}
	for _, x := range p.List() {
		static[x.UID] = pod.IsStatic(x)
	}
	type working struct{ lifecycle, config, static string }
	counts, mirrored := map[working]int{}, 0
	for uid, l := range p.Lifecycles() {
		w := working{config: "desired", static: "unknown"}
		if is, known := static[uid]; known {
			w.static = ""
			if is {
				w.static = "true"
			}
		}
		switch {
		case l.RuntimeOnly:
			w.config = "runtime_only"
		case l.Orphan:
			w.config = "orphan"
		case w.static == "true" && l.State >= pod.Syncing && l.State < pod.Finished:
			mirrored++
		}
		switch l.State {
		case pod.Syncing:
			w.lifecycle = "sync"
		case pod.Terminating:
			w.lifecycle = "terminating"
		case pod.Terminated:
			w.lifecycle = "terminated"
		default:
			continue // not started, or done
		}
		counts[w]++
	}
	for w, n := range counts {
		ch <- prometheus.MustNewConstMetric(workingPods, gauge, float64(n), w.lifecycle, w.config, w.static)
	}
	ch <- prometheus.MustNewConstMetric(mirrorPods, gauge, float64(mirrored))
}

// Run counts until ctx is done.
func (p *Pods) Run(ctx context.Context) error {
	for _, x := range p.List() {
		p.count(x)
	}
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-p.Changed.Wake():
			for _, uid := range p.Changed.Take() {
				x, ok := p.Pod(uid)
				if !ok {
					delete(p.seen, uid)
					continue
				}
				p.count(x)
			}
		}
	}
}

// count counts the changes in the pod's status. What started or exited before this agent was
// counted by the previous one.
func (p *Pods) count(x *v1.Pod) {
	s := p.seen[x.UID]
	if s == nil {
		s = &seenPod{first: time.Now(), started: map[string]bool{}, ended: map[string]bool{}}
		p.seen[x.UID] = s
		p.counts.containersPerPod.Observe(float64(len(x.Spec.Containers)))
	}
	p.counts.countResize(&s.resize, x)
	own := !x.Status.StartTime.IsZero() && !x.Status.StartTime.Time.Before(p.Started.Truncate(time.Second))
	if !s.running && x.Status.Phase == v1.PodRunning {
		s.running = true
		if own {
			p.counts.started.Inc()
			if x.Spec.HostUsers != nil && !*x.Spec.HostUsers {
				p.counts.startedUserNamespaced.Inc()
			}
			p.podRuns(x)
			p.counts.start.Observe(time.Since(s.first).Seconds())
		}
	}
	present := map[string]bool{}
	for _, k := range []struct {
		kind containerType
		list []v1.ContainerStatus
	}{{initType, x.Status.InitContainerStatuses}, {regularType, x.Status.ContainerStatuses}, {ephemeralType, x.Status.EphemeralContainerStatuses}} {
		for i := range k.list {
			c := &k.list[i]
			if r := c.State.Running; r != nil {
				present[c.ContainerID] = true
				p.began(s, k.kind, c.ContainerID, r.StartedAt.Time)
			}
			for _, t := range []*v1.ContainerStateTerminated{c.LastTerminationState.Terminated, c.State.Terminated} {
				if t == nil || t.ContainerID == "" {
					continue
				}
				present[t.ContainerID] = true
				p.began(s, k.kind, t.ContainerID, t.StartedAt.Time)
				if !s.ended[t.ContainerID] {
					s.ended[t.ContainerID] = true
					if !t.FinishedAt.Time.Before(p.Started.Truncate(time.Second)) {
						p.counts.containerEnded(k.kind, t.ExitCode, t.Reason)
					}
				}
			}
		}
	}
	for _, m := range []map[string]bool{s.started, s.ended} {
		for id := range m {
			if !present[id] {
				delete(m, id)
			}
		}
	}
}

func (p *Pods) began(s *seenPod, kind containerType, id string, at time.Time) {
	if id == "" || s.started[id] || at.IsZero() {
		return
	}
	s.started[id] = true
	if !at.Before(p.Started.Truncate(time.Second)) {
		p.counts.startedContainers.WithLabelValues(string(kind)).Inc()
	}
}
