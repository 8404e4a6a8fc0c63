package memorymanager

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"

	"berth/internal/checkpoint/checkpointtest"
	"berth/internal/observe/metrics/metricstest"
	"berth/internal/pod"
	"berth/internal/record/events/messagestest"
	"berth/internal/record/journal"
	"berth/internal/resources/topologymanager"
)

var _ topologymanager.Provider = (*Manager)(nil)

func TestAllocate(t *testing.T) {
	type step struct {
		pod  *v1.Pod
		near topologymanager.Hint
		err  string
	}
	anywhere, must := hint("no"), hint("yes")
	for _, tt := range []struct {
		name  string
		nodes int
		steps []step
		want  string
	}{
		{
			"one node", 1,
			[]step{{podOf("a", "app: memory=3Gi"), anywhere, ""}, {podOf("b", "app: memory=4Gi"), must, ""}},
			"a/app {0} memory 3Gi; b/app {0} memory 4Gi",
		},
		{
			"the reserved gibibyte is not there", 1, []step{{podOf("a", "app: memory=7169Mi"), anywhere, "app: " + errNoNodes.Error()}}, "",
		},
		{
			"the lowest node with room", 2,
			[]step{{podOf("a", "app: memory=5Gi"), anywhere, ""}, {podOf("b", "app: memory=5Gi"), anywhere, ""}, {podOf("c", "app: memory=2Gi"), anywhere, ""}},
			"a/app {0} memory 5Gi; b/app {1} memory 5Gi; c/app {0} memory 2Gi",
		},
		{
			"where the hint says", 2, []step{{podOf("a", "app: memory=2Gi"), hint("yes", 1), ""}}, "a/app {1} memory 2Gi",
		},
		{
			"what needs two nodes makes a group, which takes nothing else", 4,
			[]step{
				{podOf("a", "app: memory=10Gi"), anywhere, ""},
				{podOf("b", "app: memory=2Gi"), anywhere, ""},
				{podOf("c", "app: memory=12Gi"), must, "app: " + errNoNodes.Error()},
				{podOf("d", "app: memory=2Gi"), hint("no", 1), "app: " + errOtherGroup.Error()},
			},
			"a/app {0,1} memory 10Gi; b/app {2} memory 2Gi",
		},
		{
			"as narrow as is left, if it need not be preferred", 4,
			[]step{
				{podOf("a", "app: memory=5Gi"), hint("yes", 0), ""},
				{podOf("b", "app: memory=5Gi"), hint("yes", 1), ""},
				{podOf("c", "app: memory=5Gi"), hint("yes", 2), ""},
				{podOf("d", "app: memory=10Gi"), anywhere, "app: " + errNoNodes.Error()},
				{podOf("e", "app: memory=5Gi"), must, ""},
				{podOf("f", "app: memory=5Gi"), must, "app: " + errNoNodes.Error()},
			},
			"a/app {0} memory 5Gi; b/app {1} memory 5Gi; c/app {2} memory 5Gi; e/app {3} memory 5Gi",
		},
		{
			"the hint has too little: others are added", 4, []step{{podOf("a", "app: memory=10Gi"), hint("no", 2), ""}}, "a/app {0,2} memory 10Gi",
		},
		{
			"others are added, but it would not be preferred", 4,
			[]step{{podOf("a", "app: memory=5Gi"), hint("yes", 2), ""}, {podOf("b", "app: memory=5Gi"), hint("yes", 2), "app: " + errNoNodes.Error()}},
			"a/app {2} memory 5Gi",
		},
		{
			"more nodes of the group are added, which is wider than need be", 4,
			[]step{
				{podOf("a", "app: memory=10Gi"), hint("yes", 1, 2), ""},
				{podOf("b", "app: memory=9Gi"), hint("no", 3), ""},
				{podOf("c", "app: memory=6Gi"), hint("yes", 2), "app: " + errOtherGroup.Error()},
				{podOf("d", "app: memory=6Gi"), hint("yes", 1), "app: " + errExtendedPreferred.Error()},
				{podOf("e", "app: memory=6Gi"), hint("no", 1), ""},
			},
			"a/app {1,2} memory 10Gi; b/app {0,3} memory 9Gi; e/app {1,2} memory 6Gi",
		},
		{
			"all types on the same nodes", 2,
			[]step{{podOf("a", "app: memory=1Gi hugepages-1Gi=3Gi"), must, ""}, {podOf("b", "app: memory=1Gi hugepages-1Gi=2Gi"), anywhere, "app: " + errNoNodes.Error()}, {podOf("c", "app: memory=1Gi hugepages-1Gi=1Gi"), must, "app: " + errNotPreferred.Error()}, {podOf("d", "app: memory=1Gi hugepages-1Gi=1Gi"), anywhere, ""}},
			"a/app {0,1} hugepages-1Gi 3Gi; a/app {0,1} memory 1Gi; d/app {0,1} hugepages-1Gi 1Gi; d/app {0,1} memory 1Gi",
		},
		{
			"pages that the machine does not have", 2, []step{{podOf("a", "app: memory=1Gi hugepages-64Ki=64Ki"), anywhere, "app: " + errNoNodes.Error()}}, "",
		},
		{
			"eight nodes", 8,
			[]step{{podOf("a", "app: memory=40Gi"), must, ""}, {podOf("b", "app: memory=1Gi"), must, ""}},
			"a/app {1,2,3,4,5} memory 40Gi; b/app {0} memory 1Gi",
		},
		{
			"init containers end before others run", 1,
			[]step{{podOf("a", "init1: memory=4Gi", "init2: memory=5Gi", "app1: memory=3Gi", "app2: memory=4Gi"), must, ""}},
			"a/init1 {0} memory 0; a/init2 {0} memory 0; a/app1 {0} memory 3Gi; a/app2 {0} memory 4Gi",
		},
		{
			"init containers that need the most", 1,
			[]step{{podOf("a", "init1: memory=2Gi", "init2: memory=6Gi", "app: memory=3Gi"), must, ""}},
			"a/init1 {0} memory 0; a/init2 {0} memory 3Gi; a/app {0} memory 3Gi",
		},
		{
			"sidecars run on", 1,
			[]step{{podOf("a", "init1: memory=2Gi", "side: memory=3Gi", "init2: memory=4Gi", "app: memory=4Gi"), must, ""}, {podOf("b", "app: memory=1Mi"), must, "app: " + errNoNodes.Error()}},
			"a/init1 {0} memory 0; a/side {0} memory 3Gi; a/init2 {0} memory 0; a/app {0} memory 4Gi",
		},
		{
			"sidecars and containers that are too large together", 1,
			[]step{{podOf("a", "side: memory=3Gi", "init2: memory=4Gi", "app: memory=5Gi"), must, "app: " + errNoNodes.Error()}},
			"a/side {0} memory 3Gi; a/init2 {0} memory 4Gi",
		},
		{
			"what lies elsewhere is not had again", 2,
			[]step{{podOf("a", "init: memory=8Gi", "app: memory=7Gi"), must, ""}},
			"a/init {1} memory 8Gi; a/app {0} memory 7Gi",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m := newManager(t, static(tt.nodes, stateFile(t)))
			var pods []*v1.Pod
			for _, s := range tt.steps {
				pods = append(pods, s.pod)
				err := admit(m, s.pod, s.near)
				messagestest.SawError(err)
				if (err != nil || s.err != "") && fmt.Sprint(err) != s.err {
					t.Errorf("%s: error %v\nwant %s", s.pod.UID, err, s.err)
				}
			}
			if got := shown(m, pods...); got != tt.want {
				t.Errorf("got  %s\nwant %s", got, tt.want)
			}
			if again := newManager(t, m.cfg); shown(again, pods...) != tt.want {
				t.Errorf("after a restart: %s", shown(again, pods...))
			}
		})
	}
}

