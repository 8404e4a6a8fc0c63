package eviction

import (
	"context"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"

	"berth/internal/pod/lifecycle"
	"berth/internal/record/journal"
)

const (
	// hardGrace is how long, in seconds, containers of a pod may take that exceeds a limit of local
	// storage, or that a hard threshold ends.
	hardGrace = 1
	// killLimit is how long the end of an evicted pod is waited for at least.
	killLimit = 10 * time.Second
)

// PodKiller ends pods.
type PodKiller interface {
	// EvictPod ends the pod for good, within so many seconds; status is applied to its final
	// status. For a pod that is being evicted the shorter grace counts, and nil is the status that
	// it has. It never blocks. When no container of the pod runs any more, done is closed.
	EvictPod(p *v1.Pod, grace int64, status func(*v1.PodStatus), done chan<- struct{})
}

// Events records what happens to pods and to the node. It does not block.
type Events interface {
	AnnotatedEvent(p *v1.Pod, annotations map[string]string, eventtype, reason, message string)
	NodeEvent(eventtype, reason, message string)
}

// EvictorConfig is what an Evictor needs.
type EvictorConfig struct {
	Killer PodKiller
	Events Events
	// IsCritical reports whether the pod is never evicted.
	IsCritical func(p *v1.Pod) bool
	// Metrics is where metrics are registered; nil: nowhere.
	Metrics prometheus.Registerer
	Journal *journal.Journal
	Log     *slog.Logger
}

// Evictor evicts single pods, for whoever has decided so.
type Evictor struct {
	EvictorConfig
	metrics *metrics
}

// NewEvictor returns an Evictor. It does nothing by itself.
func NewEvictor(cfg EvictorConfig) *Evictor { return &Evictor{cfg, newMetrics(cfg.Metrics)} }

// order is what is decided about a pod.
type order struct {
	signal  Signal
	grace   int64  // seconds
	message string // of the status and of the event
	why     string // of the journal
	// annotations are the event's; condition is added to the status unless it is nil.
	annotations map[string]string
	condition   *v1.PodCondition
}

// kill is a pod that is being evicted.
type kill struct {
	pod    *v1.Pod
	signal Signal
	done   chan struct{}
	until  time.Time
}

func newKill(p *v1.Pod, s Signal, grace int64) *kill {
	limit := max(killLimit, time.Duration(grace)*time.Second*3/2)
	return &kill{pod: p, signal: s, done: make(chan struct{}), until: time.Now().Add(limit)}
}

// ended reports whether no container of the pod runs any more.
func (k *kill) ended() bool {
	select {
	case <-k.done:
		return true
	default:
		return false
	}
}

// begin evicts the pod. Its end is waited for by await.
func (e *Evictor) begin(p *v1.Pod, o *order) *kill {
	e.note(p, "evict the pod", o.why)
	e.Events.AnnotatedEvent(p, o.annotations, v1.EventTypeWarning, lifecycle.Evicted, o.message)
	e.metrics.evictions.WithLabelValues(string(o.signal)).Inc()
	k := newKill(p, o.signal, o.grace)
	e.Killer.EvictPod(p, o.grace, func(s *v1.PodStatus) {
		s.Phase, s.Reason, s.Message = v1.PodFailed, lifecycle.Evicted, o.message
		if o.condition != nil {
			setCondition(s, *o.condition)
		}
	}, k.done)
	return k
}

// setCondition replaces the condition of its type.
func setCondition(s *v1.PodStatus, c v1.PodCondition) {
	for i := range s.Conditions {
		if s.Conditions[i].Type == c.Type {
			s.Conditions[i] = c
			return
		}
	}
	s.Conditions = append(s.Conditions, c)
}

// await waits until no container of the pod runs any more, within bounds.
func (e *Evictor) await(ctx context.Context, k *kill) {
	limit := time.NewTimer(time.Until(k.until))
	defer limit.Stop()
	select {
	case <-k.done:
	case <-ctx.Done():
	case <-limit.C:
		e.exceeded(k)
	}
}

// hasten shortens the grace of a pod that is being evicted to that of a hard threshold.
func (e *Evictor) hasten(p *v1.Pod, s Signal, why string) *kill {
	e.note(p, "shorten the grace period of the eviction", why)
	k := newKill(p, s, hardGrace)
	e.Killer.EvictPod(p, hardGrace, nil, k.done)
	return k
}

// exceeded tells that the pod has not ended in time.
func (e *Evictor) exceeded(k *kill) {
	e.Events.AnnotatedEvent(k.pod, nil, v1.EventTypeWarning, exceededGracePeriod, exceededGracePeriodMessage)
}

// note records a decision about the pod.
func (e *Evictor) note(p *v1.Pod, decision, why string) {
	e.Journal.Record(journal.Entry{
		Subject:   journal.Subject{UID: p.UID, Namespace: p.Namespace, Name: p.Name},
		Component: "eviction", Decision: decision, Why: why,
	})
}
