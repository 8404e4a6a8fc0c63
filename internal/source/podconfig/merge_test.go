package podconfig

import (
	"maps"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"berth/internal/pod"
	"berth/internal/source/manifest"
)

func TestMergeSource(t *testing.T) {
	now := time.Date(2024, 5, 1, 12, 0, 0, 120, time.UTC)
	labels := func(p *v1.Pod) { p.Labels = map[string]string{"a": "b"} }
	emptyLabels := func(p *v1.Pod) { p.Labels = map[string]string{} }
	image := func(p *v1.Pod) { p.Spec.Containers = []v1.Container{{Name: "c", Image: "i"}} }
	deleting := func(p *v1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: now} }
	grace := func(p *v1.Pod) { p.DeletionGracePeriodSeconds = ptr.To(int64(3)) }
	running := func(p *v1.Pod) { p.Status.Phase = v1.PodRunning }
	owner := func(p *v1.Pod) {
		p.OwnerReferences = []metav1.OwnerReference{{Name: "o"}}
		p.Finalizers = []string{"f"}
	}
	note := func(k, v string) func(*v1.Pod) { return func(p *v1.Pod) { p.Annotations[k] = v } }

	tests := []struct {
		name    string
		old     []*v1.Pod // delivered before; nil: nothing was ever handed over
		newest  []*v1.Pod
		partial bool
		want    string
	}{
		{name: "first set, empty", want: "ADD"},
		{name: "first set, partial and empty", partial: true, want: ""},
		{name: "first set, partial", newest: []*v1.Pod{testPod("1", "a")}, partial: true, want: "ADD default/a"},
		{name: "first set with pods", newest: []*v1.Pod{testPod("1", "a"), testPod("2", "b")}, want: "ADD default/a default/b"},
		{name: "nothing new", old: []*v1.Pod{testPod("1", "a")}, newest: []*v1.Pod{testPod("1", "a")}, want: ""},
		{name: "all gone", old: []*v1.Pod{testPod("1", "a"), testPod("2", "b")}, want: "REMOVE default/a default/b"},
		{name: "new UID under the same name", old: []*v1.Pod{testPod("1", "a")}, newest: []*v1.Pod{testPod("2", "a")}, want: "REMOVE default/a; ADD default/a"},
		{name: "labels", old: []*v1.Pod{testPod("1", "a")}, newest: []*v1.Pod{testPod("1", "a", labels)}, want: "UPDATE default/a"},
		{name: "no labels is empty labels", old: []*v1.Pod{testPod("1", "a")}, newest: []*v1.Pod{testPod("1", "a", emptyLabels)}, want: ""},
		{name: "spec", old: []*v1.Pod{testPod("1", "a")}, newest: []*v1.Pod{testPod("1", "a", image)}, want: "UPDATE default/a"},
		{name: "spec and status", old: []*v1.Pod{testPod("1", "a")}, newest: []*v1.Pod{testPod("1", "a", image, running)}, want: "UPDATE default/a"},
		{name: "annotation", old: []*v1.Pod{testPod("1", "a")}, newest: []*v1.Pod{testPod("1", "a", note("x", "y"))}, want: "UPDATE default/a"},
		{name: "config.hash counts", old: []*v1.Pod{testPod("1", "a")}, newest: []*v1.Pod{testPod("1", "a", note(pod.ConfigHashAnnotation, "y"))}, want: "UPDATE default/a"},
		{name: "local annotations do not count", old: []*v1.Pod{testPod("1", "a")}, newest: []*v1.Pod{testPod("1", "a",
			note(pod.ConfigSeenAnnotation, "x"), note(pod.ConfigMirrorAnnotation, "x"), note(pod.ConfigSourceAnnotation, "x"))}, want: ""},
		{name: "deletion", old: []*v1.Pod{testPod("1", "a")}, newest: []*v1.Pod{testPod("1", "a", deleting)}, want: "DELETE default/a"},
		{name: "shorter grace while deleting", old: []*v1.Pod{testPod("1", "a", deleting)}, newest: []*v1.Pod{testPod("1", "a", deleting, grace)}, want: "DELETE default/a"},
		{name: "status", old: []*v1.Pod{testPod("1", "a")}, newest: []*v1.Pod{testPod("1", "a", running)}, want: "RECONCILE default/a"},
		{name: "owners and finalizers are not looked at", old: []*v1.Pod{testPod("1", "a")}, newest: []*v1.Pod{testPod("1", "a", owner)}, want: ""},
		{
			name: "order",
			old:  []*v1.Pod{testPod("1", "gone"), testPod("2", "upd"), testPod("3", "del"), testPod("4", "stat")},
			newest: []*v1.Pod{
				testPod("4", "stat", running), testPod("3", "del", deleting), testPod("2", "upd", labels), testPod("5", "new"),
			},
			want: "REMOVE default/gone; ADD default/new; UPDATE default/upd; DELETE default/del; RECONCILE default/stat",
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var old delivered
			if tt.old != nil {
				_, old = mergeSource(pod.APISource, old, snapshot{pods: tt.old}, now)
			}
			updates, next := mergeSource(pod.APISource, old, snapshot{pods: tt.newest, partial: tt.partial}, now)
			if got := ops(updates); got != tt.want {
				t.Errorf("operations: got %q, want %q", got, tt.want)
			}
			if want := old.seen || !tt.partial; next.seen != want {
				t.Errorf("seen: got %v, want %v", next.seen, want)
			}
			again, _ := mergeSource(pod.APISource, next, snapshot{pods: tt.newest, partial: tt.partial}, now)
			if len(again) > 0 {
				t.Errorf("the same set again gave %q", ops(again))
			}
			for _, u := range updates {
				if u.Source != pod.APISource {
					t.Errorf("source: got %q", u.Source)
				}
			}
		})
	}
}