// TestConcerns has pods that are given nothing.
func TestConcerns(t *testing.T) {
	burstable := podOf("a", "app: memory=1Gi")
	burstable.Spec.Containers[0].Resources.Requests = list("memory=1Gi")
	whole := podOf("a", "app: memory=1Gi")
	whole.Spec.Resources = &v1.ResourceRequirements{Requests: list("cpu=1 memory=1Gi"), Limits: list("cpu=1 memory=1Gi")}
	none := static(2, "")
	none.Policy = None
	for _, tt := range []struct {
		name string
		cfg  Config
		pod  *v1.Pod
	}{
		{"best effort", static(2, ""), &v1.Pod{Spec: v1.PodSpec{Containers: []v1.Container{{Name: "app"}}}}},
		{"burstable", static(2, ""), burstable},
		{"resources of the pod", static(2, ""), whole},
		{"policy None", none, podOf("a", "app: memory=1Gi")},
	} {
		m := newManager(t, tt.cfg)
		c := &tt.pod.Spec.Containers[0]
		if h := m.Hints(tt.pod, c); len(h) != 0 {
			t.Errorf("%s: hints %v", tt.name, h)
		}
		if h := m.PodHints(tt.pod); len(h) != 0 {
			t.Errorf("%s: hints of the pod %v", tt.name, h)
		}
		if err := m.Allocate(tt.pod, c, hint("yes", 1)); err != nil || m.Memory(tt.pod.UID, c.Name) != nil || m.Nodes(tt.pod.UID, c.Name) != nil {
			t.Errorf("%s: %v, %v", tt.name, err, m.Memory(tt.pod.UID, c.Name))
		}
	}
}

