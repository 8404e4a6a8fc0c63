package pod

import v1 "k8s.io/api/core/v1"

// PodOperation is the type of a PodUpdate.
type PodOperation int

// The operations that PodConfig's merge returns.
const (
	ADD PodOperation = iota
	UPDATE
	DELETE // graceful: deletionTimestamp is set
	REMOVE // the pod was removed from its source
	RECONCILE
)

func (o PodOperation) String() string {
	return [...]string{"ADD", "UPDATE", "DELETE", "REMOVE", "RECONCILE"}[o]
}

// PodUpdate is one change of desired pods of one source. An ADD without pods reports that the
// source has been read.
type PodUpdate struct {
	Pods   []*v1.Pod
	Op     PodOperation
	Source Source
}
