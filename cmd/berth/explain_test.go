package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth/internal/explain"
	"berth/internal/pod"
	"berth/internal/record/journal"
	"berth/internal/source/manifest"
)

// goldenFile compares with a file of testdata; BERTH_UPDATE_GOLDEN writes it.
func goldenFile(t *testing.T, path, got string) {
	t.Helper()
	if os.Getenv("BERTH_UPDATE_GOLDEN") != "" {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	golden(t, path, string(want), got)
}

var webSubject = journal.Subject{UID: "u-web", Namespace: "default", Name: "web"}

// webPod is a pod with one container in the given state.
func webPod(phase v1.PodPhase, cs ...v1.ContainerStatus) *v1.Pod {
	p := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", UID: "u-web"},
		Spec:       v1.PodSpec{RestartPolicy: v1.RestartPolicyAlways, Containers: []v1.Container{{Name: "main", Image: "registry.example/web:1"}}},
		Status:     v1.PodStatus{Phase: phase, ContainerStatuses: cs},
	}
	return p
}

func with(p *v1.Pod, change func(*v1.Pod)) *v1.Pod {
	change(p)
	return p
}

func waitingFor(name, reason, message string, restarts int32) v1.ContainerStatus {
	c := waiting(name, reason)
	c.State.Waiting.Message, c.RestartCount = message, restarts
	return c
}

// before is an entry so long before now.
func before(d time.Duration, component, container, decision, why string) journal.Entry {
	return journal.Entry{Time: now.Add(-d), Subject: webSubject, Component: component, Container: container, Decision: decision, Why: why}
}

func failed(e journal.Entry, err string) journal.Entry {
	e.Error = err
	return e
}

// started are the marks of a start that began so long before now and was slow at its image.
func startedMarks(began time.Duration, steps ...journal.Step) []journal.Milestone {
	after := map[journal.Step]time.Duration{
		journal.Admitted: 300 * time.Microsecond, journal.Cgroup: 2 * time.Millisecond, journal.Volumes: 9 * time.Millisecond, journal.Sandbox: 81 * time.Millisecond,
		journal.Image: 6400 * time.Millisecond, journal.Created: 6420 * time.Millisecond, journal.Started: 6460 * time.Millisecond, journal.Ready: 9470 * time.Millisecond,
	}
	var out []journal.Milestone
	for _, s := range steps {
		container := ""
		if s == journal.Image || s == journal.Created || s == journal.Started {
			container = "main"
		}
		out = append(out, journal.Milestone{Step: s, Container: container, Time: now.Add(after[s] - began)})
	}
	return out
}

var allSteps = []journal.Step{journal.Admitted, journal.Cgroup, journal.Volumes, journal.Sandbox, journal.Image, journal.Created, journal.Started, journal.Ready}

func story(began time.Duration, marks []journal.Milestone, entries ...journal.Entry) journal.Timeline {
	return journal.Timeline{Subject: webSubject, Seen: now.Add(-began), Milestones: marks, Entries: entries}
}

func ends(restarts ...int) []journal.End {
	var out []journal.End
	for i, r := range restarts {
		at := now.Add(-time.Duration(len(restarts)-i)*20*time.Second + 12*time.Second)
		out = append(out, journal.End{
			Container: "main", ID: fmt.Sprint(r), Restart: r, ExitCode: 1, Reason: "Error", Started: at.Add(-1200 * time.Millisecond), Finished: at,
			Log: "listening on :8080\n\tpanic: no \x1b[2Jdatabase\n",
		})
	}
	return out
}