func TestHintsOfWhatIsGiven(t *testing.T) {
	m := newManager(t, static(4, ""))
	p := podOf("a", "init: memory=2Gi", "app: memory=10Gi hugepages-1Gi=1Gi")
	if err := admit(m, p, hint("no", 2, 3)); err != nil {
		t.Fatal(err)
	}
	there := []topologymanager.Hint{hint("yes", 2, 3)}
	if diff := cmp.Diff(topologymanager.Hints{"memory": there, large: there}, m.Hints(p, &p.Spec.Containers[0])); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(topologymanager.Hints{"memory": there, large: there}, m.PodHints(p)); diff != "" {
		t.Error(diff)
	}
	if got := m.Nodes("a", "app"); !slices.Equal(got, []int{2, 3}) {
		t.Errorf("nodes are %v", got)
	}
	// What a container has stays, also when it asks for more by now.
	p.Spec.Containers[0] = container("app: memory=20Gi")
	if err := admit(m, p, hint("yes", 0)); err != nil {
		t.Error(err)
	}
	if got := shown(m, p); got != "a/init {2,3} memory 0; a/app {2,3} hugepages-1Gi 1Gi; a/app {2,3} memory 10Gi" {
		t.Error(got)
	}
	// A pod that lies on different nodes has no preference as a whole.
	q := podOf("b", "one: memory=1Gi", "two: memory=1Gi")
	for i := range q.Spec.Containers {
		if err := m.Allocate(q, &q.Spec.Containers[i], hint("yes", i)); err != nil {
			t.Fatal(err)
		}
	}
	if h := m.PodHints(q); h != nil {
		t.Errorf("hints are %v", h)
	}
	// Nowhere is another word than anywhere.
	full := podOf("c", "app: memory=100Gi")
	if h := m.Hints(full, &full.Spec.Containers[0])["memory"]; h == nil || len(h) != 0 {
		t.Errorf("hints are %#v", h)
	}
}

