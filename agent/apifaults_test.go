package agent_test

import (
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/agent/agenttest"
	"berth/internal/cluster/kube/kubetest"
)

// apiFaults is what an API server can do to everyone who asks.
var apiFaults = []struct {
	name   string
	effect kubetest.Effect
}{
	{"401", kubetest.Answer(http.StatusUnauthorized, metav1.StatusReasonUnauthorized, "Unauthorized")},
	{"403", kubetest.Answer(http.StatusForbidden, metav1.StatusReasonForbidden, "no")},
	{"404", kubetest.Answer(http.StatusNotFound, metav1.StatusReasonNotFound, "the server could not find the requested resource")},
	{"409", kubetest.Answer(http.StatusConflict, metav1.StatusReasonConflict, "the object has been modified")},
	{"410", kubetest.Answer(http.StatusGone, metav1.StatusReasonExpired, "too old resource version")},
	{"429", kubetest.Busy(time.Second)},
	{"500", kubetest.Answer(http.StatusInternalServerError, metav1.StatusReasonInternalError, "etcd has no leader")},
	{"503", kubetest.Answer(http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable, "starting")},
	{"hangs", kubetest.Hang()},
	{"drops", kubetest.Drop()},
	{"loses answers", kubetest.LoseAnswer()},
}

// faultyRequests bounds what an agent with two pods may ask of a server in trouble, in a minute:
// renewals of its lease with their tries, the status of its node, its watches, and what happens to
// its pods. A server that says when to come back is asked again then.
const faultyRequests = 400

// An API server that is in trouble while pods start, change and end delays what is said of them,
// and nothing else.
func TestAPIFaults(t *testing.T) {
	for _, f := range apiFaults {
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { apiInTrouble(t, f.effect) })
		})
	}
}

func apiInTrouble(t *testing.T, effect kubetest.Effect) {
	w := agenttest.New(t)
	w.Join()
	w.Settle(time.Minute)
	during := func(do func()) {
		t.Helper()
		before := len(w.API.Requests())
		w.API.Inject(kubetest.Fault{Then: effect})
		w.API.BreakWatches()
		do()
		w.Settle(3 * time.Minute)
		if n := len(w.API.Requests()) - before; n > 3*faultyRequests {
			t.Errorf("%d requests in three minutes of trouble, want at most %d", n, 3*faultyRequests)
		}
		w.API.Heal()
		w.API.BreakWatches() // those that hang
		w.Settle(2 * time.Minute)
	}
	bind(w, "steady")
	w.Settle(10 * time.Second)
	wantAPI(t, w, "well", "steady", 0)
	steady := containerOf(t, w, "steady")

	during(func() {
		bind(w, "web")
		w.Write("static.yaml", []byte(staticManifest))
	})
	wantAPI(t, w, "bound", "web", 0)
	wantAPI(t, w, "of a manifest", "static-"+agenttest.NodeName, 0)

	during(func() {
		if err := w.Runtime.Kill(containerOf(t, w, "web"), 1); err != nil {
			t.Error(err)
		}
	})
	wantAPI(t, w, "exited", "web", 1)

	during(func() { kubetest.Delete[*v1.Pod](w.API, "default", "web", metav1.DeleteOptions{}) })
	if p, ok := kubetest.Get[*v1.Pod](w.API, "default", "web"); ok {
		t.Errorf("deleted: the API server shows %+v", p)
	}

	wantAPI(t, w, "at the end", "steady", 0)
	if now := containerOf(t, w, "steady"); now != steady {
		t.Errorf("the container of the pod that nobody touched was %s, is %s", steady, now)
	}
	n, ok := kubetest.Get[*v1.Node](w.API, "", agenttest.NodeName)
	if !ok || !isReady(n) {
		t.Errorf("the node is %+v", n)
	}
}

