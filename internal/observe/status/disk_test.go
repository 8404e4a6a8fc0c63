package status_test

import (
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"

	"berth/internal/checkpoint/checkpointtest"
	"berth/internal/pod"
)

// A status that cannot be written is told all the same; what the next agent knows is the last that
// could.
func TestDiskThatTakesNoStatuses(t *testing.T) {
	checkpointtest.Each(t, func(t *testing.T, fail func(string) func()) {
		path := filepath.Join(t.TempDir(), "statuses.json")
		synctest.Test(t, func(t *testing.T) {
			phases := func() (a, b v1.PodPhase) {
				next, stop := agentOf(t, path)
				defer stop()
				before, _ := next.Get("a")
				after, _ := next.Get("b")
				return before.Phase, after.Phase
			}
			m, stop := agentOf(t, path)
			defer stop()
			m.Set(keptPod("a", pod.APISource), v1.PodStatus{Phase: v1.PodSucceeded})
			time.Sleep(time.Minute)
			mend := fail(filepath.Dir(path))
			m.Set(keptPod("b", pod.APISource), v1.PodStatus{Phase: v1.PodFailed})
			time.Sleep(time.Minute)
			if got, _ := m.Get("b"); got.Phase != v1.PodFailed {
				t.Errorf("the pod is %q", got.Phase)
			}
			if a, b := phases(); a != v1.PodSucceeded || b != "" {
				t.Errorf("meanwhile the file has %q and %q", a, b)
			}
			mend()
			time.Sleep(11 * time.Second)
			if a, b := phases(); a != v1.PodSucceeded || b != v1.PodFailed {
				t.Errorf("then the file has %q and %q", a, b)
			}
		})
	})
}
