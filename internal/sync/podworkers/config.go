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

// PodSyncer runs one pass over one pod. A method may be called again after any outcome; calls for
// one pod never overlap. The context is cancelled when the agent stops or when the pod is to
// terminate or to terminate sooner; a pass then returns between two steps.
type PodSyncer interface {
	// SyncPod brings the pod closer to its spec.
	SyncPod(ctx context.Context, r podsync.Request) (podsync.Result, error)
	// SyncTerminatingPod stops every container and the sandbox; nil means that nothing of the pod
	// is running. Request.Pod is nil for a pod that exists only in the runtime.
	SyncTerminatingPod(ctx context.Context, r podsync.Request) error
	// SyncTerminatedPod releases the pod's volumes and cgroup. Containers and logs remain for
	// inspection.
	SyncTerminatedPod(ctx context.Context, r podsync.Request) error
	// RemovePod removes the rest: containers, sandboxes, logs, directories, the status.
	RemovePod(ctx context.Context, r podsync.Request) error
}

// Observer is the workers' view of PLEG.
type Observer interface {
	Observe(ctx context.Context, uid pod.UID, after pod.Reading) (*pod.Status, error)
	BeginReading() pod.Reading
	Hold(uid pod.UID) (release func() (missed bool))
}

// Admitter decides whether a pod may start, and stores the resources of admitted pods.
type Admitter interface {
	// Admit decides about one pod at a time, in order of arrival. It records a rejection; the
	// rejected pod's worker terminates it. After a verdict with Later, Admit is called again once
	// that channel is closed, and before any other pod. The only error is that of ctx.
	Admit(ctx context.Context, p *v1.Pod) (admission.Verdict, error)
	// Adopt is called for a pod that runs already.
	Adopt(p *v1.Pod)
	// Forget is called for a pod whose worker exits.
	Forget(uid pod.UID)
	// Retain is called with all known pods.
	Retain(known map[pod.UID]bool)
}

// Resizer tracks the resources of admitted pods. No method blocks.
type Resizer interface {
	// Resize returns the running pod with its current allocation, after deciding about a resize
	// that its spec requests.
	Resize(p *v1.Pod) *v1.Pod
	// Allocated returns the terminating pod with its allocation.
	Allocated(p *v1.Pod) *v1.Pod
	// RetryPending is called when a pod has terminated.
	RetryPending()
}

// Config holds the dependencies of the workers.
type Config struct {
	Syncer   PodSyncer
	Observer Observer
	Admitter Admitter
	Resizer  Resizer
	// Evicted returns the grace period, in seconds, of an eviction that an earlier agent began, and
	// false for other pods. It must not block.
	Evicted func(uid pod.UID) (grace int64, ok bool)
	// Unobserved is called for a pod that could not be observed. It must not block.
	Unobserved func(p *v1.Pod, err error)
	States     *pod.States
	Tracer     *span.Tracer // of passes; nil: no tracing
	Journal    *journal.Journal
	Log        *slog.Logger
	// Metrics is the registry; nil: metrics are not registered.
	Metrics prometheus.Registerer
}
