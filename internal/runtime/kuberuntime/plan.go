package kuberuntime

import (
	"fmt"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"

	"berth/internal/pod"
	"berth/internal/pod/lifecycle"
	"berth/internal/runtime/crispec"
)

// planInput is the complete input of a plan.
type planInput struct {
	Pod      *v1.Pod
	Observed *pod.Status
	Probes   pod.ProbeVerdicts
	// Actuated is the pod with the resources in effect; nil, or Pod itself, unless a resize is in
	// progress.
	Actuated *v1.Pod
	// Resources are the settings that container limits depend on.
	Resources crispec.ResourceSettings
	// ResizeAnew: the resize superseded an incomplete one; all values are written.
	ResizeAnew bool
	// ResizeHeld is when a failed resize is retried; zero if it need not wait.
	ResizeHeld time.Time
	// Holds are the active crash-loop back-offs, by container name.
	Holds map[string]lifecycle.Hold
	// Failed are the failed creations that are not to be retried yet: by container name, "" for the
	// sandbox.
	Failed map[string]creationFailure
}

// podActions is the plan of one pass over a running pod: computePodActions decides it and SyncPod
// executes it, in this order.
type podActions struct {
	// KillPod stops all containers and sandboxes first.
	KillPod bool
	// CreateSandbox creates a sandbox, numbered Attempt, which replaces Replaces if that is not
	// empty.
	CreateSandbox bool
	Attempt       uint32
	Replaces      pod.SandboxID
	// SandboxFailed is why a required sandbox is not created yet; nil if none is required or it is
	// created now.
	SandboxFailed *creationFailure
	// PurgeInit removes init containers of the old sandbox: a new sandbox starts with the first
	// one.
	PurgeInit bool
	// SandboxID is the sandbox for new containers if none is created.
	SandboxID pod.SandboxID
	// RestartAll are all incarnations of the pod's init and regular containers, to be stopped at
	// once and removed in this order, so that the pod restarts in its sandbox. The containers that
	// triggered it are last: while they exist, the restart is incomplete. Ephemeral containers are
	// stopped and retained: they are not started twice.
	RestartAll []removeAction
	Kill       []killAction
	// Resize: the pod is resized. Containers that keep running get their new limits, in
	// ResizeInPlace; others are created with them.
	Resize        bool
	ResizeInPlace []resizeAction
	Start         []startAction
	// Wait are containers to be started when their back-off expires.
	Wait []waitAction
	// Why the pod or the sandbox is replaced.
	Why string
}

type killAction struct {
	ID      pod.ContainerID
	Name    string
	Reason  killReason
	Message string
}

type resizeAction struct {
	ID   pod.ContainerID
	Name string
}

type removeAction struct {
	ID   pod.ContainerID
	Name string
}

type startAction struct {
	Name string
	Why  string
}

// waitAction is a start that is delayed by Hold or, if not nil, by Failed.
type waitAction struct {
	Name   string
	Why    string
	Hold   lifecycle.Hold
	Failed *creationFailure
	// Ends: it is running and stopped first. Its back-off counts from its exit, which is not known
	// yet: Hold.Until is that of the previous incarnation.
	Ends bool
}

func (a *podActions) empty() bool {
	return !a.KillPod && !a.CreateSandbox && a.SandboxFailed == nil && !a.Resize && len(a.RestartAll)+len(a.Kill)+len(a.Start)+len(a.Wait) == 0
}

// String returns the plan as one line of the journal.
func (a *podActions) String() string {
	var parts []string
	if a.KillPod {
		parts = append(parts, "stop the pod")
	}
	if a.CreateSandbox {
		parts = append(parts, fmt.Sprintf("create sandbox %d", a.Attempt))
	}
	if f := a.SandboxFailed; f != nil {
		parts = append(parts, fmt.Sprintf("create sandbox %d %s", a.Attempt, f))
	}
	if len(a.RestartAll) > 0 {
		names := make([]string, len(a.RestartAll))
		for i, k := range a.RestartAll {
			names[i] = k.Name
		}
		parts = append(parts, "restart all containers: remove "+strings.Join(names, ", "))
	}
	for _, k := range a.Kill {
		parts = append(parts, "stop "+k.Name+" ("+k.Message+")")
	}
	if a.Resize {
		parts = append(parts, "resize the pod")
	}
	for _, r := range a.ResizeInPlace {
		parts = append(parts, "resize "+r.Name+" in place")
	}
	for _, s := range a.Start {
		parts = append(parts, "start "+s.Name+" ("+s.Why+")")
	}
	for _, w := range a.Wait {
		when := fmt.Sprintf("at %s, when its back-off of %s has ended", w.Hold.Until.Format(time.TimeOnly), w.Hold.Delay)
		switch {
		case w.Failed != nil:
			when = w.Failed.String()
		case w.Ends:
			when = fmt.Sprintf("%s after it has stopped, when its back-off has ended", w.Hold.Delay)
		}
		parts = append(parts, fmt.Sprintf("start %s (%s) %s", w.Name, w.Why, when))
	}
	if len(parts) == 0 {
		return "nothing to do"
	}
	return strings.Join(parts, ", ")
}

