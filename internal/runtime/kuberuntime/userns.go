package kuberuntime

import (
	"fmt"

	v1 "k8s.io/api/core/v1"

	"berth/internal/pod"
	"berth/internal/runtime/crispec"
	"berth/internal/runtime/userns"
)

// UserNamespaces allocates a range of host user IDs per pod.
type UserNamespaces interface {
	// Allocate returns the pod's range, which is stable until it is released. It does not block.
	Allocate(uid pod.UID) (userns.Range, error)
	// Release releases the pod's range, if it has one. Idempotent.
	Release(uid pod.UID) error
}

// hostUsers returns the pod's host user ID range, nil for a pod without a user namespace.
func hostUsers(ranges UserNamespaces, p *v1.Pod) (*userns.Range, error) {
	if !crispec.HasUserNamespace(p) {
		return nil, nil
	}
	ids, err := ranges.Allocate(p.UID)
	if err != nil {
		return nil, fmt.Errorf("user namespace: %w", err)
	}
	return &ids, nil
}
