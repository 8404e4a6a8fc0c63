package agent

import (
	"context"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"berth/internal/admission"
	"berth/internal/cgroups"
	"berth/internal/events"
	"berth/internal/node"
	"berth/internal/pod"
)

// killer ends pods to make room for others; the workers are built after the admission chain, which they ask.
type killer struct{ a *Agent }

// KillPod evicts a pod.
func (k killer) KillPod(p *v1.Pod, status func(*v1.PodStatus), done chan<- struct{}) {
	k.a.workers.KillPod(p, status, done)
}

// admission returns what the admission chain is built from.
func (a *Agent) admission(states *pod.States, recorder *events.Recorder) admission.Config {
	kernel := sync.OnceValue(func() string { return a.readMachine().Kernel })
	c := admission.Config{
		Handlers: admission.Handlers(),
		Ready:    a.pleg.Relisted(), Pods: a.pods, States: states, Observed: a.pleg,
		Ended: a.hasEnded,
		Reject: func(p *v1.Pod, r admission.Rejection) {
			recorder.Event(p, "", v1.EventTypeWarning, r.Reason, r.Message)
			a.status.Set(p, v1.PodStatus{Phase: v1.PodFailed, Reason: r.Reason, Message: "Pod was rejected: " + r.Message, QOSClass: cgroups.QOSClass(p)})
		},
		Wake:        func(uid pod.UID) { a.workers.WakePod(uid) },
		Allocations: a.allocations, Event: recorder.Event, Journal: a.journal, Metrics: a.out.Metrics,
	}
	c.Node = a.currentNode
	hasAppArmor := sync.OnceValue(func() bool { return admission.HasAppArmor("/") })
	c.Facts = func() admission.Facts {
		f := admission.Facts{AppArmor: hasAppArmor(), LimitedSwap: a.resources.limitedSwap(), Kernel: kernel(), SupplementalGroupsPolicy: a.facts.hasStrictGroups()}
		if m := a.member; m != nil {
			f.AllowedUnsafeSysctls, f.DeclaredFeatures = m.conf.AllowedUnsafeSysctls, declaredFeatures(m.conf)
			f.PodLevelResizeOff = !a.cfg.Kubelet.FeatureEnabled("InPlacePodLevelResourcesVerticalScaling")
			if features := m.health.State().Features; features != nil {
				f.SupplementalGroupsPolicy = ptr.Deref(features.SupplementalGroupsPolicy, false)
			}
		}
		return f
	}
	if m := a.member; m != nil && m.api != nil {
		c.Refresh = func(ctx context.Context) error {
			n, err := m.api.client.GetNode(ctx, a.cfg.NodeName)
			if err == nil {
				m.api.node.Observe(n)
			}
			return err
		}
		c.Killer = killer{a}
		return c
	}
	return c
}

// resizeWhenListed decides about resizes once it is known what runs.
func (a *Agent) resizeWhenListed(ctx context.Context) error {
	select {
	case <-a.pleg.Relisted():
		a.admit.NodeChanged()
	case <-ctx.Done():
	}
	return waitDone(ctx)
}

// newLocalNode describes this machine as a Node.
func (a *Agent) newLocalNode() *v1.Node {
	m := a.readMachine()
	n := admission.LocalMachine{Name: a.cfg.NodeName, CPUs: m.CPUs, Memory: m.Memory, Storage: m.Storage, HugePages: m.HugePages, MaxPods: a.cfg.MaxPods}
	if k := a.cfg.Kubelet; k != nil {
		n.Labels, n.MaxPods = k.NodeLabels, int(k.MaxPods)
	}
	out := admission.LocalNode(n)
	if a.cfg.Kubelet != nil {
		out.Status.Capacity, out.Status.Allocatable = a.resources.capacity, a.resources.allocatable
	}
	return out
}

// allocatable returns what the node has for pods, nil while it is not known.
func (a *Agent) allocatable() v1.ResourceList {
	if m := a.member; m == nil || m.api == nil {
		return a.localNode().Status.Allocatable
	}
	if n := a.member.api.node.Node(); n != nil {
		return n.Status.Allocatable
	}
	return nil
}

// readMachine reads the machine; what could not be read is zero.
func (a *Agent) readMachine() node.Machine {
	read := a.out.Machine
	if read == nil {
		read = node.Host{Root: "/", Dir: a.cfg.RootDir}.Read
	}
	m, err := read()
	if err != nil {
		a.cfg.Log.Warn("not all of the machine could be read; pods that ask for what is not known are refused", "error", err)
	}
	return m
}

// loaded is readiness that is reached by reading something from the disk.
func loaded(load func()) func(context.Context) error {
	return func(context.Context) error {
		load()
		return nil
	}
}
