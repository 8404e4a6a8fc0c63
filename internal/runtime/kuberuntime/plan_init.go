package kuberuntime

import (
	"slices"

	v1 "k8s.io/api/core/v1"

	"berth/internal/pod"
	"berth/internal/pod/lifecycle"
)

// initSteps is the part of a plan for init containers and sidecars.
type initSteps struct {
	Kill  []killAction
	Start []startAction
	// Initialized: the regular containers may be started.
	Initialized bool
	// KillPod: an init container failed for good.
	KillPod bool
	Why     string
}

// planInit plans init containers and sidecars, last to first: the furthest one that was reached
// determines the pod's progress. Sidecars before it keep running; plain ones before it are done.
func planInit(in planInput) initSteps {
	p, s := in.Pod, in.Observed
	inits := p.Spec.InitContainers
	if len(inits) == 0 {
		return initSteps{Initialized: true}
	}
	st := initSteps{Initialized: lifecycle.HasInitialized(p, s)}
	reached := st.Initialized
	for i := len(inits) - 1; i >= 0 && !st.KillPod; i-- {
		c := &inits[i]
		cs := s.FindContainer(c.Name)
		sidecar := lifecycle.IsSidecar(c)
		switch {
		case !sidecar && reached:
		case cs == nil && sidecar && reached:
			st.start(c, cs)
		case cs == nil:
			if i == 0 {
				st.Start = append(st.Start, startAction{c.Name, "first init container"})
			}
			continue // an earlier one decides
		case sidecar:
			if st.sidecar(in, c, cs) && !reached {
				st.next(inits, i)
			}
		default:
			if st.plain(in, c, cs) {
				st.next(inits, i)
			}
		}
		reached = true
	}
	slices.Reverse(st.Start)
	return st
}

// next continues after init container i, which is done or, if a sidecar, has started.
func (st *initSteps) next(inits []v1.Container, i int) {
	if i == len(inits)-1 {
		st.Initialized = true
		return
	}
	why := "init container " + inits[i].Name + " is done"
	if lifecycle.IsSidecar(&inits[i]) {
		why = "sidecar " + inits[i].Name + " has started"
	}
	st.Start = append([]startAction{{inits[i+1].Name, why}}, st.Start...) // the list is reversed, and this one follows all of it
}

func (st *initSteps) start(c *v1.Container, cs *pod.ContainerStatus) {
	st.Start = append(st.Start, startAction{c.Name, whyStart(cs)})
}

func (st *initSteps) restart(k killAction, why string) {
	st.Kill = append(st.Kill, k)
	st.Start = append(st.Start, startAction{k.Name, why})
}

// sidecar plans a sidecar that has a container and reports whether the following containers may
// start.
func (st *initSteps) sidecar(in planInput, c *v1.Container, cs *pod.ContainerStatus) (started bool) {
	switch cs.State {
	case pod.StateCreated, pod.StateExited: // restarted whatever its exit code
		st.start(c, cs)
		return false
	case pod.StateUnknown:
		st.restart(unknownInit(c, cs), whyStart(cs))
		return false
	}
	started = c.StartupProbe == nil || in.Probes.Startup[cs.ID] == pod.ProbeSuccess
	if k, why := judgeRunning(in, c, cs, "Init container "); why != "" {
		st.restart(k, why)
	}
	return started
}

// plain plans the init container that the pod is at and reports whether it is done.
func (st *initSteps) plain(in planInput, c *v1.Container, cs *pod.ContainerStatus) (done bool) {
	p := in.Pod
	switch {
	case cs.State == pod.StateRunning && resizeRestarts(in, c):
		st.restart(killAction{cs.ID, c.Name, killOther, "Container " + c.Name + " resize requires restart, will be restarted"}, "its resources changed and its resizePolicy is RestartContainer")
	case cs.State == pod.StateRunning:
	case cs.State == pod.StateCreated:
		st.start(c, cs)
	case cs.State == pod.StateUnknown && lifecycle.RestartPolicy(p, c) == v1.RestartPolicyNever:
		st.KillPod, st.Why = true, "the state of init container "+c.Name+" is unknown and it must not be restarted"
	case cs.State == pod.StateUnknown:
		st.restart(unknownInit(c, cs), whyStart(cs))
	case !lifecycle.InitFailed(cs):
		return true
	case lifecycle.ShouldStart(p, c, cs):
		st.start(c, cs)
	default:
		st.KillPod, st.Why = true, "init container "+c.Name+" failed and must not be restarted: "+whyStart(cs)
	}
	return false
}

func unknownInit(c *v1.Container, cs *pod.ContainerStatus) killAction {
	return killAction{cs.ID, c.Name, killOther, "Init container " + c.Name + " is in an unknown state, will be restarted"}
}