func TestPodRequest(t *testing.T) {
	for _, tt := range []struct {
		containers []string
		want       string
	}{
		{[]string{"a: memory=1Gi", "b: memory=2Gi hugepages-1Gi=1Gi"}, "hugepages-1Gi 1Gi, memory 3Gi"},
		{[]string{"init: memory=5Gi", "a: memory=1Gi"}, "memory 5Gi"},
		{[]string{"init1: memory=2Gi", "side1: memory=1Gi", "init2: memory=5Gi", "side2: memory=2Gi", "a: memory=1Gi"}, "memory 6Gi"},
		{[]string{"side1: memory=1Gi", "init2: memory=2Gi", "side2: memory=2Gi", "a: memory=1Gi"}, "memory 4Gi"},
	} {
		if got := podRequest(podOf("a", tt.containers...)).String(); got != tt.want {
			t.Errorf("%q: %s, want %s", tt.containers, got, tt.want)
		}
	}
}

func TestCreatingGivesBackWhatInitContainersHad(t *testing.T) {
	m := newManager(t, static(2, stateFile(t)))
	p := podOf("a", "init1: memory=7Gi", "side: memory=1Gi", "init2: memory=4Gi", "app: memory=3Gi")
	if err := admit(m, p, hint("no")); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ creating, want string }{
		{"init1", "a/init1 {0} memory 0; a/side {0} memory 1Gi; a/init2 {0} memory 3Gi; a/app {0} memory 3Gi"},
		{"init2", "a/side {0} memory 1Gi; a/init2 {0} memory 3Gi; a/app {0} memory 3Gi"},
		{"app", "a/side {0} memory 1Gi; a/app {0} memory 3Gi"},
		{"app", "a/side {0} memory 1Gi; a/app {0} memory 3Gi"},
	} {
		if err := m.Creating(p, tt.creating); err != nil {
			t.Fatal(err)
		}
		if got := shown(m, p); got != tt.want {
			t.Errorf("%s: %s\nwant %s", tt.creating, got, tt.want)
		}
	}
	// Another takes what is free now. The pod is asked about again after a restart, and needs
	// nothing.
	if err := admit(m, podOf("b", "app: memory=3Gi"), hint("yes", 0)); err != nil {
		t.Fatal(err)
	}
	m = newManager(t, m.cfg)
	if h := m.Hints(p, &p.Spec.InitContainers[0]); h != nil {
		t.Errorf("hints are %v", h)
	}
	if err := admit(m, p, hint("yes", 0)); err != nil {
		t.Error(err)
	}
	if got := shown(m, p); got != "a/side {0} memory 1Gi; a/app {0} memory 3Gi" {
		t.Error(got)
	}
}

func TestReleaseAndRetain(t *testing.T) {
	m := newManager(t, static(2, stateFile(t)))
	pods := []*v1.Pod{podOf("a", "app: memory=10Gi"), podOf("b", "app: memory=2Gi"), podOf("c", "app: memory=3Gi")}
	for _, p := range pods {
		if err := admit(m, p, hint("no")); err != nil {
			t.Fatal(err)
		}
	}
	m.Release("b")
	m.Release("unknown")
	if got, want := shown(m, pods...), "a/app {0,1} memory 10Gi; c/app {0,1} memory 3Gi"; got != want {
		t.Errorf("got %s", got)
	}
	m.Retain(map[pod.UID]bool{"c": true, "d": true})
	if got, want := shown(newManager(t, m.cfg), pods...), "c/app {0,1} memory 3Gi"; got != want {
		t.Errorf("got %s", got)
	}
	// When the last one is gone, the group is.
	m.Release("c")
	if err := admit(m, podOf("d", "app: memory=8Gi"), hint("yes", 1)); err != nil {
		t.Error(err)
	}
}

