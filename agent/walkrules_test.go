package agent_test

import (
	"path/filepath"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/cluster/kube/kubetest"
	"berth/internal/runtime/cri/critest"
)

// check holds the world against the rules that hold at any time.
func (w *walker) check() {
	w.checkCalls()
	ready, running := map[string]int{}, map[string]int{}
	for _, sb := range w.Runtime.Sandboxes() {
		if uid := sb.Metadata.GetUid(); sb.Ready {
			if ready[uid]++; ready[uid] > 1 {
				w.T.Errorf("pod %s (%s) has more than one ready sandbox", sb.Metadata.GetName(), uid)
			}
		}
	}
	containers := w.Runtime.Containers()
	for _, c := range containers {
		if c.State != runtimeapi.ContainerState_CONTAINER_RUNNING {
			continue
		}
		key := c.Pod.GetUid() + "/" + c.Name
		if running[key]++; running[key] > 1 {
			w.T.Errorf("container %s of pod %s runs more than once", c.Name, c.Pod.GetName())
		}
		if !isInit(c.Name) && c.Name != "side" {
			w.checkOrder(c, containers)
		}
	}
	w.checkSizes(containers)
	// An agent that has just begun shows what the API server knew until it has looked at the
	// runtime.
	if w.agentUp && w.runtimeUp && time.Since(w.toggled) > settled {
		w.checkShown()
	}
}

// checkOrder looks whether the init containers had ended when a regular container was started.
func (w *walker) checkOrder(c critest.Container, all []critest.Container) {
	for _, i := range all {
		if i.SandboxID == c.SandboxID && isInit(i.Name) && !i.StartedAt.IsZero() && (i.FinishedAt.IsZero() || i.FinishedAt.After(c.StartedAt)) {
			w.T.Errorf("container %s of pod %s was started at %v, its init container %s ended at %v", c.Name, c.Pod.GetName(), c.StartedAt, i.Name, i.FinishedAt)
		}
	}
}

// settled is how long an agent takes at most to look at everything, also when its first looks fail.
const settled = time.Minute

// soon is how long a pass may still go on with a pod that was dismissed.
const soon = 500 * time.Millisecond

// checkCalls looks at what the agent asked of the runtime since the last time.
func (w *walker) checkCalls() {
	dismissed := func(uid string, at time.Time, what string) {
		if since, ok := w.dismissed[uid]; ok && at.After(since.Add(soon)) {
			w.T.Errorf("%s at %v for a pod that nobody wants since %v", what, at, since)
		}
	}
	for _, c := range w.Runtime.Calls.All() {
		switch r := c.Request.(type) {
		case *runtimeapi.RunPodSandboxRequest:
			dismissed(r.GetConfig().GetMetadata().GetUid(), c.At, "a sandbox is made")
		case *runtimeapi.CreateContainerRequest:
			uid, container := r.GetSandboxConfig().GetMetadata().GetUid(), r.GetConfig().GetMetadata()
			dismissed(uid, c.At, "a container is made")
			key := uid + "/" + container.GetName()
			if newest, made := w.attempts[key]; made && container.GetAttempt() < newest {
				w.T.Errorf("incarnation %d of container %s after incarnation %d", container.GetAttempt(), container.GetName(), newest)
			}
			w.attempts[key] = container.GetAttempt()
		}
	}
	w.Runtime.Calls.Reset()
}

// checkShown looks at what the agent says of its pods: restart counts do not shrink, and a terminal
// phase stays.
func (w *walker) checkShown() {
	for _, p := range w.Agent.Handlers().Pods.List() {
		uid := string(p.UID)
		for _, list := range [][]v1.ContainerStatus{p.Status.InitContainerStatuses, p.Status.ContainerStatuses} {
			for _, c := range list {
				key := uid + "/" + c.Name
				if c.RestartCount < w.restarts[key] {
					w.T.Errorf("the restart count of container %s of pod %s went from %d to %d", c.Name, p.Name, w.restarts[key], c.RestartCount)
				}
				w.restarts[key] = c.RestartCount
			}
		}
		if before := w.ended[uid]; before != "" && p.Status.Phase != before {
			w.T.Errorf("pod %s was %s and is %s", p.Name, before, p.Status.Phase)
		}
		if p.Status.Phase == v1.PodFailed || p.Status.Phase == v1.PodSucceeded {
			w.ended[uid] = p.Status.Phase
		}
	}
}