func TestExplainGolden(t *testing.T) {
	ready := func(p *v1.Pod) {
		p.Status.Conditions = []v1.PodCondition{{Type: v1.PodReady, Status: v1.ConditionTrue, LastTransitionTime: ago(time.Hour)}}
	}
	for name, e := range map[string]explain.Report{
		"crashloop": {
			Pods: []*v1.Pod{webPod(v1.PodRunning, waitingFor("main", "CrashLoopBackOff", "back-off 20s restarting failed container=main pod=web_default(u-web)", 3))},
			Stories: []journal.Timeline{{
				Subject: webSubject, Seen: now.Add(-2 * time.Minute), Milestones: startedMarks(2*time.Minute, allSteps...), Ends: ends(0, 1, 2, 3),
				Next:    []journal.Next{{Time: now.Add(11500 * time.Millisecond), Container: "main", What: "next try to start it", Rule: "crash-loop back-off 20s of at most 5m0s after 3 restarts"}},
				Entries: []journal.Entry{before(2*time.Minute, "config", "", "accepted", "new in manifest /m/web.yaml"), before(8*time.Second, "status", "main", "waiting: CrashLoopBackOff", "back-off 20s")},
			}},
		},
		"waiting-image": {
			Pods: []*v1.Pod{webPod(v1.PodPending, waitingFor("main", "ImagePullBackOff", "Back-off pulling image \"registry.example/web:1\": failed to resolve reference: no such host", 0))},
			Stories: []journal.Timeline{{
				Subject: webSubject, Seen: now.Add(-30 * time.Second), Milestones: startedMarks(30*time.Second, allSteps[:4]...),
				Next: []journal.Next{{Time: now.Add(7 * time.Second), Container: "main", What: "next try to pull its image", Rule: "image-pull back-off, which doubles up to 5m0s"}},
				Entries: []journal.Entry{
					before(30*time.Second, "config", "", "accepted", "new in manifest /m/web.yaml"),
					failed(before(3*time.Second, "image", "main", `image "registry.example/web:1" is not available: ErrImagePull`, "pull policy Always"), "failed to resolve reference: no such host"),
				},
			}},
		},
		"waiting-volume": {
			Pods: []*v1.Pod{webPod(v1.PodPending, waiting("main", "ContainerCreating"))},
			Stories: []journal.Timeline{story(42*time.Second, startedMarks(42*time.Second, allSteps[:2]...),
				before(42*time.Second, "config", "", "accepted", "new in source api"),
				failed(before(4*time.Second, "worker", "", "pass failed, to be tried again", "state Syncing"), `sync pod default/web: step volume inputs: volume "keys": secret "web" not found`),
			)},
		},
		"waiting-device": {
			Pods: []*v1.Pod{webPod(v1.PodPending, waitingFor("main", "CreateContainerConfigError", "waiting for the device plugin of example.com/gpu to register", 1))},
			Stories: []journal.Timeline{{
				Subject: webSubject, Seen: now.Add(-42 * time.Second), Milestones: startedMarks(42*time.Second, allSteps[:5]...),
				Entries: []journal.Entry{
					before(42*time.Second, "config", "", "accepted", "new in source api"),
					before(42*time.Second, "devices", "main", "give example.com/gpu: gpu-1", "it asks for 1; healthy and free are gpu-0, gpu-1; NUMA nodes wanted: {1}"),
					failed(before(4*time.Second, "worker", "", "pass failed, to be tried again", "state Syncing"), "sync pod default/web: container main: waiting for the device plugin of example.com/gpu to register"),
				},
			}},
		},
		"waiting-name": {
			Pods: []*v1.Pod{webPod(v1.PodPending)},
			Stories: []journal.Timeline{story(5*time.Second, nil,
				before(5*time.Second, "config", "", "accepted", "manifest /m/web.yaml changed: replaces pod 1"),
				before(5*time.Second, "worker", "", "wait for the pod of the same name to end", ""),
			)},
		},
		"refused": {
			Pods: []*v1.Pod{with(webPod(v1.PodFailed), func(p *v1.Pod) {
				p.Status.Reason, p.Status.Message = "NodePorts", "Pod was rejected: Node didn't have free ports for the requested pod ports"
			})},
			Stories: []journal.Timeline{story(time.Minute, nil,
				before(time.Minute, "config", "", "accepted", "new in manifest /m/web.yaml"),
				failed(before(time.Minute, "event", "", "NodePorts", ""), "Node didn't have free ports for the requested pod ports"),
			)},
		},
		"killed": {
			Pods: []*v1.Pod{with(webPod(v1.PodRunning, restarted(running("main"), 2, 5*time.Second)), ready)},
			Stories: []journal.Timeline{{
				Subject: webSubject, Seen: now.Add(-25 * time.Hour), Milestones: startedMarks(25*time.Hour, allSteps...),
				Ends: []journal.End{
					{Container: "main", ID: "0", Restart: 0, ExitCode: 143, Reason: "Error", Started: now.Add(-25 * time.Hour), Finished: now.Add(-2 * time.Hour), Log: "bye\n"},
					{Container: "main", ID: "1", Restart: 1, ExitCode: 137, Reason: "OOMKilled", Started: now.Add(-2 * time.Hour), Finished: now.Add(-5 * time.Second)},
				},
				Entries: []journal.Entry{before(5*time.Second, "status", "main", "running", "restart 2")},
			}},
		},
		"slow-start": {
			Pods: []*v1.Pod{with(webPod(v1.PodRunning, running("main")), ready)},
			Stories: []journal.Timeline{{
				Subject: webSubject, Seen: now.Add(-time.Hour),
				Milestones: append(startedMarks(time.Hour, allSteps...), journal.Milestone{Step: journal.Started, Container: "debugger", Time: now}),
				Entries:    []journal.Entry{before(time.Hour, "config", "", "accepted", "new in manifest /m/web.yaml"), before(time.Hour-9*time.Second, "status", "", "ready", "")},
			}},
		},
		"ending": {
			Pods: []*v1.Pod{with(webPod(v1.PodRunning, running("main")), func(p *v1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: now} })},
			Stories: []journal.Timeline{{
				Subject: webSubject, Seen: now.Add(-time.Hour), Next: []journal.Next{{Time: now.Add(28 * time.Second), What: "what still runs of the pod is killed", Rule: "its grace period is 30s"}},
				Entries: []journal.Entry{before(2*time.Second, "worker", "", "end the pod", "its manifest is gone; grace period 30 s")},
			}},
		},
		"gone": {
			Stories: []journal.Timeline{
				{
					Subject: webSubject, Seen: now.Add(-time.Hour), Milestones: startedMarks(time.Hour, allSteps...), Ends: ends(0),
					Entries: []journal.Entry{
						before(70*time.Second, "worker", "", "end the pod", "its manifest is gone; grace period 30 s"),
						before(time.Minute, "worker", "", "pod removed: containers, sandboxes, logs and folders are gone", ""),
					},
				},
			},
		},
		"failed": {
			Pods: []*v1.Pod{with(webPod(v1.PodFailed, terminated("main", v1.ContainerStateTerminated{ExitCode: 3, Reason: "Error", FinishedAt: ago(5 * time.Minute)})), func(p *v1.Pod) {
				p.Spec.RestartPolicy = v1.RestartPolicyNever
			})},
			Stories: []journal.Timeline{story(6*time.Minute, nil, before(6*time.Minute, "config", "", "accepted", "new in source api"))},
		},
		"initializing": {
			Pods: []*v1.Pod{with(webPod(v1.PodPending, waiting("main", "PodInitializing")), func(p *v1.Pod) {
				p.Spec.InitContainers = []v1.Container{{Name: "wait"}, {Name: "setup"}}
				setup := with2(running("setup"))
				setup.State.Running.StartedAt = ago(90 * time.Second)
				p.Status.InitContainerStatuses = []v1.ContainerStatus{terminated("wait", v1.ContainerStateTerminated{Reason: "Completed"}), setup}
			})},
			Stories: []journal.Timeline{story(2*time.Minute, nil, before(2*time.Minute, "config", "", "accepted", "new in source api"))},
		},
		"unready": {
			Pods: []*v1.Pod{with(webPod(v1.PodRunning, with2(running("main"))), func(p *v1.Pod) {
				p.Spec.Containers[0].ReadinessProbe = &v1.Probe{}
			})},
			Stories: []journal.Timeline{story(2*time.Minute, nil, failed(before(3*time.Second, "event", "main", "Unhealthy", ""), "Readiness probe failed: HTTP probe failed with statuscode: 503"))},
		},
		"quarantined": {
			Pods:        []*v1.Pod{with(webPod(v1.PodRunning, running("main")), ready)},
			Quarantined: map[pod.UID]string{"u-web": "panic: runtime error: index out of range [3] with length 2\nin berth/internal/sync/podsync.(*Syncer).SyncPod"},
			Stories: []journal.Timeline{story(2*time.Minute, nil,
				failed(before(3*time.Second, "quarantine", "", "the pod is set aside", "the agent crashed 3 times with it in hand"), "panic: runtime error"))},
		},
		"manifest": {
			Problems: []manifest.Problem{{Path: "/m/broken.yaml", Severity: manifest.SeverityError, Message: "spec.containers[0].image: Required value"}},
			Stories: []journal.Timeline{{
				Subject: journal.Subject{Name: "broken.yaml"}, Seen: now.Add(-time.Minute),
				Entries: []journal.Entry{{Time: now.Add(-time.Minute), Subject: journal.Subject{Name: "broken.yaml"}, Component: "config", Decision: "manifest refused", Why: "/m/broken.yaml", Error: "spec.containers[0].image: Required value"}},
			}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			out := strings.Join(allLines(explain.Explain(e, now, time.UTC), now, time.UTC), "\n") + "\n"
			goldenFile(t, filepath.Join("testdata", "explain", name+".txt"), out)
			for l := range strings.Lines(out) {
				if strings.ContainsRune(l, '\x1b') {
					t.Errorf("a line moves the cursor: %q", l)
				}
				if n := utf8.RuneCountInString(l); n > 180 {
					t.Errorf("a line of %d characters: %s", n, l)
				}
			}
		})
	}
}

