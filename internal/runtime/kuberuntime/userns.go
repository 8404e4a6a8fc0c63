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

// userNamespaces are the ranges of pods; if ranges is nil, none can be allocated.
type userNamespaces struct{ ranges UserNamespaces }

// of returns the pod's host user ID range, nil for a pod without a user namespace.
func (u *userNamespaces) of(p *v1.Pod) (*userns.Range, error) {
	if !crispec.HasUserNamespace(p) || u.ranges == nil {
		return nil, nil
	}
	ids, err := u.ranges.Allocate(p.UID)
	if err != nil {
		return nil, fmt.Errorf("user namespace: %w", err)
	}
	return &ids, nil
}

func (u *userNamespaces) release(uid pod.UID) error {
	if u.ranges == nil {
		return nil
	}
	return u.ranges.Release(uid)
}
