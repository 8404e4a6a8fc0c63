//go:build e2e && podshim

package podshim

import (
	"fmt"
	"testing"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// point is a step of containerd at which it is killed, and what is there after a restart: the pod,
// ready or not, and its container.
type point struct {
	name   string
	remove bool // the pod is removed before
	state  cri.PodSandboxState
	want   func(*cri.ContainerStatus) string // nil: there is no container
}

const exitCode = 42

// ended: the exit is known, and right.
func ended(s *cri.ContainerStatus) string {
	if s.State != cri.ContainerState_CONTAINER_EXITED || s.ExitCode != exitCode {
		return fmt.Sprintf("want an exit with %d", exitCode)
	}
	return ""
}

// notStarted: nobody was told that it runs.
func notStarted(s *cri.ContainerStatus) string {
	if s.State != cri.ContainerState_CONTAINER_CREATED || s.StartedAt != 0 {
		return "want one that was never started"
	}
	return ""
}

const ready, notReady = cri.PodSandboxState_SANDBOX_READY, cri.PodSandboxState_SANDBOX_NOTREADY

var points = []point{
	{name: "pod-created", state: notReady},
	{name: "podshim-made", state: notReady},
	{name: "pod-written", state: ready},
	{name: "task-written", state: ready, want: notStarted},
	{name: "task-cgroups", state: ready, want: notStarted},
	{name: "task-made", state: ready, want: notStarted},
	{name: "task-started", state: ready, want: ended},
	{name: "task-deleted", state: ready, want: ended},
	{name: "task-folder-gone", state: ready, want: ended},
	{name: "pod-stopped", remove: true, state: notReady, want: ended},
	{name: "pod-folder-gone", remove: true, state: notReady},
}

// SIGKILL of containerd at each step of a pod's life: what the CRI tells afterwards is true, and
// all of it can be removed.
func TestKilledAtEachStep(t *testing.T) {
	r := newRig(t)
	r.kill()
	for i, p := range points {
		name := fmt.Sprintf("point%d", i)
		r.env = []string{"PODSHIM_POINT=" + p.name}
		r.startPoints()
		r.liveUntilKilled(name, p.remove)
		select {
		case <-r.ended:
		case <-time.After(slower() * time.Minute):
			t.Fatalf("%s: containerd was not killed there", p.name)
		}
		r.env = nil
		r.start()
		r.wantAfter(p)
		for _, s := range r.pods() {
			if err := r.remove(s.Id); err != nil {
				t.Errorf("%s: removal: %v", p.name, err)
			}
		}
		r.wantNothingLeft()
		r.kill()
		if t.Failed() {
			t.Fatalf("killed at %s", p.name)
		}
	}
}

// startPoints starts the containerd that ends itself at a point.
func (r *rig) startPoints() {
	r.Helper()
	all := r.programs
	r.programs = all + "/points"
	r.start()
	r.programs = all
}

// liveUntilKilled has a pod with a container that ends by itself, until containerd is gone.
func (r *rig) liveUntilKilled(name string, remove bool) {
	pod, err := r.pod(name)
	if err != nil {
		return
	}
	id, err := r.container(pod, containerConfig(r, name, "c", "exit", "300", fmt.Sprint(exitCode)), func() {})
	if err != nil || !remove {
		return
	}
	r.exits(id)
	r.remove(pod)
}

func (r *rig) wantAfter(p point) {
	r.Helper()
	pods, containers := r.pods(), r.containers()
	if len(pods) != 1 || pods[0].State != p.state {
		r.Errorf("%s: pods %v, want one that is %s", p.name, pods, p.state)
	}
	if p.want == nil {
		if len(containers) > 0 {
			r.Errorf("%s: containers %v, want none", p.name, containers)
		}
		return
	}
	if len(containers) != 1 {
		r.Errorf("%s: containers %v, want one", p.name, containers)
		return
	}
	s := r.status(containers[0].Id)
	if s.State == cri.ContainerState_CONTAINER_RUNNING {
		s = r.exits(s.Id)
	}
	if wrong := p.want(s); wrong != "" {
		r.Errorf("%s: container %v, %s", p.name, s, wrong)
	}
}
