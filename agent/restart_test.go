package agent_test

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/agent/agenttest"
	"berth/internal/cluster/kube"
	"berth/internal/cluster/kube/kubetest"
)

// manyPods is how many pods an agent is restarted under.
const manyPods = 100

// An agent that is started again under a hundred ready pods, in whatever way it ended, disturbs
// none of them: nobody who watches the API server sees anything of it.
func TestRestartUnderManyReadyPods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := agenttest.New(t)
		w.Join()
		for i := range manyPods {
			kubetest.Put(w.API, readyPod(i))
		}
		w.Settle(2 * time.Minute)
		before := containersOf(w)
		if len(before) != manyPods+manyPods/4 {
			t.Fatalf("%d containers run", len(before))
		}
		seen := watchPods(t, w)
		seen.expectAllReady(t)
		seen.changes = nil
		w.API.ForgetRequests()
		w.Runtime.Calls.Reset()

		for range 3 {
			w.StopAgent()
			w.Settle(30 * time.Second)
			w.StartAgent()
			w.Settle(2 * time.Minute)
		}
		seen.expectAllReady(t)
		if len(seen.changes) > 0 {
			t.Errorf("a watcher saw %d changes of pods, the first: %s", len(seen.changes), seen.changes[0])
		}
		for _, r := range w.API.Requests() {
			if r.Verb == "patch" && r.Resource == "pods" {
				t.Errorf("the status of %s was written: %s", r.Name, r.Body)
				break
			}
		}
		if diff := cmp.Diff(before, containersOf(w)); diff != "" {
			t.Errorf("containers (-before +after):\n%s", diff)
		}
		for _, call := range []string{"RunPodSandbox", "CreateContainer", "StartContainer", "StopContainer", "StopPodSandbox", "RemoveContainer", "RemovePodSandbox"} {
			if n := w.Runtime.Calls.Count(call); n > 0 {
				t.Errorf("%d calls of %s", n, call)
			}
		}
	})
}

// readyPod returns one pod of many, of four sorts: with a readiness probe, with all probes, with a
// sidecar, without probes.
func readyPod(i int) *v1.Pod {
	exec := func(period int32) *v1.Probe {
		return &v1.Probe{
			ProbeHandler:  v1.ProbeHandler{Exec: &v1.ExecAction{Command: []string{"check"}}},
			PeriodSeconds: period, TimeoutSeconds: 1, SuccessThreshold: 1, FailureThreshold: 3,
		}
	}
	p := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("web-%03d", i), Namespace: v1.NamespaceDefault},
		Spec:       v1.PodSpec{NodeName: agenttest.NodeName, Containers: []v1.Container{{Name: "main", Image: agenttest.Image}}},
	}
	c := &p.Spec.Containers[0]
	switch i % 4 {
	case 0:
		c.ReadinessProbe = exec(5)
	case 1:
		c.ReadinessProbe, c.LivenessProbe, c.StartupProbe = exec(10), exec(10), exec(1)
		c.ReadinessProbe.SuccessThreshold = 3 // it takes the longest to be ready anew
	case 2:
		always := v1.ContainerRestartPolicyAlways
		p.Spec.InitContainers = []v1.Container{{Name: "side", Image: agenttest.Image, RestartPolicy: &always, StartupProbe: exec(1), ReadinessProbe: exec(5)}}
	}
	return p
}

func containersOf(w *agenttest.World) map[string]string {
	out := map[string]string{}
	for _, c := range w.Runtime.Containers() {
		if c.State == runtimeapi.ContainerState_CONTAINER_RUNNING {
			out[c.Pod.GetName()+"/"+c.Name] = c.ID
		}
	}
	return out
}

// podWatcher watches pods at the API server as any client does.
type podWatcher struct {
	pods    map[string]*v1.Pod // as shown last
	changes []string           // of status, in words
}

// watchPods watches the node's pods until the end of the test. What it has seen may be read when
// the bubble is at rest.
func watchPods(t *testing.T, w *agenttest.World) *podWatcher {
	t.Helper()
	client, err := kube.Open(kube.Config{REST: w.API.Config(), Version: "test", Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	pw := &podWatcher{pods: map[string]*v1.Pod{}}
	var watch *kube.Watch[*v1.Pod]
	watch = kube.NewWatch[*v1.Pod](client, kube.OfNode(agenttest.NodeName), func() {
		pods, _ := watch.List()
		for _, p := range pods {
			if old := pw.pods[p.Name]; old != nil && old.ResourceVersion != p.ResourceVersion {
				pw.changes = append(pw.changes, p.Name+":\n"+cmp.Diff(old.Status, p.Status))
			}
			pw.pods[p.Name] = p
		}
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = watch.Run(ctx) // ends with ctx only
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	w.Settle(time.Second)
	return pw
}

func (pw *podWatcher) expectAllReady(t *testing.T) {
	t.Helper()
	var not []string
	for name, p := range pw.pods {
		for _, c := range p.Status.Conditions {
			if c.Type == v1.PodReady && c.Status != v1.ConditionTrue {
				not = append(not, name)
			}
		}
	}
	if len(pw.pods) != manyPods || len(not) > 0 {
		t.Fatalf("the API server shows %d pods; these are not ready: %s", len(pw.pods), strings.Join(not, ", "))
	}
}
