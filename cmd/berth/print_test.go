package main

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth/internal/api/server"
	"berth/internal/explain"
	"berth/internal/pod"
	"berth/internal/record/journal"
	"berth/internal/source/manifest"
)

// golden compares without the newline that begins a raw string.
func golden(t *testing.T, what, want, got string) {
	t.Helper()
	if diff := cmp.Diff(strings.TrimPrefix(want, "\n"), got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

func runningPod(namespace, name, ip string) *v1.Pod {
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: pod.UID(namespace + name), CreationTimestamp: ago(75 * time.Second)},
		Spec:       v1.PodSpec{NodeName: "box", Containers: []v1.Container{{Name: "main"}}},
		Status: v1.PodStatus{
			Phase: v1.PodRunning, PodIP: ip, ContainerStatuses: []v1.ContainerStatus{running("main")},
			Conditions: []v1.PodCondition{{Type: v1.PodReady, Status: v1.ConditionTrue}},
		},
	}
}

var refusals = []manifest.Problem{
	{Path: "/m/broken.yaml", Severity: manifest.SeverityError, Message: "yaml: line 3:\n  mapping values\x1b[2J", Since: now.Add(-3 * time.Second)},
	{Path: "/m/broken.yaml", Document: 2, Severity: manifest.SeverityError, Message: "metadata.name: Required value", Since: now.Add(-3 * time.Second)},
	{Path: "/m/odd.yaml", Severity: manifest.SeverityWarning, Message: "unknown field", Since: now},
}

func TestPrintTimeline(t *testing.T) {
	subject := journal.Subject{UID: "1", Namespace: "default", Name: "web"}
	entries := []journal.Entry{
		{Time: now, Subject: subject, Component: "config", Decision: "pod added", Why: "/m/web.yaml"},
		{Time: now.Add(1500 * time.Microsecond), Subject: subject, Component: "plan", Decision: "create sandbox, start main"},
		{Time: now.Add(76 * time.Millisecond), Subject: subject, Component: "runtime", Decision: "sandbox run", Took: 74567 * time.Microsecond},
		{Time: now.Add(3 * time.Second), Subject: subject, Component: "image", Container: "main", Decision: "pull failed", Why: "policy\nAlways", Took: 2345 * time.Millisecond, Count: 3, Error: "no such\nhost"},
		{Time: now.Add(21 * time.Hour), Subject: journal.Subject{UID: "2", Namespace: "default", Name: "web"}, Component: "config", Decision: "pod added"},
	}
	out := strings.Join(timelineLines(explain.Fold(entries), time.UTC), "\n") + "\n"
	golden(t, "timeline", `
TIME           AFTER    COMPONENT   CONTAINER   DECISION
2026-01-02
03:04:05.000            config                  pod added: /m/web.yaml
03:04:05.001   +1.5ms   plan                    create sandbox, start main
03:04:05.076   +75ms    runtime                 sandbox run (took 75ms)
03:04:08.000   +2.92s   image       main        pull failed: policy Always (took 2.35s, 3 times in a row)
                                                  error: no such host
default/web, pod with UID 2:
2026-01-03
00:04:05.000            config                  pod added
`, out)
}

func TestPodURLs(t *testing.T) {
	web := runningPod("default", "web", "10.88.0.5")
	web.Spec.Containers[0].Ports = []v1.ContainerPort{
		{ContainerPort: 8080, HostPort: 80}, {ContainerPort: 53, Protocol: v1.ProtocolUDP}, {ContainerPort: 81, HostPort: 81, HostIP: "127.0.0.2", Protocol: v1.ProtocolTCP},
	}
	six := runningPod("default", "six", "fd00::5")
	six.Spec.Containers[0].Ports = []v1.ContainerPort{{ContainerPort: 80}}
	unready := runningPod("default", "unready", "10.88.0.6")
	unready.Spec.Containers[0].Ports, unready.Status.Conditions = six.Spec.Containers[0].Ports, nil
	want := []string{"http://localhost:80", "http://127.0.0.2:81", "http://10.88.0.5:8080", "http://10.88.0.5:81", "http://[fd00::5]:80"}
	if diff := cmp.Diff(want, podURLs([]*v1.Pod{web, six, unready})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestComputeVerdict(t *testing.T) {
	ready := runningPod("default", "web", "")
	done := &v1.Pod{Status: v1.PodStatus{Phase: v1.PodSucceeded}}
	pulling := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "new"}, Spec: v1.PodSpec{Containers: []v1.Container{{Name: "main"}}},
		Status: v1.PodStatus{Phase: v1.PodPending, ContainerStatuses: []v1.ContainerStatus{
			{Name: "main", State: v1.ContainerState{Waiting: &v1.ContainerStateWaiting{Reason: "ErrImagePull", Message: "no such host"}}},
		}},
	}
	failed := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "job"}, Spec: v1.PodSpec{Containers: []v1.Container{{Name: "main"}}},
		Status: v1.PodStatus{Phase: v1.PodFailed, ContainerStatuses: []v1.ContainerStatus{terminated("main", v1.ContainerStateTerminated{ExitCode: 3, Reason: "Error"})}},
	}
	for name, c := range map[string]struct {
		pods     []*v1.Pod
		problems []manifest.Problem
		ready    bool
		err      string
	}{
		"nothing yet":   {},
		"all":           {pods: []*v1.Pod{ready, done}, ready: true},
		"warnings pass": {pods: []*v1.Pod{ready}, problems: refusals[2:], ready: true},
		"not all":       {pods: []*v1.Pod{ready, pulling}},
		"one failed":    {pods: []*v1.Pod{ready, failed}, err: `pod default/job: Error, 0 of 1 containers ready; container "main": exit code 3`},
		"one refused":   {pods: []*v1.Pod{ready}, problems: refusals[1:2], err: "broken.yaml (document 2): metadata.name: Required value"},
	} {
		got, err := computeVerdict(c.pods, c.problems)
		if got != c.ready || (err != nil) != (c.err != "") || err != nil && err.Error() != c.err {
			t.Errorf("%s: got %v, %v", name, got, err)
		}
	}
	golden(t, "what is waited for", `
odd.yaml: warning: unknown field
pod default/new: ErrImagePull, 0 of 1 containers ready; container "main": no such host`,
		strings.Join(describeUnready([]*v1.Pod{ready, done, pulling}, refusals[2:]), "\n"))
	golden(t, "nothing to wait for", "there are no pods", strings.Join(describeUnready(nil, nil), "\n"))
}

