package kuberuntime

import (
	"fmt"
	"strings"

	v1 "k8s.io/api/core/v1"

	"berth/internal/pod"
	"berth/internal/pod/lifecycle"
)

// String returns the plan's input as one line of the journal: the sandbox, and the newest
// incarnation of each container.
func (in planInput) String() string {
	p, s := in.Pod, in.Observed
	parts := []string{"no sandbox"}
	if len(s.Sandboxes) > 0 {
		sb := &s.Sandboxes[0]
		state := "not ready"
		if sb.Ready {
			state = "ready"
		}
		parts[0] = fmt.Sprintf("sandbox %d is %s", sb.Attempt, state)
	}
	add := func(c *v1.Container) {
		cs := s.FindContainer(c.Name)
		text := "absent"
		if cs != nil {
			text = cs.State.String()
			if cs.State == pod.StateExited {
				text = fmt.Sprintf("exited %d", cs.ExitCode)
			}
			if v := in.Probes.Startup[cs.ID]; c.StartupProbe != nil {
				text += ", startup " + v.String()
			}
			if v := in.Probes.Liveness[cs.ID]; c.LivenessProbe != nil {
				text += ", liveness " + v.String()
			}
		}
		parts = append(parts, c.Name+" "+text)
	}
	for i := range p.Spec.InitContainers {
		add(&p.Spec.InitContainers[i])
	}
	for i := range p.Spec.Containers {
		add(&p.Spec.Containers[i])
	}
	for i := range p.Spec.EphemeralContainers {
		add((*v1.Container)(&p.Spec.EphemeralContainers[i].EphemeralContainerCommon))
	}
	return strings.Join(parts, "; ")
}

// findSpec returns the spec of the named container of any type, or nil.
func findSpec(p *v1.Pod, name string) *v1.Container {
	for _, list := range [][]v1.Container{p.Spec.Containers, p.Spec.InitContainers} {
		for i := range list {
			if list[i].Name == name {
				return &list[i]
			}
		}
	}
	for i := range p.Spec.EphemeralContainers {
		if c := &p.Spec.EphemeralContainers[i]; c.Name == name {
			return (*v1.Container)(&c.EphemeralContainerCommon)
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

// isPlainInit reports whether the named container is an init container that runs to completion.
func isPlainInit(p *v1.Pod, name string) bool {
	return isInit(p, name) && !lifecycle.IsSidecar(findSpec(p, name))
}