// When an older etcd is restored, what the API server has forgotten ends, what it has again runs,
// and it is told how things are.
func TestAPIRestored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := agenttest.New(t)
		w.Join()
		w.Settle(time.Minute)
		for _, name := range []string{"steady", "deleted", "restarted"} {
			bind(w, name)
		}
		w.Settle(10 * time.Second)
		steady := containerOf(t, w, "steady")
		restore := w.API.Snapshot()

		bind(w, "younger")
		w.Write("static.yaml", []byte(staticManifest))
		kubetest.Delete[*v1.Pod](w.API, "default", "deleted", metav1.DeleteOptions{})
		if err := w.Runtime.Kill(containerOf(t, w, "restarted"), 1); err != nil {
			t.Error(err)
		}
		w.Settle(20 * time.Minute) // the node's status is written many times
		if _, ok := kubetest.Get[*v1.Pod](w.API, "default", "deleted"); ok {
			t.Fatal("the deleted pod is still there")
		}
		wantAPI(t, w, "before", "younger", 0)

		restore()
		// The controller has given up the node meanwhile.
		n, _ := kubetest.Get[*v1.Node](w.API, "", agenttest.NodeName)
		for i := range n.Status.Conditions {
			n.Status.Conditions[i].Status, n.Status.Conditions[i].Reason = v1.ConditionUnknown, "NodeStatusUnknown"
		}
		kubetest.Put(w.API, n)
		w.Settle(2 * time.Minute)

		wantAPI(t, w, "untouched", "steady", 0)
		if now := containerOf(t, w, "steady"); now != steady {
			t.Errorf("the container of the pod that nobody touched was %s, is %s", steady, now)
		}
		wantAPI(t, w, "restarted since", "restarted", 1)
		wantAPI(t, w, "with a new mirror", "static-"+agenttest.NodeName, 0)
		if p, ok := kubetest.Get[*v1.Pod](w.API, "default", "younger"); ok {
			t.Errorf("the API server has %+v again", p)
		}
		for _, c := range w.Runtime.Containers() {
			if c.Pod.GetName() == "younger" && c.State == runtimeapi.ContainerState_CONTAINER_RUNNING {
				t.Error("the pod that the API server has forgotten runs")
			}
		}
		// It runs again, or is said to have ended.
		if p, ok := kubetest.Get[*v1.Pod](w.API, "default", "deleted"); !ok || (p.Status.Phase == v1.PodRunning && containerOf(t, w, "deleted") == "") {
			t.Errorf("the pod that is back is %+v", p)
		} else {
			t.Logf("the pod that is back is %s, %s", p.Status.Phase, p.Status.Reason)
		}
		if n, ok := kubetest.Get[*v1.Node](w.API, "", agenttest.NodeName); !ok || !isReady(n) {
			t.Errorf("the node is %+v", n)
		}
	})
}

const staticManifest = "apiVersion: v1\nkind: Pod\nmetadata: {name: static}\nspec: {containers: [{name: main, image: " + agenttest.Image + "}]}\n"

// bind gives the node a pod.
func bind(w *agenttest.World, name string) *v1.Pod {
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"}}
	p.Spec = v1.PodSpec{NodeName: agenttest.NodeName, Containers: []v1.Container{{Name: "main", Image: agenttest.Image}}}
	return kubetest.Put(w.API, p)
}

// wantAPI checks that the API server shows a ready pod whose container was restarted so often.
func wantAPI(t *testing.T, w *agenttest.World, when, name string, restarts int32) {
	t.Helper()
	p, ok := kubetest.Get[*v1.Pod](w.API, "default", name)
	if !ok || p.Status.Phase != v1.PodRunning || len(p.Status.ContainerStatuses) != 1 || !p.Status.ContainerStatuses[0].Ready || p.Status.ContainerStatuses[0].RestartCount != restarts {
		t.Fatalf("%s: the API server shows %+v, want a ready container with %d restarts", when, p, restarts)
	}
}

func isReady(n *v1.Node) bool {
	for _, c := range n.Status.Conditions {
		if c.Type == v1.NodeReady {
			return c.Status == v1.ConditionTrue
		}
	}
	return false
}

// containerOf returns the id of the one container of a pod that runs.
func containerOf(t *testing.T, w *agenttest.World, pod string) string {
	t.Helper()
	id := ""
	for _, c := range w.Runtime.Containers() {
		if c.Pod.GetName() == pod && c.State == runtimeapi.ContainerState_CONTAINER_RUNNING {
			if id != "" {
				t.Errorf("pod %s has two containers that run", pod)
			}
			id = c.ID
		}
	}
	if id == "" {
		t.Fatalf("no container of pod %s runs", pod)
	}
	return id
}
