package podsync

import (
	"context"
	"errors"

	v1 "k8s.io/api/core/v1"

	"berth/internal/pod"
	"berth/internal/resources/dra"
	"berth/internal/resources/topologymanager"
)

// Resources (containerManager) manages a pod's exclusive resources: devices, CPUs, memory, claims.
type Resources interface {
	// PrepareDevices calls the device plugins to prepare the pod's devices; it blocks until they
	// return. A *topologymanager.Refusal is permanent: the pod can never have the devices.
	PrepareDevices(ctx context.Context, p *v1.Pod) error
	// PrepareClaims calls the DRA drivers to prepare the pod's claims for a new sandbox.
	PrepareClaims(ctx context.Context, p *v1.Pod) error
	// Finish releases all resources of the pod, of which nothing is running. It is idempotent.
	Finish(ctx context.Context, uid pod.UID) error
	// Health returns the health of the devices of the pod's containers, by container name
	// (KEP-4680).
	Health(p *v1.Pod) map[string][]v1.ResourceStatus
}

// prepareDevices prepares the pod's devices. A pod that has containers continues without devices
// that a plugin refuses: its other containers do not need them.
func (p *syncPass) prepareDevices(ctx context.Context) error {
	err := p.syncer.Resources.PrepareDevices(ctx, p.Pod)
	var refused *topologymanager.Refusal
	if errors.As(err, &refused) && len(p.Observed.Containers) == 0 {
		return p.reject(ctx, refused.Reason, refused.Message)
	}
	return err
}

// prepareClaims prepares the pod's claims if a sandbox is about to be created.
func (p *syncPass) prepareClaims(ctx context.Context) error {
	if p.Observed.ReadySandbox() != nil {
		return nil
	}
	err := p.syncer.Resources.PrepareClaims(ctx, p.Pod)
	if err == nil {
		return nil
	}
	if ctx.Err() == nil {
		p.syncer.Event(p.Pod, "", v1.EventTypeWarning, dra.EventReason, dra.EventMessage+err.Error())
	}
	return err
}