// wantGoals looks whether every pod that is wanted runs, or has ended as it may, in a world where
// all is well.
func (w *walker) wantGoals() {
	shown := map[string]*v1.Pod{}
	for _, p := range w.Agent.Handlers().Pods.List() {
		if p.DeletionTimestamp != nil {
			w.T.Errorf("pod %s (%s) is still being ended", p.Name, p.UID)
			continue
		}
		shown[p.Name] = p
	}
	for name, want := range w.wanted {
		p := shown[w.shownAs(name)]
		if p == nil {
			w.T.Errorf("pod %s is wanted and not there", name)
			continue
		}
		if want.lost {
			continue
		}
		stays := 0
		for _, c := range p.Status.ContainerStatuses {
			switch done := c.State.Terminated; {
			case c.State.Running != nil && c.Ready:
			case done != nil && want.mayStay(c.Name, done.ExitCode):
				stays++
			case p.Status.Phase != v1.PodFailed: // an init container may have failed for good
				w.T.Errorf("container %s of pod %s (%s) is neither ready nor done: %+v", c.Name, name, p.UID, c)
			}
		}
		switch p.Status.Phase {
		case v1.PodRunning:
			if stays == len(p.Status.ContainerStatuses) {
				w.T.Errorf("pod %s (%s) is running, and all of its containers are done", name, p.UID)
			}
		case v1.PodSucceeded, v1.PodFailed:
			if want.policy == v1.RestartPolicyAlways && (!want.rule || len(want.containers) == 1 || !slices.ContainsFunc(p.Status.ContainerStatuses, isDone)) {
				w.T.Errorf("pod %s (%s) of restartPolicy Always is %s", name, p.UID, p.Status.Phase)
			}
		default:
			w.T.Errorf("pod %s (%s) of restartPolicy %s is %s: %+v", name, p.UID, want.policy, p.Status.Phase, p.Status.ContainerStatuses)
		}
		if w.API != nil {
			w.wantInAPI(p)
			w.wantSizes(p)
		}
	}
	if len(shown) != len(w.wanted) {
		w.T.Errorf("%d pods are shown, %d are wanted", len(shown), len(w.wanted))
	}
}

func isDone(c v1.ContainerStatus) bool { return c.State.Terminated != nil }

// wantInAPI looks whether the API server shows of the pod what the agent does.
func (w *walker) wantInAPI(p *v1.Pod) {
	there, ok := kubetest.Get[*v1.Pod](w.API, p.Namespace, p.Name)
	if !ok || there.Status.Phase != p.Status.Phase {
		w.T.Errorf("pod %s (%s) is %s, and the API server says %s (%v)", p.Name, p.UID, p.Status.Phase, there.Status.Phase, ok)
	}
}

// takeAway removes all pods, and looks whether anything of them is left.
func (w *walker) takeAway() {
	for name := range w.wanted {
		if w.fromAPI(name) {
			kubetest.Delete[*v1.Pod](w.API, v1.NamespaceDefault, name, metav1.DeleteOptions{})
		} else {
			w.Remove(name + ".yaml")
		}
	}
	w.Settle(5 * time.Minute)
	if n, m, c := len(w.Runtime.Sandboxes()), len(w.Runtime.Containers()), w.Cgroups.Len(); n+m+c > 0 {
		w.T.Errorf("%d sandboxes, %d containers and %d pod cgroups are left", n, m, c)
	}
	if w.API != nil {
		for _, p := range kubetest.List[*v1.Pod](w.API) {
			w.T.Errorf("the API server still has pod %s (%s): %s, deleted at %v", p.Name, p.UID, p.Status.Phase, p.DeletionTimestamp)
		}
	}
	for _, dir := range []string{"root/pods", "logs"} {
		left, err := filepath.Glob(filepath.Join(filepath.Dir(w.Manifests), dir, "*"))
		if err != nil || len(left) > 0 {
			w.T.Errorf("left in %s: %v %v", dir, left, err)
		}
	}
}
