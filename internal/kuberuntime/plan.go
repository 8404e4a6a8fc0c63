package kuberuntime

import (
	"fmt"
	"strings"

	v1 "k8s.io/api/core/v1"

	"berth/internal/lifecycle"
	"berth/internal/pod"
)

// podActions is the plan of one pass over a running pod: what computePodActions decides and SyncPod does, in this order.
type podActions struct {
	// KillPod stops all containers and sandboxes first.
	KillPod bool
	// CreateSandbox makes a new sandbox, numbered Attempt.
	CreateSandbox bool
	Attempt       uint32
	// PurgeInit removes init containers of the old sandbox: a new sandbox begins with the first one.
	PurgeInit bool
	// SandboxID is the sandbox that containers are started in when none is created.
	SandboxID pod.SandboxID
	Kill      []killAction
	Start     []startAction
	// RemoveContainers and RemoveSandboxes are dead ones that nothing needs any more.
	RemoveContainers []pod.ContainerID
	RemoveSandboxes  []pod.SandboxID
	// Why the pod or the sandbox is replaced.
	Why string
}

// killAction stops one running container.
type killAction struct {
	ID      pod.ContainerID
	Name    string
	Message string
}

// startAction starts a new incarnation of one container.
type startAction struct {
	Name string
	Why  string
}

func (a *podActions) empty() bool {
	return !a.KillPod && !a.CreateSandbox && len(a.Kill) == 0 && len(a.Start) == 0 && len(a.RemoveContainers) == 0 && len(a.RemoveSandboxes) == 0
}

// String is the plan as one line of the journal.
func (a *podActions) String() string {
	var parts []string
	if a.KillPod {
		parts = append(parts, "stop the pod")
	}
	if a.CreateSandbox {
		parts = append(parts, fmt.Sprintf("create sandbox %d", a.Attempt))
	}
	for _, k := range a.Kill {
		parts = append(parts, "stop "+k.Name+" ("+k.Message+")")
	}
	for _, s := range a.Start {
		parts = append(parts, "start "+s.Name+" ("+s.Why+")")
	}
	if n := len(a.RemoveContainers) + len(a.RemoveSandboxes); n > 0 {
		parts = append(parts, fmt.Sprintf("remove %d dead", n))
	}
	if len(parts) == 0 {
		return "nothing to do"
	}
	return strings.Join(parts, ", ")
}

// computePodActions decides what brings the observed pod nearer to its spec. It takes values only.
func computePodActions(p *v1.Pod, s *pod.Status) podActions {
	d := lifecycle.NeedsNewSandbox(p, s)
	var a podActions
	if d.Create {
		a = planNewSandbox(p, s, d)
	} else {
		a = planRunningSandbox(p, s)
	}
	a.RemoveContainers, a.RemoveSandboxes = computeGarbage(s)
	return a
}

func planNewSandbox(p *v1.Pod, s *pod.Status, d lifecycle.SandboxDecision) podActions {
	a := podActions{Attempt: d.Attempt, Why: d.Why, KillPod: s.Active()}
	if d.Attempt > 0 && p.Spec.RestartPolicy == v1.RestartPolicyNever && len(s.Containers) > 0 {
		a.KillPod, a.Why = true, d.Why+"; restartPolicy is Never and containers have run"
		return a
	}
	everRan := false
	for i := range p.Spec.Containers {
		c := &p.Spec.Containers[i]
		cs := s.FindContainer(c.Name)
		everRan = everRan || (cs != nil && cs.State != pod.StateUnknown)
		if cs != nil && cs.State == pod.StateExited && cs.ExitCode == 0 && lifecycle.RestartPolicy(p, c) == v1.RestartPolicyOnFailure {
			continue
		}
		if cs != nil && cs.State == pod.StateExited && !lifecycle.ShouldStart(p, c, cs) {
			continue
		}
		a.Start = append(a.Start, startAction{Name: c.Name, Why: "new sandbox"})
	}
	if p.DeletionTimestamp != nil || (len(a.Start) == 0 && everRan) {
		a.Start, a.KillPod = nil, true
		return a
	}
	a.CreateSandbox, a.PurgeInit = true, true
	if len(p.Spec.InitContainers) > 0 {
		a.Start = []startAction{{Name: p.Spec.InitContainers[0].Name, Why: "first init container"}}
	}
	return a
}

func planRunningSandbox(p *v1.Pod, s *pod.Status) podActions {
	a := podActions{SandboxID: s.Sandboxes[0].ID}
	initialized := planInit(p, s, &a)
	if a.KillPod {
		a.Start, a.Kill = nil, nil
		return a
	}
	if !initialized {
		return a
	}
	sidecars := len(a.Start)
	keep := 0
	for i := range p.Spec.Containers {
		c := &p.Spec.Containers[i]
		cs := s.FindContainer(c.Name)
		if cs == nil || cs.State != pod.StateRunning {
			if lifecycle.ShouldStart(p, c, cs) {
				if cs != nil && cs.State == pod.StateUnknown {
					a.Kill = append(a.Kill, killAction{cs.ID, c.Name, "its state is unknown"})
				}
				a.Start = append(a.Start, startAction{c.Name, whyStart(cs)})
			}
			continue
		}
		if cs.Hash != lifecycle.ContainerHash(c) {
			a.Kill = append(a.Kill, killAction{cs.ID, c.Name, "Container " + c.Name + " definition changed, will be restarted"})
			a.Start = append(a.Start, startAction{c.Name, "definition changed"})
			continue
		}
		keep++
	}
	if keep == 0 && len(a.Start) == sidecars {
		// The sandbox goes with the last regular container; sidecars are not restarted for it.
		a.KillPod, a.Why, a.Start, a.Kill = true, "no container runs or is to be started", nil, nil
	}
	return a
}