func TestDiskThatFails(t *testing.T) {
	checkpointtest.Each(t, func(t *testing.T, fail func(string) func()) {
		dir := t.TempDir()
		m := newManager(t, static(1, dir+"/memory_manager_state"))
		p := podOf("a", "init: memory=6Gi", "app: memory=3Gi")
		if err := admit(m, p, hint("yes")); err != nil {
			t.Fatal(err)
		}
		before := shown(m, p)
		mend := fail(dir)
		if err := admit(m, podOf("b", "app: memory=1Gi"), hint("yes")); err == nil || m.Memory("b", "app") != nil {
			t.Errorf("given although the disk did not take it: %v", err)
		}
		if m.Persistence() == nil {
			t.Error("nobody hears that the file cannot be written")
		}
		if err := m.Creating(p, "app"); err == nil || shown(m, p) != before {
			t.Errorf("%v; %s", err, shown(m, p))
		}
		m.Release("a")
		if got := shown(m, p); got != "" {
			t.Errorf("not released: %s", got)
		}
		mend()
		if err := admit(m, podOf("b", "app: memory=7Gi"), hint("yes")); err != nil {
			t.Error(err)
		}
		if err := m.Persistence(); err != nil {
			t.Errorf("once it is written: %v", err)
		}
		if got := shown(newManager(t, m.cfg), p, podOf("b", "app: memory=7Gi")); got != "b/app {0} memory 7Gi" {
			t.Error(got)
		}
	})
}

func TestMetricsAndJournal(t *testing.T) {
	cfg := static(2, "")
	registry := prometheus.NewRegistry()
	cfg.Metrics, cfg.Journal = registry, journal.New(cfg.Log)
	m := newManager(t, cfg)
	p := podOf("a", "app: memory=2Gi hugepages-1Gi=1Gi")
	if err := admit(m, p, hint("yes", 1)); err != nil {
		t.Fatal(err)
	}
	if err := admit(m, p, hint("yes", 1)); err != nil { // has it
		t.Fatal(err)
	}
	if err := admit(m, podOf("b", "app: memory=200Gi"), hint("no")); err == nil {
		t.Fatal("given")
	}
	metricstest.Expect(t, registry, map[string]float64{
		"kubelet_memory_manager_pinning_requests_total": 2, "kubelet_memory_manager_pinning_errors_total": 1,
	})
	entries := cfg.Journal.Read("default", "p-a")
	if len(entries) != 1 || entries[0].Decision != "give memory on NUMA nodes {1}" || entries[0].Why != "hugepages-1Gi 1Gi, memory 2Gi, near {1}" || entries[0].Container != "app" {
		t.Errorf("%+v", entries)
	}
}

func TestAllocatable(t *testing.T) {
	m := newManager(t, static(2, ""))
	if err := admit(m, podOf("a", "app: memory=2Gi"), hint("no")); err != nil {
		t.Fatal(err)
	}
	want := []Block{
		{[]int{0}, large, uint64(2 * gi)},
		{[]int{0}, v1.ResourceMemory, uint64(7 * gi)},
		{[]int{1}, large, uint64(2 * gi)},
		{[]int{1}, v1.ResourceMemory, uint64(8 * gi)},
	}
	if diff := cmp.Diff(want, m.Allocatable()); diff != "" {
		t.Error(diff)
	}
	none, err := New(Config{Policy: None})
	if err != nil || none.Allocatable() != nil {
		t.Errorf("%v, %v", err, none.Allocatable())
	}
}

// TestManyNodes allocates on a machine of so many nodes that nobody could look at all sets of them.
func TestManyNodes(t *testing.T) {
	m := newManager(t, static(64, ""))
	for i := range 64 {
		if err := admit(m, podOf(pod.UID(fmt.Sprint("small", i)), "app: memory=6Gi"), hint("yes")); err != nil {
			t.Fatal(err)
		}
	}
	if err := admit(m, podOf("full", "app: memory=6Gi"), hint("no")); err == nil {
		t.Error("given on a machine that is full")
	}
	if err := admit(m, podOf("huge", "app: memory=1000Gi"), hint("no")); err == nil {
		t.Error("given more than there is")
	}
	m.Retain(nil)
	p := podOf("half", "app: memory=200Gi")
	if err := admit(m, p, hint("yes")); err != nil || len(m.Nodes("half", "app")) != 25 {
		t.Errorf("given on %v: %v", m.Nodes("half", "app"), err)
	}
	if err := admit(m, podOf("rest", "app: memory=400Gi"), hint("no")); err == nil {
		t.Error("given more than what is left")
	}
}
