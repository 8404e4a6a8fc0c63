package kuberuntime

import (
	"fmt"

	v1 "k8s.io/api/core/v1"

	"berth/internal/pod"
	"berth/internal/runtime/crispec"
	"berth/internal/runtime/userns"
)

// UserNamespaces gives each pod a range of the host's user ids.
type UserNamespaces interface {
	// Allocate returns the pod's range; it is the same one each time until it is released. It does
	// not wait.
	Allocate(uid pod.UID) (userns.Range, error)
	// Release gives the pod's range back, if it has one. Idempotent.
	Release(uid pod.UID) error
}

// userNamespaces are the ranges of pods; none can be had when ranges is nil.
type userNamespaces struct{ ranges UserNamespaces }

// of returns the host's ids for the pod's user namespace, nil for a pod without one.
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
