package pod

import v1 "k8s.io/api/core/v1"

// PodOperation says what a PodUpdate asks for.
type PodOperation int

// The operations that PodConfig's merge gives the loop.
const (
	ADD PodOperation = iota
	UPDATE
	DELETE // graceful: deletionTimestamp is set
	REMOVE // the pod is gone from its source
	RECONCILE
)

func (o PodOperation) String() string {
	return [...]string{"ADD", "UPDATE", "DELETE", "REMOVE", "RECONCILE"}[o]
}

// PodUpdate is one change of desired pods from one source. An ADD without pods says that the source
// has been heard.
type PodUpdate struct {
	Pods   []*v1.Pod
	Op     PodOperation
	Source Source
}
