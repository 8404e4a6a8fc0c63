package agent_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"

	"berth/agent/agenttest"
)

const onceManifest = `apiVersion: v1
kind: Pod
metadata: {name: once}
spec:
  restartPolicy: Never
  containers:
  - {name: main, image: "` + agenttest.Image + `"}
`

// A manifest that is taken away and comes back at once is a new pod, also to an agent that takes
// the place of one which was killed in the next moment: it does not take what is kept of the pod
// before for this one's, which would never run.
func TestPodOfTheSameManifestAfterAKill(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := agenttest.New(t)
		w.Write("once.yaml", []byte(onceManifest))
		w.Settle(time.Minute)
		if err := w.Runtime.Kill(containerOf(t, w, "once"), 0); err != nil {
			t.Fatal(err)
		}
		w.Settle(time.Minute)
		if got := phaseOf(w, "once"); got != v1.PodSucceeded {
			t.Fatalf("the first one is %s", got)
		}
		w.Write("other.yaml", []byte(strings.ReplaceAll(onceManifest, "once", "other")))
		w.Settle(0) // statuses have just been written
		w.Remove("once.yaml")
		w.Settle(0)
		if got := phaseOf(w, "once"); got != "" {
			t.Fatalf("the first one is still there: %s", got)
		}
		w.KillAgentAt(agenttest.Step{Door: agenttest.ToRuntime, Nth: 1, Moment: agenttest.BeforeCall})
		w.Write("once.yaml", []byte(onceManifest))
		w.Settle(0)
		if w.Struck() == "" {
			t.Fatal("the agent was not killed")
		}
		w.ReplaceKilled()
		w.Settle(time.Minute)
		containerOf(t, w, "once")
		if got := phaseOf(w, "once"); got != v1.PodRunning {
			t.Fatalf("the second one is %s", got)
		}
	})
}

// phaseOf returns the phase of a pod as the agent shows it, "" when it shows no such pod.
func phaseOf(w *agenttest.World, name string) v1.PodPhase {
	for _, p := range w.Agent.Handlers().Pods.List() {
		if p.Name == name {
			return p.Status.Phase
		}
	}
	return ""
}
