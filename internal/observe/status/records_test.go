package status_test

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth/internal/observe/status"
	"berth/internal/pod"
	"berth/internal/record/journal"
)

func keptPod(uid pod.UID, source pod.Source) *v1.Pod {
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: string(uid), Namespace: "default", UID: uid, Annotations: map[string]string{pod.ConfigSourceAnnotation: string(source)}},
		Spec:       v1.PodSpec{RestartPolicy: v1.RestartPolicyNever, Containers: []v1.Container{{Name: "c"}}},
	}
}

// agentOf runs a manager that keeps its statuses, as an agent does, until the returned function is
// called.
func agentOf(t *testing.T, path string) (m *status.Manager, stop func()) {
	log := slog.New(slog.DiscardHandler)
	m = status.NewManager(log, journal.New(log))
	k := status.NewKept(m, path, log)
	k.Load()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- k.Run(ctx) }()
	synctest.Wait()
	return m, func() {
		synctest.Wait()
		cancel()
		<-done
	}
}

// A static pod's status is known to the next agent, as the one before which that agent's own is
// settled; that of an API pod is the API server's to know, but for its end.
func TestKept(t *testing.T) {
	path := filepath.Join(t.TempDir(), "statuses.json")
	synctest.Test(t, func(t *testing.T) {
		m, stop := agentOf(t, path)
		failed := v1.PodStatus{Phase: v1.PodFailed, Reason: "Evicted", Message: "no room", ContainerStatuses: []v1.ContainerStatus{{Name: "c"}}}
		m.Set(keptPod("static", pod.FileSource), failed)
		m.Set(keptPod("gone", pod.FileSource), failed)
		m.Set(keptPod("api", pod.APISource), v1.PodStatus{Phase: v1.PodRunning})
		m.Set(keptPod("ended", pod.APISource), v1.PodStatus{Phase: v1.PodSucceeded})
		m.Set(keptPod("refused", pod.FileSource), v1.PodStatus{Phase: v1.PodFailed, Reason: "OutOfcpu"})
		before, _ := m.Get("static")
		time.Sleep(time.Minute)
		stop()

		m, stop = agentOf(t, path)
		for _, uid := range []pod.UID{"api", "refused"} {
			if _, ok := m.Get(uid); ok {
				t.Errorf("the status of the %s pod was kept", uid)
			}
		}
		if got, ok := m.Get("static"); !ok || !cmp.Equal(before, got) {
			t.Errorf("kept (-before +after):\n%s", cmp.Diff(before, got))
		}
		if got, ok := m.Get("ended"); !ok || got.Phase != v1.PodSucceeded {
			t.Errorf("the pod of the API that had succeeded is %q", got.Phase)
		}
		m.Retain(func(uid pod.UID) bool { return uid == "static" })
		if _, ok := m.Get("gone"); ok {
			t.Error("the status of a pod that is not there any more was kept")
		}
		m.Set(keptPod("static", pod.FileSource), v1.PodStatus{Phase: v1.PodRunning})
		if got, _ := m.Get("static"); got.Phase != v1.PodFailed {
			t.Errorf("a pod that had failed is %s", got.Phase)
		}
		m.Remove("static")
		stop()

		m, stop = agentOf(t, path)
		if len(m.UIDs()) > 0 {
			t.Errorf("left: %v", m.UIDs())
		}
		if _, ok := m.Get("static"); ok {
			t.Error("the status of a pod that was removed was kept")
		}
		stop()
	})
}

// That a pod is evicted is not kept before the status that it ends with, which nobody could tell
// then: a static pod would be ended by the next agent and never have failed.
func TestEvictionIsKeptWithItsStatus(t *testing.T) {
	path := filepath.Join(t.TempDir(), "statuses.json")
	synctest.Test(t, func(t *testing.T) {
		p := keptPod("static", pod.FileSource)
		running := v1.PodStatus{Phase: v1.PodRunning, ContainerStatuses: []v1.ContainerStatus{{Name: "main"}}}
		m, stop := agentOf(t, path)
		m.Set(p, running)
		m.SetEvicted("static", 1)
		stop() // which writes

		m, stop = agentOf(t, path)
		if grace, ok := m.Evicted("static"); ok {
			t.Errorf("the eviction is kept, with %d s, and the status is not", grace)
		}
		m.SetEvicted("static", 1)
		failed := running
		failed.Phase, failed.Reason = v1.PodFailed, "Evicted"
		m.Set(p, failed)
		stop()

		m, stop = agentOf(t, path)
		if grace, ok := m.Evicted("static"); grace != 1 || !ok {
			t.Errorf("the eviction is %d, %v; want 1, true", grace, ok)
		}
		stop()
	})
}

// That a pod is evicted is kept with its status, in the form in which earlier agents kept statuses,
// and forgotten with the pod.
func TestKeptEvictions(t *testing.T) {
	path := filepath.Join(t.TempDir(), "statuses.json")
	old := `{"version":1,"content":{"ended":{"phase":"Succeeded"},"going":{"phase":"Failed","reason":"Evicted"}}}`
	if err := os.WriteFile(path, []byte(old), 0o600); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		expect := func(m *status.Manager, uid pod.UID, want int64, wantOK bool) {
			t.Helper()
			if grace, ok := m.Evicted(uid); grace != want || ok != wantOK {
				t.Errorf("%s: %d, %v; want %d, %v", uid, grace, ok, want, wantOK)
			}
		}
		m, stop := agentOf(t, path)
		expect(m, "going", 0, false)
		if s, _ := m.Get("going"); s.Reason != "Evicted" {
			t.Errorf("a status of an earlier version is %+v", s)
		}
		for uid, grace := range map[pod.UID]int64{"going": 7, "api": 1, "gone": 2, "running": 3} {
			m.SetEvicted(uid, grace)
		}
		failed := v1.PodStatus{Phase: v1.PodFailed, Reason: "Evicted", Message: "no room"}
		m.Set(keptPod("api", pod.APISource), failed)
		m.Set(keptPod("gone", pod.APISource), failed)
		m.Set(keptPod("running", pod.APISource), v1.PodStatus{Phase: v1.PodRunning})
		stop()

		m, stop = agentOf(t, path)
		expect(m, "going", 7, true)
		expect(m, "api", 1, true)
		expect(m, "ended", 0, false)
		expect(m, "running", 0, false) // what it ends with is not on disk: nothing of it was stopped
		if s, _ := m.Get("api"); s.Message != "no room" {
			t.Errorf("the status of an evicted pod is %+v", s)
		}
		m.SetEvicted("api", 1)
		m.Retain(func(uid pod.UID) bool { return uid != "gone" })
		expect(m, "gone", 0, false)
		m.Remove("going")
		expect(m, "going", 0, false)
		m.SetEvicted("api", 0)
		stop()

		m, stop = agentOf(t, path)
		expect(m, "going", 0, false)
		expect(m, "gone", 0, false)
		expect(m, "api", 0, true)
		stop()
	})
}
