package podsync

import (
	"context"
	"errors"

	v1 "k8s.io/api/core/v1"

	"berth/internal/pod"
	"berth/internal/resources/dra"
	"berth/internal/resources/topologymanager"
)

// Resources (containerManager) is what of the node is the pod's alone: devices, CPUs, memory,
// claims.
type Resources interface {
	// PrepareDevices has the plugins make ready what the pod was assigned, which may last as long
	// as they take. A *topologymanager.Refusal says why the pod can never have it.
	PrepareDevices(ctx context.Context, p *v1.Pod) error
	// PrepareClaims has the drivers make the pod's claims ready for a new sandbox.
	PrepareClaims(ctx context.Context, p *v1.Pod) error
	// Finish gives back all that the pod has. Nothing of it runs any more. Idempotent.
	Finish(ctx context.Context, uid pod.UID) error
	// Health returns what is known of the devices of the pod's containers, by their names
	// (KEP-4680).
	Health(p *v1.Pod) map[string][]v1.ResourceStatus
}

// nothingShared stands for a node that shares nothing out.
type nothingShared struct{}

func (nothingShared) PrepareDevices(context.Context, *v1.Pod) error   { return nil }
func (nothingShared) PrepareClaims(context.Context, *v1.Pod) error    { return nil }
func (nothingShared) Finish(context.Context, pod.UID) error           { return nil }
func (nothingShared) Health(p *v1.Pod) map[string][]v1.ResourceStatus { return nil }

// prepareDevices has the devices of the pod made ready. A pod of which something runs goes on
// without those that its plugin refuses: its other containers need them not.
func (p *pass) prepareDevices(ctx context.Context) error {
	err := p.syncer.Resources.PrepareDevices(ctx, p.Pod)
	var refused *topologymanager.Refusal
	if errors.As(err, &refused) && len(p.Observed.Containers) == 0 {
		p.reject(ctx, refused.Reason, refused.Message)
		return nil
	}
	return err
}

// prepareClaims has the pod's claims made ready, for a sandbox that is about to be made.
func (p *pass) prepareClaims(ctx context.Context) error {
	if p.Observed.ReadySandbox() != nil {
		return nil
	}
	err := p.syncer.Resources.PrepareClaims(ctx, p.Pod)
	if err == nil {
		return nil
	}
	if ctx.Err() == nil {
		p.event(v1.EventTypeWarning, dra.EventReason, dra.EventMessage+err.Error())
	}
	return err
}

// finishResources gives back what the pod had alone, before its last status says that it is over:
// what follows it needs just that.
func (p *pass) finishResources(ctx context.Context) error {
	return p.syncer.Resources.Finish(ctx, p.UID)
}
