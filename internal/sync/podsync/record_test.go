package podsync

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"

	"berth/internal/pod"
	"berth/internal/pod/lifecycle"
	"berth/internal/record/journal"
	"berth/internal/runtime/kuberuntime"
)

func recordingSyncer() *Syncer {
	return New(Config{Journal: journal.New(slog.New(slog.DiscardHandler))})
}

func storyOf(t *testing.T, s *Syncer) journal.Timeline {
	t.Helper()
	stories := s.Journal.Stories("default", "web")
	if len(stories) != 1 {
		t.Fatalf("%d stories", len(stories))
	}
	return stories[0]
}

func TestWhatTheRuntimeShowsIsRecorded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "1.log")
	var log strings.Builder
	for i := range 20 {
		fmt.Fprintf(&log, "2026-01-02T03:04:05Z stdout F line %d\n2026-01-02T03:04:05Z stderr F error %d\n", i, i)
	}
	if err := os.WriteFile(path, []byte(log.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	at := func(seconds int64) time.Time { return time.Unix(1700000000+seconds, 0) }
	p := &v1.Pod{}
	p.UID, p.Namespace, p.Name = "u", "default", "web"
	r := Request{UID: "u", Pod: p, Observed: &pod.Status{
		Sandboxes: []pod.SandboxStatus{{Attempt: 1, Ready: true, CreatedAt: at(50)}, {Attempt: 0, Ready: true, CreatedAt: at(1)}},
		Containers: []pod.ContainerStatus{ // newest first
			{ID: "c3", Name: "main", State: pod.StateRunning, Attempt: 2, CreatedAt: at(20), StartedAt: at(21)},
			{ID: "c2", Name: "main", State: pod.StateExited, Attempt: 1, CreatedAt: at(10), StartedAt: at(11), FinishedAt: at(12), ExitCode: 137, Reason: "OOMKilled", LogPath: path},
			{ID: "c1", Name: "main", State: pod.StateExited, Attempt: 0, CreatedAt: at(2), FinishedAt: at(3), ExitCode: 128, Reason: "StartError", Message: "no such file", LogPath: path + ".gone"},
			{ID: "c0", Name: "side", State: pod.StateCreated, Attempt: 0, CreatedAt: at(4)},
		},
	}}
	s := recordingSyncer()
	for range 2 { // and twice is once
		recordObserved(t.Context(), s.Journal, &r)
	}
	got := storyOf(t, s)
	wantMarks := []journal.Milestone{
		{Step: journal.Sandbox, Time: at(1)},
		{Step: journal.Created, Container: "main", Time: at(2)},
		{Step: journal.Created, Container: "side", Time: at(4)},
	}
	if diff := cmp.Diff(wantMarks, got.Milestones); diff != "" {
		t.Errorf("marks (-want +got):\n%s", diff)
	}
	wantEnds := []journal.End{
		{Container: "main", ID: "c1", ExitCode: 128, Reason: "StartError", Message: "no such file", Finished: at(3)},
		{
			Container: "main", ID: "c2", Restart: 1, ExitCode: 137, Reason: "OOMKilled", Started: at(11), Finished: at(12),
			Log: "line 15\nerror 15\nline 16\nerror 16\nline 17\nerror 17\nline 18\nerror 18\nline 19\nerror 19\n",
		},
	}
	if diff := cmp.Diff(wantEnds, got.Ends); diff != "" {
		t.Errorf("ends (-want +got):\n%s", diff)
	}
}

func TestWhatIsExpected(t *testing.T) {
	at := func(seconds int64) time.Time { return time.Unix(1700000000+seconds, 0) }
	deadline := int64(60)
	p := &v1.Pod{}
	p.UID, p.Namespace, p.Name = "u", "default", "web"
	p.Spec.ActiveDeadlineSeconds = &deadline
	p.Spec.InitContainers = []v1.Container{{Name: "setup"}}
	p.Spec.Containers = []v1.Container{{Name: "main"}, {Name: "lost"}, {Name: "fine"}, {Name: "broken"}}
	r := Request{UID: "u", Pod: p, Observed: &pod.Status{Containers: []pod.ContainerStatus{
		{Name: "main", State: pod.StateExited, Attempt: 3, FinishedAt: at(0)}, {Name: "fine", State: pod.StateRunning},
	}}}
	s := recordingSyncer()
	s.MaxRestartPeriod = 2 * time.Minute
	synced := kuberuntime.Result{StartErrors: map[string]lifecycle.StartError{
		"setup":  {Reason: lifecycle.ImagePullBackOff, BackOffUntil: at(9)},
		"main":   {Reason: lifecycle.CrashLoopBackOff, BackOffUntil: at(40)},
		"lost":   {Reason: lifecycle.CrashLoopBackOff, BackOffUntil: at(50)},
		"broken": {Reason: lifecycle.CreateContainerError}, // tried again with the pass
	}}
	(&syncPass{Request: r, syncer: s, synced: synced, result: Result{RetryAt: at(60)}}).expectRetries()
	want := []journal.Next{
		{Time: at(9), Container: "setup", What: "next try to pull its image", Rule: "image-pull back-off, which doubles up to 5m0s"},
		{Time: at(40), Container: "main", What: "next try to start it", Rule: "crash-loop back-off 40s of at most 2m0s after 3 restarts"},
		{Time: at(50), Container: "lost", What: "next try to start it", Rule: "crash-loop back-off"},
		{Time: at(60), What: "the pod is failed", Rule: "activeDeadlineSeconds is 60"},
	}
	if diff := cmp.Diff(want, storyOf(t, s).Next); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
