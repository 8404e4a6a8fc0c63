package podworkers

import (
	"context"
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"

	"berth/internal/pod"
	"berth/internal/record/journal"
	"berth/internal/record/span"
	"berth/internal/sync/admission"
	"berth/internal/sync/podsync"
)

// PodSyncer is one pass over one pod. A method may be called again after any outcome; calls for one
// pod never overlap. The context ends when the agent stops or when a stronger wish for the pod has
// arrived; a pass then returns between two steps.
type PodSyncer interface {
	// SyncPod brings the pod nearer to its spec.
	SyncPod(ctx context.Context, r podsync.Request) (podsync.Result, error)
	// SyncTerminatingPod stops every container and the sandbox; nil means that nothing of the pod
	// runs any more. Request.Pod is nil for a pod that only the runtime knows.
	SyncTerminatingPod(ctx context.Context, r podsync.Request) error
	// SyncTerminatedPod frees what the running pod held: volumes, cgroup. Containers and logs stay
	// for inspection.
	SyncTerminatedPod(ctx context.Context, r podsync.Request) error
	// RemovePod removes what is left: containers, sandboxes, logs, folders, the status.
	RemovePod(ctx context.Context, r podsync.Request) error
}

// Observer is PLEG as the workers see it.
type Observer interface {
	Observe(ctx context.Context, uid pod.UID, after pod.Reading) (*pod.Status, error)
	BeginReading() pod.Reading
	Hold(uid pod.UID) (release func() (missed bool))
}

// Admitter decides whether a pod may start, and remembers what it was admitted with.
type Admitter interface {
	// Admit records the refusal of a pod that may not start; such a pod's worker ends. It is asked
	// about one pod at a time, in the order in which they came. A verdict of Later is asked for
	// again when its channel is closed, and before any other pod's. The only error is that of ctx.
	Admit(ctx context.Context, p *v1.Pod) (admission.Verdict, error)
	// Adopt is called with a pod that runs already.
	Adopt(p *v1.Pod)
	// Forget is called with a pod whose worker leaves.
	Forget(uid pod.UID)
	// Retain is called with all pods that there are.
	Retain(known map[pod.UID]bool)
}

// Resizer says which resources admitted pods have. No method blocks.
type Resizer interface {
	// Resize returns the pod, which is to run, with the resources that it is to have now, and has
	// decided whether these are those of its spec.
	Resize(p *v1.Pod) *v1.Pod
	// Allocated returns the pod, which is to end, with the resources that it was given.
	Allocated(p *v1.Pod) *v1.Pod
	// RetryPending is called when a pod has ended.
	RetryPending()
}

// Config is what the workers need.
type Config struct {
	Syncer   PodSyncer
	Observer Observer
	Admitter Admitter
	Resizer  Resizer
	// Evicted returns how many seconds the eviction of a pod grants it that an earlier agent began,
	// and false of another pod. It does not block. nil: there was none.
	Evicted func(uid pod.UID) (grace int64, ok bool)
	// Unobserved is told of a pod that could not be observed. It does not block. nil: nobody is.
	Unobserved func(p *v1.Pod, err error)
	States     *pod.States
	Tracer     *span.Tracer // of passes; nil: nobody traces
	Journal    *journal.Journal
	Log        *slog.Logger
	// Metrics is where metrics are registered; nil: nowhere.
	Metrics prometheus.Registerer
}