// with2 is a container that runs and is not ready.
func with2(c v1.ContainerStatus) v1.ContainerStatus {
	c.Ready = false
	return c
}

func TestOfContainer(t *testing.T) {
	e := explain.Report{
		Pods: []*v1.Pod{webPod(v1.PodRunning)},
		Stories: []journal.Timeline{{
			Subject: webSubject, Milestones: startedMarks(time.Hour, allSteps...), Ends: []journal.End{{Container: "side"}, {Container: "main"}},
			Next:    []journal.Next{{Container: "side"}, {What: "all"}},
			Entries: []journal.Entry{before(0, "config", "", "accepted", ""), before(0, "image", "main", "pulled", ""), before(0, "image", "side", "pulled", "")},
		}},
	}
	got, err := ofContainer(e, "side")
	if err != nil {
		t.Fatal(err)
	}
	if s := got.Stories[0]; len(s.Milestones) != 5 || len(s.Ends) != 1 || len(s.Next) != 2 || len(s.Entries) != 2 || s.Entries[1].Container != "side" {
		t.Errorf("got %+v", s)
	}
	if _, err := ofContainer(e, "other"); !errors.Is(err, errNotFound) || !strings.Contains(err.Error(), "main, side") && !strings.Contains(err.Error(), "main") {
		t.Errorf("got %v", err)
	}
}

