package agent_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/types"

	"berth/agent"
	"berth/agent/agenttest"
	"berth/internal/runtime/cri/critest"
)

const patientManifest = `apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  terminationGracePeriodSeconds: 3600
  containers:
  - {name: main, image: "` + agenttest.Image + `"}
`

// newPatient is a world with a pod that takes an hour to end.
func newPatient(t *testing.T) *agenttest.World {
	t.Helper()
	w := agenttest.New(t)
	w.Runtime.Programs.Set("web/main", critest.Program{IgnoresStop: true})
	w.Write("web.yaml", []byte(patientManifest))
	w.Settle(time.Second)
	return w
}

// ends are the ways in which an agent takes its pods along: its own end, and that of what it has
// left behind.
func ends(t *testing.T, test func(t *testing.T, w *agenttest.World, end func() error)) {
	for name, end := range map[string]func(w *agenttest.World) func() error{
		"of a running agent": func(w *agenttest.World) func() error { return w.StopAll },
		"of what was left": func(w *agenttest.World) func() error {
			w.StopAgent()
			return w.TryDrain
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newPatient(t)
				test(t, w, end(w))
			})
		})
	}
}

// The end of all pods has no patience after a minute and a half, and says then that all has ended.
func TestEndOfAllPodsIsForced(t *testing.T) {
	ends(t, func(t *testing.T, w *agenttest.World, end func() error) {
		began := time.Now()
		if err := end(); err != nil {
			t.Error(err)
		}
		if took := time.Since(began); took > 100*time.Second { // of virtual time
			t.Errorf("it took %s", took)
		}
		if left := w.Runtime.Containers(); len(left) > 0 {
			t.Errorf("left %v", left)
		}
		if err := agent.CheckEnded(w.RunDir()); err != nil {
			t.Error(err)
		}
	})
}

// A runtime that does not answer any more keeps no process of a pod.
func TestEndOfAllPodsWithoutTheRuntime(t *testing.T) {
	ends(t, func(t *testing.T, w *agenttest.World, end func() error) {
		time.AfterFunc(10*time.Second, func() { w.Runtime.Calls.Inject(critest.Fault{Times: -1, Hang: true}) })
		err := end()
		if err == nil || !strings.Contains(err.Error(), "pod default/web: not removed: ") {
			t.Errorf("got %v", err)
		}
		if processes, err := w.Cgroups.Processes(types.UID(w.Runtime.Containers()[0].Pod.Uid)); err != nil || len(processes) > 0 {
			t.Errorf("left %v, %v", processes, err)
		}
	})
}

// What no signal ends is named, with what to do, and ended when that is done.
func TestEndOfAllPodsNamesWhatIsLeft(t *testing.T) {
	ends(t, func(t *testing.T, w *agenttest.World, end func() error) {
		w.Cgroups.SetDeaf("web", true)
		for _, method := range []string{"StopContainer", "StopPodSandbox", "Kill", "RemoveContainer", "RemovePodSandbox"} {
			w.Runtime.Calls.Fail(method, -1, status.Error(codes.Unknown, "it does not end"))
		}
		for _, err := range []error{end(), agent.CheckEnded(w.RunDir())} { // to who asked, and to who asks later
			for _, part := range []string{"not all has ended", "pod default/web, container main: process 4711 (main)", `run "berth stop --all" again`} {
				if err == nil || !strings.Contains(err.Error(), part) {
					t.Errorf("got %v, want %q in it", err, part)
				}
			}
		}
		w.Cgroups.SetDeaf("web", false)
		w.Runtime.Calls.ClearFaults()
		if err := w.TryDrain(); err != nil {
			t.Error(err)
		}
		if err := agent.CheckEnded(w.RunDir()); err != nil {
			t.Error(err)
		}
	})
}