// computePodActions plans what brings the observed pod closer to its spec. It is pure.
func computePodActions(in planInput) podActions {
	if in.Pod.DeletionTimestamp != nil {
		return podActions{Why: "the pod is being deleted"} // another pass terminates it
	}
	var a podActions
	if d := lifecycle.NeedsNewSandbox(in.Pod, in.Observed); d.Create {
		a = planNewSandbox(in.Pod, in.Observed, d)
		a.holdSandbox(in)
	} else if triggers := lifecycle.RestartAllTriggers(in.Pod, in.Observed); len(triggers) > 0 {
		a = planRestartAll(in, triggers)
	} else {
		a = planRunningSandbox(in)
	}
	a.holdBack(in)
	a.planResize(in)
	return a
}

// planNewSandbox restarts the pod in a new sandbox, if any container is left to run.
func planNewSandbox(p *v1.Pod, s *pod.Status, d lifecycle.SandboxDecision) podActions {
	a := podActions{Attempt: d.Attempt, Replaces: d.OldID, Why: d.Why, KillPod: s.Active()}
	switch {
	case lifecycle.RegularEnded(p, s):
		a.Why += "; all containers have ended for good"
		return a
	case lifecycle.EndsWithSandbox(p, s):
		a.Why += "; restartPolicy is Never and containers have run"
		return a
	}
	for i := range p.Spec.Containers {
		c := &p.Spec.Containers[i]
		cs := s.FindContainer(c.Name)
		if cs != nil && cs.State == pod.StateExited && !lifecycle.ShouldStart(p, c, cs) {
			continue
		}
		a.Start = append(a.Start, startAction{Name: c.Name, Why: "new sandbox"})
	}
	a.CreateSandbox, a.PurgeInit = true, true
	a.KillPod = len(s.Sandboxes) > 0 // if not ready, too: only a stop releases the network
	if len(p.Spec.InitContainers) > 0 {
		a.Start = []startAction{{p.Spec.InitContainers[0].Name, "first init container"}}
	}
	return a
}

// planRunningSandbox continues in the pod's sandbox.
func planRunningSandbox(in planInput) podActions {
	p, s := in.Pod, in.Observed
	a := podActions{SandboxID: s.Sandboxes[0].ID}
	debug := planEphemeral(p, s)
	steps := planInit(in)
	if steps.KillPod {
		a.KillPod, a.Why = true, steps.Why
		return a
	}
	a.Kill, a.Start = steps.Kill, append(debug, steps.Start...)
	if !steps.Initialized {
		return a
	}
	kills, starts, running := planRegular(in)
	if running == 0 && len(starts) == 0 {
		// The sandbox is stopped with the last regular container; sidecars are not restarted.
		a.KillPod, a.Kill, a.Start = true, nil, nil
		a.Why = "no regular container runs or is to be started"
		for _, k := range kills {
			a.Why += "; " + k.Message
		}
		return a
	}
	a.Kill, a.Start = append(a.Kill, kills...), append(a.Start, starts...)
	return a
}

// planEphemeral starts ephemeral containers that were never started.
func planEphemeral(p *v1.Pod, s *pod.Status) []startAction {
	var starts []startAction
	for i := range p.Spec.EphemeralContainers {
		if name := p.Spec.EphemeralContainers[i].Name; s.FindContainer(name) == nil {
			starts = append(starts, startAction{name, "ephemeral container is new"})
		}
	}
	return starts
}

// planRegular checks each regular container of an initialized pod; running is the number of those
// that continue unchanged.
func planRegular(in planInput) (kills []killAction, starts []startAction, running int) {
	p, s := in.Pod, in.Observed
	for i := range p.Spec.Containers {
		c := &p.Spec.Containers[i]
		cs := s.FindContainer(c.Name)
		if cs == nil || cs.State != pod.StateRunning {
			if !lifecycle.ShouldStart(p, c, cs) {
				continue
			}
			if cs != nil && cs.State == pod.StateUnknown {
				kills = append(kills, killAction{cs.ID, c.Name, killOther, "Container " + c.Name + " is in an unknown state, will be restarted"})
			}
			starts = append(starts, startAction{c.Name, whyStart(cs)})
			continue
		}
		k, why := judgeRunning(in, c, cs, "Container ")
		if why == "" {
			running++
			continue
		}
		// A changed definition makes a new container, which no restart policy prevents.
		if k.Reason == killOther || lifecycle.RestartPolicy(p, c) != v1.RestartPolicyNever {
			k.Message += ", will be restarted"
			starts = append(starts, startAction{c.Name, why})
		}
		kills = append(kills, k)
	}
	return kills, starts, running
}