// TestScreenFits explains a pod that has crashed two hundred times and says much: one screen has
// the sentence, what is next, what the container said and the last round of decisions, with how
// many there were.
func TestScreenFits(t *testing.T) {
	var entries []journal.Entry
	for i := 200; i > 0; i-- {
		at := time.Duration(i) * 5 * time.Minute
		entries = append(entries,
			before(at, "runtime", "main", "container started", fmt.Sprintf("restart %d", 200-i)),
			failed(before(at-time.Second, "event", "main", "Unhealthy", ""), "Liveness probe failed: "+strings.Repeat("no answer ", 40)),
			before(at-2*time.Second, "status", "main", "terminated with exit code 1 (Error)", fmt.Sprintf("restart %d", 200-i)),
			failed(before(at-2*time.Second, "event", "main", "BackOff", ""), "Back-off restarting failed container"),
		)
	}
	last := ends(200)
	last[0].Log = strings.Repeat("what a container says that says too much in one line ", 10) + "\n"
	e := explain.Report{
		Pods:    []*v1.Pod{webPod(v1.PodRunning, waitingFor("main", "CrashLoopBackOff", "back-off 5m0s restarting", 200))},
		Stories: []journal.Timeline{{Subject: webSubject, Seen: now.Add(-24 * time.Hour), Ends: last, Entries: entries}},
	}
	lines := screenLines(explain.Explain(e, now, time.UTC), now, time.UTC, 80)
	if len(lines) > screenRows {
		t.Errorf("%d rows, want at most %d", len(lines), screenRows)
	}
	for _, l := range lines {
		if n := utf8.RuneCountInString(l); n > 80 {
			t.Errorf("%d columns, want at most 80: %s", n, l)
		}
	}
	said := strings.Join(strings.Fields(strings.Join(lines, "\n")), " ")
	for _, want := range []string{"with 200 restarts so far", "| what a container says", "from here on 200 times, at last:", "container started: restart 199"} {
		if !strings.Contains(said, want) {
			t.Errorf("the screen does not have %q:\n%s", want, said)
		}
	}
}

// TestFewerRows joins the steps that took least, and never the last one with another.
func TestFewerRows(t *testing.T) {
	at := func(s int) time.Time { return now.Add(time.Duration(s) * time.Second) }
	steps := []explain.Step{
		{Name: "seen", From: at(0), To: at(0)},
		{Name: "admitted", From: at(0), To: at(1)},
		{Name: "image", Container: "main", From: at(1), To: at(60)},
		{Name: "created", Container: "main", From: at(60), To: at(61)},
		{Name: "started", Container: "main", From: at(61), To: at(62)},
		{Name: "ready", From: at(62), To: at(62), Open: true},
	}
	var got []string
	for _, s := range joinSteps(steps, 4) {
		got = append(got, fmt.Sprintf("%s/%s %s", s.Name, s.Container, s.Took()))
	}
	golden(t, "rows", "seen … admitted/ 1s\nimage/main 59s\ncreated … started/main 2s\nready/ 0s", strings.Join(got, "\n"))
}
