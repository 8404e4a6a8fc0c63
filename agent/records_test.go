package agent_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"

	"berth/agent"
	"berth/agent/agenttest"
	"berth/internal/api/server"
	"berth/internal/pod"
	"berth/internal/record/journal"
)

const crashingPod = `
apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  containers:
  - {name: main, image: "` + agenttest.Image + `"}
  volumes:
  - {name: data, emptyDir: {}}
`

// storyOf returns what the journal has of the pod, one incarnation.
func storyOf(t *testing.T, h server.Handlers, name string) journal.Timeline {
	t.Helper()
	stories := h.Explain.Journal.Stories("default", name)
	if len(stories) != 1 {
		t.Fatalf("%d stories of %s", len(stories), name)
	}
	return stories[0]
}

func reasons(a *agent.Agent) map[string]int32 {
	out := map[string]int32{}
	for _, e := range a.Events() {
		out[e.Reason] += e.Count
	}
	return out
}

// A pod's start, the ends of its containers and what comes next are in the journal, and there still
// after a restart of the agent.
func TestRecordsOfAPod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := agenttest.New(t)
		w.Write("web.yaml", []byte(crashingPod))
		w.Settle(time.Second)
		for range 2 { // the first restart is at once, the second waits
			w.Runtime.Kill("web/main", 3)
			w.Settle(time.Second)
		}
		var steps []string
		s := storyOf(t, w.Agent.Handlers(), "web")
		for _, m := range s.Milestones {
			steps = append(steps, m.Step.String()+" "+m.Container)
			if m.Time.Before(s.Seen) {
				t.Errorf("%s was done before the pod was seen", m.Step)
			}
		}
		for _, want := range []string{"admitted ", "cgroup ", "volumes ", "sandbox ", "image main", "created main", "started main", "ready "} {
			if !strings.Contains(strings.Join(steps, ",")+",", want+",") {
				t.Errorf("no step %q among %q", want, steps)
			}
		}
		if len(s.Ends) != 2 || s.Ends[1].ExitCode != 3 || s.Ends[1].Restart != 1 || s.Ends[1].Container != "main" || s.Ends[1].Started.IsZero() {
			t.Errorf("ends %+v", s.Ends)
		}
		if len(s.Next) != 1 || !s.Next[0].Time.Equal(s.Ends[1].Finished.Add(10*time.Second)) || s.Next[0].Rule != "crash-loop back-off 10s of at most 5m0s after 1 restart" {
			t.Errorf("next %+v", s.Next)
		}
		told := reasons(w.Agent)
		if told["Created"] != 2 || told["BackOff"] == 0 {
			t.Errorf("events %v", told)
		}

		w.StopAgent()
		w.StartAgent()
		after := storyOf(t, w.Agent.Handlers(), "web")
		if diff := cmp.Diff(s.Milestones, after.Milestones); diff != "" {
			t.Errorf("marks after a restart (-before +after):\n%s", diff)
		}
		if diff := cmp.Diff(s.Ends, after.Ends); diff != "" {
			t.Errorf("ends after a restart (-before +after):\n%s", diff)
		}
		if len(after.Entries) < len(s.Entries) || after.Entries[0] != s.Entries[0] {
			t.Errorf("entries after a restart: %d, before %d", len(after.Entries), len(s.Entries))
		}
		if now := reasons(w.Agent); now["Created"] != 2 {
			t.Errorf("events after a restart %v", now)
		}
		w.Settle(20 * time.Second)
		if s := storyOf(t, w.Agent.Handlers(), "web"); len(s.Next) != 0 {
			t.Errorf("a pod that runs waits for %+v", s.Next)
		}
	})
}

// crash has the agent die of a panic with the pods in hand, and the next one start.
func crash(t *testing.T, w *agenttest.World, inHand ...pod.UID) {
	t.Helper()
	if err := w.Crash(inHand...); err != nil {
		t.Fatal(err)
	}
}

// After three crashes with it in hand a pod is left alone, and the others are not; a client can let
// go of it.
func TestAPodIsSetAside(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := agenttest.New(t)
		w.Write("web.yaml", []byte(crashingPod))
		w.Write("other.yaml", []byte(strings.Replace(crashingPod, "web", "other", 1)))
		w.Settle(time.Second)
		uid := storyOf(t, w.Agent.Handlers(), "web").Subject.UID
		for range 3 {
			crash(t, w, uid)
			w.Settle(time.Second)
		}
		restarts := func() map[string]int32 {
			out := map[string]int32{}
			for _, p := range w.Agent.Handlers().Pods.List() {
				for _, cs := range p.Status.ContainerStatuses {
					out[p.Name] = cs.RestartCount
				}
			}
			return out
		}
		h := w.Agent.Handlers()
		if why, ok := h.Explain.Quarantine.Why(uid); !ok || why != "panic: an unlucky pod" {
			t.Errorf("why: %q, %v", why, ok)
		}
		calls := w.Runtime.Calls.Count("CreateContainer")
		w.Runtime.Kill("web/main", 1)
		w.Settle(time.Hour)
		if n := w.Runtime.Calls.Count("CreateContainer"); n != calls {
			t.Errorf("%d containers were created for a pod that is set aside", n-calls)
		}
		w.Runtime.Kill("other/main", 1)
		w.Settle(time.Second)
		if got := restarts(); got["other"] != 1 {
			t.Errorf("another pod is not looked after: %v", got)
		}
		quarantined := 0
		for _, e := range w.Agent.Events() {
			if e.Reason == "Quarantined" && e.Type == v1.EventTypeWarning && e.InvolvedObject.Name == "web" && e.Count == 1 {
				quarantined++
			}
		}
		if quarantined != 1 {
			t.Errorf("%d events tell of it: %v", quarantined, reasons(w.Agent))
		}
		crashes := 0
		for _, e := range storyOf(t, h, "web").Entries {
			if e.Component == "quarantine" && strings.Contains(e.Error, "panic: an unlucky pod") {
				crashes++
			}
		}
		if crashes != 4 {
			t.Errorf("%d entries tell of three crashes and what came of them", crashes)
		}

		if h.Explain.Quarantine.Release("default", "other") || !h.Explain.Quarantine.Release("default", "web") {
			t.Error("the wrong pod was released")
		}
		w.Settle(time.Second)
		if got := restarts(); got["web"] != 1 {
			t.Errorf("after its release: %v", got)
		}
	})
}

// A pod that is set aside can be replaced by changing its manifest, and ended by taking that away.
func TestAPodThatIsSetAsideChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := agenttest.New(t)
		w.Write("web.yaml", []byte(crashingPod))
		uid := storyOf(t, w.Agent.Handlers(), "web").Subject.UID
		for range 3 {
			crash(t, w, uid)
		}
		w.Write("web.yaml", []byte(strings.Replace(crashingPod, "name: main", "name: changed", 1)))
		w.Settle(time.Minute)
		pods := w.Agent.Handlers().Pods.List()
		if len(pods) != 1 || pods[0].UID == uid || pods[0].Status.Phase != v1.PodRunning {
			t.Fatalf("got %+v", pods)
		}
		w.Remove("web.yaml")
		w.Settle(time.Minute)
		if n := len(w.Runtime.Containers()); n != 0 {
			t.Errorf("%d containers are left", n)
		}
	})
}