// judgeRunning returns why a running container must be stopped; "" if it continues. kind is the
// prefix of the user-visible message.
func judgeRunning(in planInput, c *v1.Container, cs *pod.ContainerStatus, kind string) (_ killAction, why string) {
	switch {
	case cs.Hash != "" && cs.Hash != lifecycle.ContainerHash(c):
		return killAction{cs.ID, c.Name, killOther, kind + c.Name + " definition changed"}, "definition changed"
	case in.Probes.Liveness[cs.ID] == pod.ProbeFailure:
		return killAction{cs.ID, c.Name, killLiveness, kind + c.Name + " failed liveness probe"}, "its liveness probe failed"
	case in.Probes.Startup[cs.ID] == pod.ProbeFailure:
		return killAction{cs.ID, c.Name, killStartup, kind + c.Name + " failed startup probe"}, "its startup probe failed"
	case resizeRestarts(in, c):
		return killAction{cs.ID, c.Name, killOther, "Container " + c.Name + " resize requires restart"}, "its resources changed and its resizePolicy is RestartContainer"
	}
	return killAction{}, ""
}

// planRestartAll removes every init and regular container, so that the next pass starts with the
// first init container.
func planRestartAll(in planInput, triggers []string) podActions {
	p, s := in.Pod, in.Observed
	a := podActions{SandboxID: s.Sandboxes[0].ID}
	triggered := map[string]bool{}
	for i, name := range triggers {
		triggered[name] = true
		if i > 0 {
			a.Why += ", "
		}
		a.Why += fmt.Sprintf("%s exited with code %d, for which a rule of it restarts all containers", name, s.FindContainer(name).ExitCode)
	}
	for _, isTrigger := range []bool{false, true} {
		for _, specs := range [][]v1.Container{p.Spec.Containers, p.Spec.InitContainers} {
			for i := range specs {
				if name := specs[i].Name; triggered[name] == isTrigger {
					a.RestartAll = append(a.RestartAll, removalsOf(s, name)...)
				}
			}
		}
	}
	return a
}

func removalsOf(s *pod.Status, name string) []removeAction {
	var out []removeAction
	for i := range s.Containers {
		if cs := &s.Containers[i]; cs.Name == name {
			out = append(out, removeAction{cs.ID, name})
		}
	}
	return out
}

// holdSandbox delays a new sandbox during the back-off of the last failure.
func (a *podActions) holdSandbox(in planInput) {
	failed, held := in.Failed[""]
	if !held || !a.CreateSandbox {
		return
	}
	*a = podActions{Why: a.Why, KillPod: in.Observed.Active(), Attempt: a.Attempt, SandboxFailed: &failed}
}

// holdBack turns starts with an active back-off into waits. Nothing starts before a plain init
// container that waits.
func (a *podActions) holdBack(in planInput) {
	starts := a.Start
	a.Start = nil
	for _, st := range starts {
		h, held := in.Holds[st.Name]
		failed, hasFailed := in.Failed[st.Name]
		switch {
		case held:
			cs := in.Observed.FindContainer(st.Name)
			a.Wait = append(a.Wait, waitAction{Name: st.Name, Why: st.Why, Hold: h, Ends: cs != nil && cs.State == pod.StateRunning})
		case hasFailed:
			a.Wait = append(a.Wait, waitAction{Name: st.Name, Why: st.Why, Failed: &failed})
		default:
			a.Start = append(a.Start, st)
			continue
		}
		if isPlainInit(in.Pod, st.Name) {
			return
		}
	}
}

func whyStart(cs *pod.ContainerStatus) string {
	switch {
	case cs == nil:
		return "it has no container"
	case cs.State == pod.StateExited && cs.Reason != "" && cs.Reason != lifecycle.Error && cs.Reason != lifecycle.Completed:
		return fmt.Sprintf("it exited with code %d, %s", cs.ExitCode, cs.Reason)
	case cs.State == pod.StateExited:
		return fmt.Sprintf("it exited with code %d", cs.ExitCode)
	}
	return "its container is " + cs.State.String()
}
