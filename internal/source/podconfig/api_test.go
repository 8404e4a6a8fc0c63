package podconfig

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth/internal/pod"
)

// apiConfig returns a PodConfig with an API source, and what hands over sets for it.
func apiConfig(t *testing.T) (*PodConfig, func(...*v1.Pod)) {
	t.Helper()
	w, c := newFakePodWatch(t)
	return c, func(pods ...*v1.Pod) {
		w.sets <- podSet{pods: pods, synced: true}
		<-c.Wake()
	}
}

// fakePodWatch is a watch of the sets that are sent to it.
type fakePodWatch struct {
	sets    chan podSet
	changed func()

	mu     sync.Mutex
	newest podSet
}

type podSet struct {
	pods   []*v1.Pod
	synced bool
}

// newFakePodWatch returns a watch, and a PodConfig that runs with it as its only source.
func newFakePodWatch(t *testing.T) (*fakePodWatch, *PodConfig) {
	t.Helper()
	w := &fakePodWatch{sets: make(chan podSet)}
	cfg := newConfig()
	cfg.API = func(changed func()) PodWatch {
		w.changed = changed
		return w
	}
	c, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = c.Run(t.Context()) }()
	return w, c
}

func (w *fakePodWatch) Run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case set := <-w.sets:
			w.mu.Lock()
			w.newest = set
			w.mu.Unlock()
			w.changed()
		}
	}
}

func (w *fakePodWatch) List() ([]*v1.Pod, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.newest.pods, w.newest.synced
}

// Before the first list of pods is complete nothing is known of them.
func TestAPIPodsAreTakenOnceTheyAreListed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, c := newFakePodWatch(t)
		for _, step := range []struct {
			set  podSet
			want string
		}{{podSet{}, ""}, {podSet{synced: true}, "ADD"}, {podSet{[]*v1.Pod{testPod("u", "a")}, true}, "ADD default/a"}} {
			w.sets <- step.set
			synctest.Wait()
			if got := ops(c.Take()); got != step.want || c.SeenAllSources() != step.set.synced {
				t.Errorf("%+v: operations %q, seen %t; want %q", step.set, got, c.SeenAllSources(), step.want)
			}
		}
	})
}

func apiPod(uid pod.UID, change func(*v1.Pod)) *v1.Pod {
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "bad", Namespace: "default", UID: uid}}
	p.Spec.Containers = []v1.Container{{Name: "main", Image: "i"}}
	p.Spec.InitContainers = []v1.Container{{Name: "first", Image: "i"}}
	p.Spec.EphemeralContainers = []v1.EphemeralContainer{{EphemeralContainerCommon: v1.EphemeralContainerCommon{Name: "debug", Image: "i"}}}
	p.Spec.Volumes = []v1.Volume{{Name: "data"}}
	change(p)
	return p
}

// What folders, files and records are named after is checked in pods of the API server too: a pod
// with a name that is none is refused, and no other.
func TestAPIPodsWithoutAnIdentityAreRefused(t *testing.T) {
	long := strings.Repeat("a", 10_000)
	for name, test := range map[string]struct {
		uid    pod.UID
		change func(*v1.Pod)
		field  string // "": it is taken
	}{
		"good":                    {"0bdbe417-7da7-40a8-a1f2-0b2362f205e1", func(*v1.Pod) {}, ""},
		"a mirror's":              {"u", func(p *v1.Pod) { p.Annotations = map[string]string{pod.ConfigMirrorAnnotation: "x"} }, ""},
		"a deleted one":           {"u", func(p *v1.Pod) { p.DeletionTimestamp = &metav1.Time{} }, ""},
		"no UID":                  {"", func(*v1.Pod) {}, "metadata.uid"},
		"a path as UID":           {"a/b", func(*v1.Pod) {}, "metadata.uid"},
		"a way out as UID":        {"../../../../uidescape", func(*v1.Pod) {}, "metadata.uid"},
		"the folder above as UID": {"..", func(*v1.Pod) {}, "metadata.uid"},
		"a long UID":              {pod.UID(long), func(*v1.Pod) {}, "metadata.uid"},
		"no name":                 {"u", func(p *v1.Pod) { p.Name = "" }, "metadata.name"},
		"a way out as name":       {"u", func(p *v1.Pod) { p.Name = "../../../nameescape" }, "metadata.name"},
		"a long name":             {"u", func(p *v1.Pod) { p.Name = long }, "metadata.name"},
		"no namespace":            {"u", func(p *v1.Pod) { p.Namespace = "" }, "metadata.namespace"},
		"a path as namespace":     {"u", func(p *v1.Pod) { p.Namespace = "a/b" }, "metadata.namespace"},
		"a container":             {"u", func(p *v1.Pod) { p.Spec.Containers[0].Name = "../../../../cescape" }, "spec.containers[0].name"},
		"an init container":       {"u", func(p *v1.Pod) { p.Spec.InitContainers[0].Name = "" }, "spec.initContainers[0].name"},
		"an ephemeral container":  {"u", func(p *v1.Pod) { p.Spec.EphemeralContainers[0].Name = "a/b" }, "spec.ephemeralContainers[0].name"},
		"a volume":                {"u", func(p *v1.Pod) { p.Spec.Volumes[0].Name = ".." }, "spec.volumes[0].name"},
	} {
		t.Run(name, func(t *testing.T) {
			c, handOver := apiConfig(t)
			other := apiPod("other", func(p *v1.Pod) { p.Name = "other" })
			handOver(apiPod(test.uid, test.change), other)
			var added []string
			for _, u := range c.Take() {
				for _, p := range u.Pods {
					added = append(added, p.Name)
				}
			}
			problems := c.Problems()
			if test.field == "" {
				if len(problems) != 0 || !slices.Equal(added, []string{"bad", "other"}) {
					t.Errorf("added %q, problems %+v, want that both are taken", added, problems)
				}
				return
			}
			if !slices.Equal(added, []string{"other"}) {
				t.Errorf("added %q, want the other pod alone", added)
			}
			if len(problems) != 1 || problems[0].Source != pod.APISource || !strings.Contains(problems[0].Message, test.field+": Invalid value") || len(problems[0].Message) > 1000 {
				t.Errorf("problems = %+v, want one that names %s", problems, test.field)
			}
			if !c.SeenAllSources() {
				t.Error("the source does not count as seen")
			}
		})
	}
}

// An accepted pod that comes back without a proper name goes on as it was; a pod that is gone is
// gone.
func TestAPIPodsThatTurnBadStayAsTheyWere(t *testing.T) {
	c, handOver := apiConfig(t)
	good := apiPod("u", func(*v1.Pod) {})
	handOver(good)
	c.Take()
	bad := apiPod("u", func(p *v1.Pod) { p.Spec.Containers[0].Name = "a/b" })
	for range 2 {
		handOver(bad)
		if u := c.Take(); len(u) != 0 || len(c.Problems()) != 1 {
			t.Errorf("updates %+v, problems %+v, want no change and one problem", u, c.Problems())
		}
	}
	handOver()
	if u := c.Take(); len(u) != 1 || u[0].Op != pod.REMOVE || len(c.Problems()) != 0 {
		t.Errorf("updates %+v, problems %+v, want that it is removed", u, c.Problems())
	}
}
