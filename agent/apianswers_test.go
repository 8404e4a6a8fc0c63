package agent_test

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/agent/agenttest"
	"berth/internal/cluster/kube/kubetest"
	"berth/internal/pod"
)

// endOfList is the event at which a client takes for complete what a watch has told it.
const endOfList = `{"type":"BOOKMARK","object":{"kind":"Pod","apiVersion":"v1","metadata":{"resourceVersion":"9","annotations":{"k8s.io/initial-events-end":"true"}}}}`

const emptyPodList = `{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"9"},"items":[]}`

// lies are what a server, or a proxy that mixes up its answers, says to those who list and watch
// pods. The pods are there all the time.
var lies = []struct{ name, list, stream string }{
	{
		"another kind", `{"kind":"SecretList","apiVersion":"v1","metadata":{"resourceVersion":"99999999"},"items":[]}`,
		`{"type":"DELETED","object":{"kind":"Secret","apiVersion":"v1","metadata":{"name":"steady","namespace":"default","resourceVersion":"9"}}}`,
	},
	{"an empty object", `{}`, `{}`},
	{"no version", `{"kind":"PodList","apiVersion":"v1","items":[]}`, strings.Replace(endOfList, `"resourceVersion":"9",`, "", 1)},
	{"one list of none", emptyPodList, endOfList},
}

// tell makes the server say to those who list and watch pods what is not so.
func tell(w *agenttest.World, list, stream string) {
	w.API.Inject(kubetest.Fault{Verb: "list", Resource: "pods", Then: kubetest.Say(list)})
	w.API.Inject(kubetest.Fault{Verb: "watch", Resource: "pods", Then: kubetest.Say(stream)})
}

// What the API server says of pods ends none unless it says so clearly, and twice if it is the end
// of them all; also when the agent has just started.
func TestAPILies(t *testing.T) {
	for _, lie := range lies {
		t.Run(lie.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := agenttest.New(t)
				w.Join()
				w.Settle(time.Minute)
				bind(w, "steady")
				w.Settle(10 * time.Second)
				steady := containerOf(t, w, "steady")
				for _, event := range []func(){w.API.BreakWatches, w.API.ExpireWatches, func() { w.StopAgent(); w.StartAgent() }} {
					if lie.list == emptyPodList {
						w.API.Inject(kubetest.Fault{Verb: "watch", Resource: "pods", Times: 1, Then: kubetest.Say(lie.stream)})
					} else {
						tell(w, lie.list, lie.stream)
					}
					event()
					w.Settle(3 * time.Minute)
					w.API.Heal()
					w.Settle(time.Minute)
					wantAPI(t, w, "after the lie", "steady", 0)
					if now := containerOf(t, w, "steady"); now != steady {
						t.Errorf("the container was %s, is %s", steady, now)
					}
				}
				bind(w, "younger")
				w.Settle(10 * time.Second)
				wantAPI(t, w, "afterwards", "younger", 0)
			})
		})
	}
}

// A server that says twice that there are no pods is believed: they end. Those that it has again
// run again, and are not said to have failed, but for those that must not run twice.
func TestAPIForgetsPodsForAWhile(t *testing.T) {
	for name, back := range map[string]time.Duration{"while they end": 10 * time.Second, "when they have ended": 5 * time.Minute} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := agenttest.New(t)
				w.Join()
				w.Settle(time.Minute)
				bind(w, "web")
				job := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "job", Namespace: "default"}}
				job.Spec = v1.PodSpec{
					NodeName: agenttest.NodeName, RestartPolicy: v1.RestartPolicyNever, Containers: []v1.Container{{Name: "main", Image: agenttest.Image}},
				}
				kubetest.Put(w.API, job)
				w.Settle(10 * time.Second)
				wantAPI(t, w, "at first", "job", 0)
				web := containerOf(t, w, "web")

				tell(w, emptyPodList, endOfList)
				w.API.ExpireWatches()
				w.Settle(back)
				w.API.Heal()
				w.Settle(5 * time.Minute)
				wantAPI(t, w, "back", "web", 1)
				if now := containerOf(t, w, "web"); now == web {
					t.Error("the container goes on though the server said twice that its pod is gone")
				}
				if p, ok := kubetest.Get[*v1.Pod](w.API, "default", "job"); !ok || p.Status.Phase != v1.PodFailed {
					t.Errorf("the pod that must not run twice is %+v", p)
				}
				for _, c := range w.Runtime.Containers() {
					if c.Pod.GetName() == "job" && c.State == runtimeapi.ContainerState_CONTAINER_RUNNING {
						t.Error("the pod that must not run twice runs")
					}
				}
			})
		})
	}
}

// Nothing is made for a pod whose names are paths, and what was once made is removed.
func TestAPIPodsWithPathsForNames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := agenttest.New(t)
		w.Join()
		w.Settle(time.Minute)
		w.StopAgent()
		pods := filepath.Join(w.Root(), "pods")
		for _, earlier := range []string{"volumes", "plugins", "a/b/volumes", "a/b/plugins"} { // of the UIDs "" and "a/b"
			if err := os.MkdirAll(filepath.Join(pods, earlier), 0o750); err != nil {
				t.Fatal(err)
			}
		}
		w.StartAgent()
		for uid, container := range map[pod.UID]string{"a/b": "main", "../../../../uidescape": "main", "u": "../../../../cescape"} {
			p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "bad" + strconv.Itoa(len(uid)), Namespace: "default", UID: uid}}
			p.Spec = v1.PodSpec{NodeName: agenttest.NodeName, Containers: []v1.Container{{Name: container, Image: agenttest.Image}}}
			kubetest.Put(w.API, p)
		}
		good := bind(w, "good")
		w.Settle(time.Minute)
		wantAPI(t, w, "beside the others", "good", 0)
		if n := len(w.Agent.Handlers().Explain.Problems()); n != 3 {
			t.Errorf("%d problems are told, want 3", n)
		}
		if n := len(w.Runtime.Containers()); n != 1 {
			t.Errorf("the runtime has %d containers, want one", n)
		}
		entries, err := os.ReadDir(pods)
		if err != nil || len(entries) != 1 || entries[0].Name() != string(good.UID) {
			t.Errorf("folders of pods: %v, %v, want that of the good one", entries, err)
		}
	})
}
