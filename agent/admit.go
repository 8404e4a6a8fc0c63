package agent

import (
	"context"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"berth/internal/host/cgroups"
	"berth/internal/pod"
	"berth/internal/sync/admission"
)

// newAdmission builds the admission chain. resized gets the pods whose pending resize was decided
// again.
func newAdmission(g *dependencies, n podNeeds, resized *pod.Inbox[pod.UID], in lifeInputs) *admission.Chain {
	c := admission.Config{
		Handlers: admission.Handlers(),
		Ready:    in.pleg.Relisted(), Pods: g.stores.pods, States: g.stores.states, Observed: in.pleg,
		Ended: g.stores.hasEnded,
		Reject: func(refused *v1.Pod, why admission.Rejection) {
			g.recorder.Event(refused, "", v1.EventTypeWarning, why.Reason, why.Message)
			g.stores.status.Set(refused, v1.PodStatus{
				Phase: v1.PodFailed, Reason: why.Reason, Message: "Pod was rejected: " + why.Message, QOSClass: cgroups.QOSClass(refused),
			})
		},
		Node: in.node.Current, Wake: resized.Put,
		Assigner: in.shared, Devices: in.shared.Available,
		Allocations: n.allocations, Event: g.recorder.Event, Journal: g.journal, Metrics: g.out.Metrics,
	}
	kernel := sync.OnceValue(func() string { return readMachine(&g.base).Kernel })
	hasAppArmor := sync.OnceValue(func() bool { return admission.HasAppArmor("/") })
	c.Facts = func() admission.Facts {
		f := g.settings.admission
		f.Pressure, f.ShuttingDown, f.TakesClaims = g.stores.pressures.Conditions(), g.stores.shutdown.ShuttingDown(), in.shared.Claims != nil
		f.Unlabelled = g.cfg.RuntimeEndpoint == "" && !g.cfg.SELinux
		f.AppArmor, f.LimitedSwap, f.Kernel, f.SupplementalGroupsPolicy = hasAppArmor(), g.resources.Containers.LimitedSwap, kernel(), in.runtime.facts.hasStrictGroups()
		if features := in.runtimeState().Features; features != nil {
			f.SupplementalGroupsPolicy = ptr.Deref(features.SupplementalGroupsPolicy, false)
		}
		return f
	}
	// Schedulers rely on preemption. On a standalone node, a manifest must not terminate other
	// pods.
	c.Preempt = g.api.isCluster()
	c.Refresh = func(ctx context.Context) error {
		newest, err := g.api.client.GetNode(ctx, g.cfg.NodeName)
		if err == nil {
			g.api.current.Observe(newest)
		}
		return err
	}
	return admission.New(c)
}

// resizeWhenListed decides about pending resizes after the first list of the runtime's pods.
func (l *podLife) resizeWhenListed(ctx context.Context) error {
	select {
	case <-l.listed:
		l.admit.NodeChanged()
	case <-ctx.Done():
	}
	return waitDone(ctx)
}
