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
	// hardGrace is the grace period, in seconds, of a pod that exceeds a limit of local storage, or
	// that is evicted for a hard threshold.
	hardGrace = 1
	// killLimit is the minimum time to wait for an evicted pod to terminate.
	killLimit = 10 * time.Second
)

// PodKiller terminates pods.
type PodKiller interface {
	// EvictPod terminates the pod permanently with a grace period in seconds; status is applied to
	// its final status. For a pod that is being evicted, the shorter grace period applies, and a
	// nil status changes nothing. It never blocks. done is closed when no container of the pod is
	// running.
	EvictPod(p *v1.Pod, grace int64, status func(*v1.PodStatus), done chan<- struct{})
}

// Events records events of pods and the node. It does not block.
type Events interface {
	AnnotatedEvent(p *v1.Pod, annotations map[string]string, eventtype, reason, message string)
	NodeEvent(eventtype, reason, message string)
}

// EvictorConfig holds the dependencies of an Evictor.
type EvictorConfig struct {
	Killer PodKiller
	Events Events
	// IsCritical reports whether the pod must never be evicted.
	IsCritical func(p *v1.Pod) bool
	// Metrics is the registry; nil: metrics are not registered.
	Metrics prometheus.Registerer
	Journal *journal.Journal
	Log     *slog.Logger
}

// Evictor evicts single pods on behalf of the managers that choose them.
type Evictor struct {
	EvictorConfig
	metrics *metrics
}

// NewEvictor returns an Evictor. It starts nothing.
func NewEvictor(cfg EvictorConfig) *Evictor { return &Evictor{cfg, newMetrics(cfg.Metrics)} }

type order struct {
	signal  Signal
	grace   int64  // seconds
	message string // of the status and of the event
	why     string // of the journal
	// annotations are the event's; condition is added to the status unless it is nil.
	annotations map[string]string
	condition   *v1.PodCondition
}

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

// ended reports whether no container of the pod is running.
func (k *kill) ended() bool {
	select {
	case <-k.done:
		return true
	default:
		return false
	}
}

// begin evicts the pod without waiting; see await.
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

// setCondition sets the condition, replacing one of its type.
func setCondition(s *v1.PodStatus, c v1.PodCondition) {
	for i := range s.Conditions {
		if s.Conditions[i].Type == c.Type {
			s.Conditions[i] = c
			return
		}
	}
	s.Conditions = append(s.Conditions, c)
}

// await waits until no container of the pod is running, or the time is over.
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

// shortenGrace shortens the grace period of an evicted pod to that of a hard threshold.
func (e *Evictor) shortenGrace(p *v1.Pod, s Signal, why string) *kill {
	e.note(p, "shorten the grace period of the eviction", why)
	k := newKill(p, s, hardGrace)
	e.Killer.EvictPod(p, hardGrace, nil, k.done)
	return k
}

// exceeded records an event that the pod did not terminate in time.
func (e *Evictor) exceeded(k *kill) {
	e.Events.AnnotatedEvent(k.pod, nil, v1.EventTypeWarning, exceededGracePeriod, exceededGracePeriodMessage)
}

func (e *Evictor) note(p *v1.Pod, decision, why string) {
	e.Journal.Record(journal.Entry{
		Subject:   journal.Subject{UID: p.UID, Namespace: p.Namespace, Name: p.Name},
		Component: "eviction", Decision: decision, Why: why,
	})
}