func TestMergeSourceEmptyAddComesBeforeReconcile(t *testing.T) {
	_, old := mergeSource(pod.APISource, delivered{}, snapshot{pods: []*v1.Pod{testPod("1", "a")}, partial: true}, time.Now())
	running := testPod("1", "a", func(p *v1.Pod) { p.Status.Phase = v1.PodRunning })
	updates, _ := mergeSource(pod.APISource, old, snapshot{pods: []*v1.Pod{running}}, time.Now())
	if got, want := ops(updates), "ADD; RECONCILE default/a"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestMergeSourceWhatTheCachedPodTakesOver(t *testing.T) {
	first := time.Date(2024, 5, 1, 12, 0, 0, 120, time.UTC)
	before := testPod("1", "a", func(p *v1.Pod) {
		p.Annotations["kept"] = "no"
		p.Annotations[pod.ConfigMirrorAnnotation] = "m1"
		p.ResourceVersion = "7"
	})
	updates, old := mergeSource(pod.APISource, delivered{}, snapshot{pods: []*v1.Pod{before}}, first)
	handedOut := updates[0].Pods[0]
	frozen := handedOut.DeepCopy()

	after := testPod("1", "a", func(p *v1.Pod) {
		p.Annotations["new"] = "yes"
		p.Annotations[pod.ConfigMirrorAnnotation] = "m2"
		p.Annotations[pod.ConfigSeenAnnotation] = "forged"
		p.Labels = map[string]string{"l": "1"}
		p.Spec.Hostname = "h"
		p.Generation = 4
		p.Status.Phase = v1.PodRunning
		p.ResourceVersion = "8"
	})
	updates, _ = mergeSource(pod.APISource, old, snapshot{pods: []*v1.Pod{after}}, first.Add(time.Hour))
	got := updates[0].Pods[0]

	want := after.DeepCopy()
	want.ResourceVersion = "7" // not among what is taken over
	want.Annotations = map[string]string{
		"new":                      "yes",
		pod.ConfigSourceAnnotation: "api",
		pod.ConfigMirrorAnnotation: "m1",
		pod.ConfigSeenAnnotation:   "2024-05-01T12:00:00.000000120Z",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("merged pod (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(frozen, handedOut); diff != "" {
		t.Errorf("a pod that was handed out has changed:\n%s", diff)
	}
	if _, ok := before.Annotations[pod.ConfigSeenAnnotation]; ok {
		t.Error("the source's pod has changed")
	}
}

func TestMergeDuplicates(t *testing.T) {
	path := func(s string) func(*v1.Pod) { return func(p *v1.Pod) { p.Annotations[pod.ManifestAnnotation] = s } }
	pods := []*v1.Pod{
		testPod("1", "a", path("/m/a")), testPod("2", "a", path("/m/b")), testPod("1", "c", path("/m/c")), testPod("3", "d", path("/m/d")),
	}
	kept, dropped := mergeDuplicates(pod.FileSource, pods)
	if got := ops([]pod.PodUpdate{{Pods: kept, Op: pod.ADD}}); got != "ADD default/a default/d" {
		t.Errorf("kept: %s", got)
	}
	var problems []manifest.Problem
	for i, d := range dropped {
		if d.pod != pods[i+1] {
			t.Errorf("pod %d dropped: %s", i, d.pod.Name)
		}
		problems = append(problems, d.problem)
	}
	want := []manifest.Problem{
		{
			Source: pod.FileSource, Path: "/m/b", Namespace: "default", Name: "a", Severity: manifest.SeverityError,
			Message: "pod default/a stands in /m/a already; the first one counts: change or remove the other one",
		},
		{
			Source: pod.FileSource, Path: "/m/c", Namespace: "default", Name: "c", Severity: manifest.SeverityError,
			Message: "metadata.uid 1 of pod default/c stands in /m/a already; the first one counts: change or remove the other one",
		},
	}
	if diff := cmp.Diff(want, problems); diff != "" {
		t.Errorf("problems (-want +got):\n%s", diff)
	}
}

func TestTakeComputesFromTheNewestSet(t *testing.T) {
	cfg := newConfig(t.TempDir())
	c, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	f := c.feeds[0]
	if c.SeenAllSources() {
		t.Error("seen before anything was handed over")
	}
	hand := func(pods ...*v1.Pod) { c.handOver(f, snapshot{pods: pods}) }

	hand(testPod("1", "a"))
	if c.SeenAllSources() {
		t.Error("seen before it was taken")
	}
	hand(testPod("1", "a"), testPod("2", "short-lived"))
	hand(testPod("1", "a"))
	<-c.Wake()
	select {
	case <-c.Wake():
		t.Error("more than one wake-up is kept")
	default:
	}
	updates := c.Take()
	if got := ops(updates); got != "ADD default/a" {
		t.Errorf("got %q", got)
	}
	if got := pod.SourceOf(updates[0].Pods[0]); got != pod.FileSource {
		t.Errorf("config.source: got %q", got)
	}
	if !c.SeenAllSources() {
		t.Error("not seen after it was taken")
	}
	if got := c.Take(); got != nil {
		t.Errorf("second take: %q", ops(got))
	}
}

func TestTakeExplains(t *testing.T) {
	cfg := newConfig(t.TempDir())
	c, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	from := func(p *v1.Pod) { p.Annotations[pod.ManifestAnnotation] = "/m/web.yaml" }
	hand := func(pods ...*v1.Pod) {
		c.handOver(c.feeds[0], snapshot{pods: pods})
		c.Take()
	}
	hand(testPod("1", "a", from))
	hand(testPod("1", "a", from, func(p *v1.Pod) { p.Labels = map[string]string{"x": "y"} }))
	hand(testPod("2", "a", from))
	hand()
	mirror := func(p *v1.Pod) { p.Annotations[pod.ConfigMirrorAnnotation] = "1" }
	c.handOver(c.feeds[0], snapshot{pods: []*v1.Pod{testPod("3", "a", mirror)}})
	if got := ops(c.Take()); len(got) == 0 {
		t.Error("the loop does not get the mirror")
	}
	var got []string
	for _, e := range cfg.Journal.Read("default", "a") {
		got = append(got, string(e.Subject.UID)+" "+e.Component+": "+e.Decision+": "+e.Why)
	}
	want := []string{
		"1 config: accepted: new in manifest /m/web.yaml",
		"1 config: changed: manifest /m/web.yaml: labels",
		"1 config: removed: manifest /m/web.yaml changed (labels): replaced by pod 2",
		"2 config: accepted: manifest /m/web.yaml changed (labels): replaces pod 1",
		"2 config: removed: no longer in manifest /m/web.yaml",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("journal (-want +got):\n%s", diff)
	}
}

func TestProblemsKeepTheirTimeAndWake(t *testing.T) {
	cfg := newConfig(t.TempDir())
	c, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	f := c.feeds[0]
	a := manifest.Problem{Source: pod.FileSource, Path: "/m/a.yaml", Document: 1, Namespace: "default", Name: "a", Severity: manifest.SeverityError, Message: "bad"}
	b := manifest.Problem{Source: pod.FileSource, Path: "/m/b.yaml", Severity: manifest.SeverityWarning, Message: "odd"}

	changed := c.ProblemsChanged()
	c.handOver(f, snapshot{problems: []manifest.Problem{b, a}})
	<-changed
	first := c.Problems()
	if got := messages(first); got != "a.yaml error: bad\nb.yaml warning: odd" {
		t.Errorf("problems: %s", got)
	}
	changed = c.ProblemsChanged()
	c.handOver(f, snapshot{problems: []manifest.Problem{b, a}})
	select {
	case <-changed:
		t.Error("the same problems woke the watchers")
	default:
	}
	if diff := cmp.Diff(first, c.Problems()); diff != "" {
		t.Errorf("the same problems differ:\n%s", diff)
	}
	c.handOver(f, snapshot{})
	<-changed
	if got := c.Problems(); len(got) > 0 {
		t.Errorf("mended problems stay: %v", got)
	}
	decisions := func(namespace, name string) (out []string) {
		for _, e := range cfg.Journal.Read(namespace, name) {
			out = append(out, e.Decision+"|"+e.Why+"|"+e.Error)
		}
		return out
	}
	refused := []string{"manifest refused|/m/a.yaml|bad", "manifest problem is gone|/m/a.yaml: bad|"}
	if diff := cmp.Diff(refused, decisions("", "a.yaml")); diff != "" {
		t.Errorf("under the file's name:\n%s", diff)
	}
	if diff := cmp.Diff(refused, decisions("default", "a")); diff != "" {
		t.Errorf("under the pod's name:\n%s", diff)
	}
	warned := []string{"manifest warning|/m/b.yaml: odd|", "manifest problem is gone|/m/b.yaml: odd|"}
	if diff := cmp.Diff(warned, decisions("", "b.yaml")); diff != "" {
		t.Errorf("warning:\n%s", diff)
	}
}

func TestNewRefusesABadConfig(t *testing.T) {
	for name, change := range map[string]func(*Config){
		"no logger":       func(c *Config) { c.Log = nil },
		"no journal":      func(c *Config) { c.Journal = nil },
		"no node name":    func(c *Config) { c.NodeName = "" },
		"node name":       func(c *Config) { c.NodeName = "Not A Name" },
		"name rule":       func(c *Config) { c.Names = 7 },
		"negative rescan": func(c *Config) { c.Rescan = -1 },
	} {
		t.Run(name, func(t *testing.T) {
			cfg := newConfig()
			change(&cfg)
			if _, err := New(cfg); err == nil {
				t.Error("accepted")
			}
		})
	}
}

func TestWithAnnotationsSharesNothingThatItChanges(t *testing.T) {
	p := testPod("1", "a")
	before := maps.Clone(p.Annotations)
	if q := withAnnotations(p, map[string]string{"k": "v"}); q.Annotations["k"] != "v" || !maps.Equal(p.Annotations, before) {
		t.Errorf("got %v and %v", q.Annotations, p.Annotations)
	}
}

func TestOnePodInTwoSources(t *testing.T) {
	cfg := newConfig(t.TempDir(), podsURL)
	cfg.API = func(func()) PodWatch { return nil }
	c, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	at := func(source pod.Source, path string) func(*v1.Pod) {
		return func(p *v1.Pod) {
			p.Annotations[pod.ConfigSourceAnnotation], p.Annotations[pod.ManifestAnnotation] = string(source), path
		}
	}
	var sources []pod.Source
	for _, f := range c.feeds {
		sources = append(sources, f.source)
	}
	if diff := cmp.Diff([]pod.Source{pod.FileSource, pod.HTTPSource, pod.APISource}, sources); diff != "" {
		t.Fatalf("sources (-want +got):\n%s", diff)
	}
	c.handOver(c.feeds[0], snapshot{pods: []*v1.Pod{testPod("1", "a", at(pod.FileSource, "/m/a.yaml")), testPod("2", "b", at(pod.FileSource, "/m/b.yaml"))}})
	c.handOver(c.feeds[2], snapshot{pods: []*v1.Pod{testPod("9", "a")}})
	if got := c.Problems(); len(got) > 0 {
		t.Errorf("the API server's copy of a static pod is a problem: %v", got)
	}
	changed := c.ProblemsChanged()
	c.handOver(c.feeds[1], snapshot{pods: []*v1.Pod{testPod("3", "a", at(pod.HTTPSource, podsURL))}})
	<-changed
	want := "pods.yaml warning: pod default/a is wanted by manifest /m/a.yaml too: only one of them runs, and the other one waits until that is gone; rename one of them"
	problems := c.Problems()
	if got := messages(problems); got != want || problems[0].Source != pod.HTTPSource || problems[0].Path != podsURL {
		t.Errorf("problems: %s", got)
	}
	if got := ops(c.Take()); got != "ADD default/a default/b; ADD default/a; ADD default/a" {
		t.Errorf("operations: %s", got)
	}
	changed = c.ProblemsChanged()
	c.handOver(c.feeds[0], snapshot{pods: []*v1.Pod{testPod("2", "b", at(pod.FileSource, "/m/b.yaml"))}})
	<-changed
	if got := c.Problems(); len(got) > 0 {
		t.Errorf("problems that are gone: %v", got)
	}
}