// planInit plans init containers and sidecars, last to first: the furthest one that was reached tells how far the pod is. It
// reports whether the regular containers may be started.
func planInit(p *v1.Pod, s *pod.Status, a *podActions) (initialized bool) {
	inits := p.Spec.InitContainers
	if len(inits) == 0 {
		return true
	}
	initialized = lifecycle.HasInitialized(p, s)
	reached := initialized // a later container was found: earlier ones are done, but sidecars still restart
	var starts []startAction
	next := func(i int) {
		if i == len(inits)-1 {
			initialized = true
			return
		}
		starts = append(starts, startAction{inits[i+1].Name, "init container " + inits[i].Name + " is done"})
	}
	for i := len(inits) - 1; i >= 0; i-- {
		c := &inits[i]
		cs := s.FindContainer(c.Name)
		sidecar := lifecycle.IsSidecar(c)
		switch {
		case !sidecar && reached:
		case cs == nil:
			if sidecar && reached {
				starts = append(starts, startAction{c.Name, "sidecar has no container"})
			} else if i == 0 {
				starts = append(starts, startAction{c.Name, "first init container"})
			}
		case cs.State == pod.StateCreated:
			starts = append(starts, startAction{c.Name, whyStart(cs)})
			reached = true
		case cs.State == pod.StateRunning:
			if sidecar {
				if !reached {
					next(i)
				}
				if cs.Hash != lifecycle.ContainerHash(c) {
					a.Kill = append(a.Kill, killAction{cs.ID, c.Name, "Init container " + c.Name + " definition changed, will be restarted"})
					starts = append(starts, startAction{c.Name, "definition changed"})
				}
			}
			reached = true
		case cs.State == pod.StateExited && sidecar:
			if lifecycle.ShouldStart(p, c, cs) {
				starts = append(starts, startAction{c.Name, whyStart(cs)})
			}
			reached = true
		case cs.State == pod.StateExited:
			if !lifecycle.InitFailed(cs) {
				next(i)
			} else if lifecycle.ShouldStart(p, c, cs) {
				starts = append(starts, startAction{c.Name, whyStart(cs)})
			} else {
				a.KillPod, a.Why = true, "init container "+c.Name+" failed and must not be restarted"
			}
			reached = true
		default: // unknown
			if !sidecar && lifecycle.RestartPolicy(p, c) == v1.RestartPolicyNever {
				a.KillPod, a.Why = true, "the state of init container "+c.Name+" is unknown and it must not be restarted"
			} else {
				a.Kill = append(a.Kill, killAction{cs.ID, c.Name, "its state is unknown"})
				starts = append(starts, startAction{c.Name, "its state was unknown"})
			}
			reached = true
		}
	}
	for i := len(starts) - 1; i >= 0; i-- {
		a.Start = append(a.Start, starts[i])
	}
	return initialized
}

// computeGarbage picks what nothing needs: all but the newest dead container of each name, and dead sandboxes other than the newest one
// that have no container.
func computeGarbage(s *pod.Status) (containers []pod.ContainerID, sandboxes []pod.SandboxID) {
	dead := map[string]bool{}
	used := map[pod.SandboxID]bool{}
	for i := range s.Containers {
		c := &s.Containers[i]
		if c.State != pod.StateRunning && dead[c.Name] {
			containers = append(containers, c.ID)
			continue
		}
		used[c.SandboxID] = true
		dead[c.Name] = dead[c.Name] || c.State != pod.StateRunning
	}
	for i := range s.Sandboxes {
		if sb := &s.Sandboxes[i]; i > 0 && !sb.Ready && !used[sb.ID] {
			sandboxes = append(sandboxes, sb.ID)
		}
	}
	return containers, sandboxes
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

// findSpec returns the named container's spec, regular or init.
func findSpec(p *v1.Pod, name string) *v1.Container {
	for i := range p.Spec.Containers {
		if p.Spec.Containers[i].Name == name {
			return &p.Spec.Containers[i]
		}
	}
	for i := range p.Spec.InitContainers {
		if p.Spec.InitContainers[i].Name == name {
			return &p.Spec.InitContainers[i]
		}
	}
	return nil
}

func isInit(p *v1.Pod, name string) bool {
	for i := range p.Spec.InitContainers {
		if p.Spec.InitContainers[i].Name == name {
			return true
		}
	}
	return false
}