func TestLineView(t *testing.T) {
	var out bytes.Buffer
	v := newLineView(server.Handlers{}, hints{program: "bin/berth", runDir: "/tmp/run"}, &out)
	creating, web := runningPod("default", "hello-web", ""), runningPod("default", "hello-web", "10.88.0.5")
	creating.Status.Conditions, creating.Status.ContainerStatuses = nil, []v1.ContainerStatus{waiting("main", "ContainerCreating")}
	web.Spec.Containers[0].Ports = []v1.ContainerPort{{ContainerPort: 8080}}
	again := web.DeepCopy()
	again.Status.ContainerStatuses[0].RestartCount = 1
	for _, step := range []struct {
		pods     []*v1.Pod
		problems []manifest.Problem
		want     string
	}{
		{nil, nil, ""},
		{[]*v1.Pod{creating}, refusals[1:2], `
hello-web   ContainerCreating   0/1
InvalidManifest  broken.yaml (document 2): metadata.name: Required value
`},
		{[]*v1.Pod{creating}, refusals[1:2], ""},
		{[]*v1.Pod{web}, nil, `
hello-web   Running             1/1   10.88.0.5
no longer: broken.yaml (document 2): metadata.name: Required value

All pods are ready:
  curl http://10.88.0.5:8080
  bin/berth get pods -o wide --run-dir /tmp/run
  bin/berth logs -f hello-web --run-dir /tmp/run
  bin/berth explain hello-web --run-dir /tmp/run

`},
		{[]*v1.Pod{again}, nil, "hello-web   Running             1/1   10.88.0.5   restarts 1\n"},
		{nil, nil, "hello-web   Gone\n"},
	} {
		out.Reset()
		if err := v.refresh(step.pods, step.problems, now); err != nil {
			t.Fatal(err)
		}
		golden(t, "lines", step.want, out.String())
	}
}

func TestLiveRows(t *testing.T) {
	got := liveRows([]*v1.Pod{runningPod("default", "hello-web", "10.88.0.5")}, refusals, now)
	golden(t, "rows", `
NAME          READY   STATUS            RESTARTS   AGE   IP
hello-web     1/1     Running           0          75s   10.88.0.5
broken.yaml   -       InvalidManifest   -          3s`, strings.Join(got, "\n"))
}

func TestFrameFit(t *testing.T) {
	f := frame{head: []string{"berth", ""}, rows: []string{"NAME", "a", "b", "c"}, foot: []string{"", "a long hint"}}
	for _, c := range []struct {
		width, height int
		want          []string
	}{
		{80, 24, []string{"berth", "", "NAME", "a", "b", "c", "", "a long hint"}},
		{7, 9, []string{"berth", "", "NAME", "a", "b", "c", "", "a long…"}},
		{80, 8, []string{"berth", "", "NAME", "a", "… and 2 more", "", "a long hint"}},
		{80, 6, []string{"berth", "", "NAME", "a", "… and 2 more"}},
		{80, 1, []string{"berth", "", "NAME", "… and 3 more"}},
	} {
		if diff := cmp.Diff(c.want, f.fit(c.width, c.height)); diff != "" {
			t.Errorf("%d by %d (-want +got):\n%s", c.width, c.height, diff)
		}
	}
}

func TestRedrawFrom(t *testing.T) {
	if got := redrawFrom([]string{"a", "b"}, []string{"a", "b"}); got != "" {
		t.Errorf("nothing changed, but %q is written", got)
	}
	if got, want := redrawFrom(nil, []string{"a"}), "\x1b[?2026h\ra\x1b[K\r\n\x1b[J\x1b[?2026l"; got != want {
		t.Errorf("first: got %q, want %q", got, want)
	}
	if got, want := redrawFrom([]string{"a", "b"}, []string{"c"}), "\x1b[?2026h\r\x1b[2Ac\x1b[K\r\n\x1b[J\x1b[?2026l"; got != want {
		t.Errorf("shorter: got %q, want %q", got, want)
	}
}
