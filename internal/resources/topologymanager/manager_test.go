package topologymanager

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth/internal/observe/metrics/metricstest"
	"berth/internal/pod"
	"berth/internal/record/events/messagestest"
	"berth/internal/resources/machine"
)

// fakeProvider says what its tables say, and writes down what it is asked to do.
type fakeProvider struct {
	name  string
	hints map[string]Hints // by container; "" is the pod
	errs  map[string]error // of Allocate, by container
	calls *[]string
}

func (f *fakeProvider) Hints(_ *v1.Pod, c *v1.Container) Hints { return f.hints[c.Name] }
func (f *fakeProvider) PodHints(*v1.Pod) Hints                 { return f.hints[""] }

func (f *fakeProvider) Allocate(_ *v1.Pod, c *v1.Container, near Hint) error {
	*f.calls = append(*f.calls, fmt.Sprintf("%s %s %s %v", f.name, c.Name, near.Nodes, near.Preferred))
	return f.errs[c.Name]
}

func (f *fakeProvider) Release(uid pod.UID) {
	*f.calls = append(*f.calls, fmt.Sprintf("%s release %s", f.name, uid))
}

func testPod() *v1.Pod {
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", UID: "u"},
		Spec:       v1.PodSpec{InitContainers: []v1.Container{{Name: "init"}}, Containers: []v1.Container{{Name: "app"}}},
	}
}

// world is a manager over a device and a CPU provider.
type world struct {
	*Manager
	calls    []string
	notes    []string
	registry *prometheus.Registry
	dev, cpu *fakeProvider
}

func newWorld(t *testing.T, nodes int, policy, scope string) *world {
	t.Helper()
	w := &world{registry: prometheus.NewRegistry()}
	w.dev = &fakeProvider{name: "dev", hints: map[string]Hints{}, errs: map[string]error{}, calls: &w.calls}
	w.cpu = &fakeProvider{name: "cpu", hints: map[string]Hints{}, errs: map[string]error{}, calls: &w.calls}
	m, err := New(Config{
		Policy: policy, Scope: scope, Machine: machineOf(nodes), Providers: []Provider{w.dev, w.cpu}, Metrics: w.registry,
		Note: func(p *v1.Pod, container, decision, why string) {
			w.notes = append(w.notes, strings.Join([]string{p.Name, container, decision, why}, "|"))
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	w.Manager = m
	return w
}

func (w *world) expect(t *testing.T, what string, got, want []string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s:\n%s\nwant:\n%s", what, strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// TestPolicies has two containers ask for what lies apart, or together, under each policy and
// scope.
func TestPolicies(t *testing.T) {
	apart := [2]Hints{{"gpu": {h("yes", 0)}}, {"cpu": {h("yes", 1), h("no", 0, 1)}}}
	together := [2]Hints{{"gpu": {h("yes", 1)}}, {"cpu": {h("yes", 0), h("yes", 1), h("no", 0, 1)}}}
	wide := [2]Hints{{"gpu": {h("yes", 0, 1)}}, {"cpu": {h("yes", 0, 1)}}}
	for _, nodes := range []int{2, 4, 8} {
		for _, tt := range []struct {
			name, policy string
			hints        [2]Hints
			near         string // "" is a refusal
		}{
			{"apart", None, apart, "{} false"},
			{"apart", BestEffort, apart, "{0} false"},
			{"apart", Restricted, apart, ""},
			{"apart", SingleNUMANode, apart, ""},
			{"together", None, together, "{} false"},
			{"together", BestEffort, together, "{1} true"},
			{"together", Restricted, together, "{1} true"},
			{"together", SingleNUMANode, together, "{1} true"},
			{"wide", BestEffort, wide, "{0,1} true"},
			{"wide", Restricted, wide, "{0,1} true"},
			{"wide", SingleNUMANode, wide, ""},
		} {
			for _, scope := range []string{ContainerScope, PodScope} {
				t.Run(fmt.Sprint(nodes, tt.name, tt.policy, scope), func(t *testing.T) {
					w := newWorld(t, nodes, tt.policy, scope)
					for _, of := range []string{"", "init", "app"} {
						w.dev.hints[of], w.cpu.hints[of] = tt.hints[0], tt.hints[1]
					}
					err := w.Admit(testPod())
					if tt.near == "" {
						r, ok := errors.AsType[*Refusal](err)
						if ok {
							messagestest.Saw("status", r.Reason, r.Message)
						}
						if !ok || *r != (Refusal{"TopologyAffinityError", "Resources cannot be allocated with Topology locality"}) {
							t.Errorf("error is %v", err)
						}
						w.expect(t, "calls", w.calls, []string{"dev release u", "cpu release u"})
						return
					}
					if err != nil {
						t.Fatal(err)
					}
					w.expect(t, "calls", w.calls, []string{"dev init " + tt.near, "cpu init " + tt.near, "dev app " + tt.near, "cpu app " + tt.near})
					if got := w.Affinity("u", "app"); fmt.Sprint(got.Nodes, " ", got.Preferred) != tt.near {
						t.Errorf("affinity is %v, want %s", got, tt.near)
					}
				})
			}
		}
	}
}

func TestScopes(t *testing.T) {
	for scope, want := range map[string][]string{
		ContainerScope: {"dev init {0} true", "cpu init {0} true", "dev app {1} true", "cpu app {1} true"},
		PodScope:       {"dev init {0,1} true", "cpu init {0,1} true", "dev app {0,1} true", "cpu app {0,1} true"},
	} {
		w := newWorld(t, 2, Restricted, scope)
		w.cpu.hints = map[string]Hints{"init": of(h("yes", 0)), "app": of(h("yes", 1)), "": of(h("yes", 0, 1))}
		if err := w.Admit(testPod()); err != nil {
			t.Fatal(err)
		}
		w.expect(t, scope, w.calls, want)
	}
}

func TestRefusedContainerGivesBackWhatTheOthersGot(t *testing.T) {
	w := newWorld(t, 2, Restricted, ContainerScope)
	w.cpu.hints["app"] = of()
	if err := w.Admit(testPod()); err == nil {
		t.Fatal("admitted")
	}
	w.expect(t, "calls", w.calls, []string{"dev init {0,1} true", "cpu init {0,1} true", "dev release u", "cpu release u"})
	w.expect(t, "notes", w.notes, []string{
		"web|init|allocate on NUMA nodes {0,1}|policy restricted; nothing has a preference; merged {0,1} preferred",
		"web|app|refuse: Resources cannot be allocated with Topology locality|policy restricted; r nowhere; merged {0,1} not preferred",
	})
	if got := w.Affinity("u", "init"); got != (Hint{}) {
		t.Errorf("the affinity %v is left", got)
	}
}

func TestErrorsOfProviders(t *testing.T) {
	own := &Refusal{Reason: "SMTAlignmentError", Message: "SMT Alignment Error: …"}
	for _, tt := range []struct {
		err  error
		want Refusal
	}{
		{errors.New("no room"), Refusal{"UnexpectedAdmissionError", "Allocate failed due to no room, which is unexpected"}},
		{own, *own},
		{fmt.Errorf("allocate: %w", own), *own},
	} {
		for _, policy := range []string{None, Restricted} {
			w := newWorld(t, 2, policy, ContainerScope)
			w.dev.errs["app"] = tt.err
			r, ok := errors.AsType[*Refusal](w.Admit(testPod()))
			if ok {
				messagestest.Saw("status", r.Reason, r.Message)
			}
			if !ok || *r != tt.want {
				t.Errorf("%s: %v is %v, want %v", policy, tt.err, r, tt.want)
			}
			if got := w.calls[len(w.calls)-3:]; !strings.HasPrefix(got[0], "dev app") || got[1] != "dev release u" || got[2] != "cpu release u" {
				t.Errorf("%s: after the error: %q", policy, got)
			}
			// What has run before keeps what it has.
			w.calls = nil
			if r, ok := errors.AsType[*Refusal](w.Readmit(testPod())); !ok || *r != tt.want {
				t.Errorf("%s: %v is %v at a restart, want %v", policy, tt.err, r, tt.want)
			}
			if slices.Contains(w.calls, "dev release u") {
				t.Errorf("%s: what the pod has was taken from it: %q", policy, w.calls)
			}
		}
	}
}

func TestReadmitRefusesNoPlace(t *testing.T) {
	for _, policy := range []string{BestEffort, Restricted, SingleNUMANode} {
		for _, scope := range []string{ContainerScope, PodScope} {
			w := newWorld(t, 2, policy, scope)
			for _, of := range []string{"", "init", "app"} {
				w.dev.hints[of], w.cpu.hints[of] = Hints{"gpu": {h("yes", 0)}}, Hints{"cpu": {h("yes", 1)}}
			}
			if err := w.Readmit(testPod()); err != nil {
				t.Errorf("%s, %s: %v", policy, scope, err)
			}
			if len(w.calls) != 4 || strings.Contains(fmt.Sprint(w.calls), "release") {
				t.Errorf("%s, %s: %q", policy, scope, w.calls)
			}
		}
	}
}

func TestMetrics(t *testing.T) {
	w := newWorld(t, 2, SingleNUMANode, ContainerScope)
	w.cpu.hints["app"] = of(h("yes", 1))
	if err := w.Admit(testPod()); err != nil {
		t.Fatal(err)
	}
	w.cpu.hints["app"] = of(h("yes", 0, 1))
	if err := w.Admit(testPod()); err == nil {
		t.Fatal("admitted")
	}
	// Whoever knows of another boundary shares the families.
	NewAlignment(w.registry).Aligned(ContainerScope, PhysicalCPU)
	metricstest.Expect(t, w.registry, map[string]float64{
		"kubelet_topology_manager_admission_requests_total":                                                 2,
		"kubelet_topology_manager_admission_errors_total":                                                   1,
		"kubelet_topology_manager_admission_duration_ms_count":                                              2,
		`kubelet_container_aligned_compute_resources_count{boundary="numa_node",scope="container"}`:         3,
		`kubelet_container_aligned_compute_resources_count{boundary="physical_cpu",scope="container"}`:      1,
		`kubelet_container_aligned_compute_resources_failure_count{boundary="numa_node",scope="container"}`: 1,
	})
}

func TestForgetAndRetain(t *testing.T) {
	w := newWorld(t, 2, BestEffort, ContainerScope)
	w.cpu.hints["app"] = of(h("yes", 1))
	one, two := testPod(), testPod()
	two.UID = "v"
	for _, p := range []*v1.Pod{one, two} {
		if err := w.Admit(p); err != nil {
			t.Fatal(err)
		}
	}
	w.Retain(map[pod.UID]bool{"v": true})
	if w.Affinity("u", "app") != (Hint{}) || w.Affinity("v", "app") != h("yes", 1) {
		t.Errorf("affinities are %v and %v", w.Affinity("u", "app"), w.Affinity("v", "app"))
	}
	w.Forget("v")
	if w.Affinity("v", "app") != (Hint{}) {
		t.Errorf("affinity is %v", w.Affinity("v", "app"))
	}
}

func TestNewErrors(t *testing.T) {
	options := func(name, value string) map[string]string { return map[string]string{name: value} }
	silent := machineOf(2)
	silent.Nodes[1].Distances = nil
	for _, tt := range []struct {
		name string
		cfg  Config
		want string // "" is none
	}{
		{"nine nodes", Config{Policy: BestEffort, Machine: machineOf(9)}, "unsupported on machines with more than 8 NUMA Nodes"},
		{"nine nodes, none", Config{Policy: None, Machine: machineOf(9)}, ""},
		{"nine nodes allowed", Config{Policy: BestEffort, Machine: machineOf(9), Options: options(maxNodes, "9")}, ""},
		{"ten nodes", Config{Policy: Restricted, Machine: machineOf(10), Options: options(maxNodes, "9")}, "unsupported on machines with more than 9 NUMA Nodes"},
		{"few allowed", Config{Policy: Restricted, Machine: machineOf(2), Options: options(maxNodes, "7")}, `topologyManagerPolicyOptions[max-allowable-numa-nodes]: "7" is no number from 8`},
		{"words allowed", Config{Policy: Restricted, Machine: machineOf(2), Options: options(maxNodes, "many")}, `topologyManagerPolicyOptions[max-allowable-numa-nodes]: "many" is no number from 8`},
		{"maybe closest", Config{Policy: Restricted, Machine: machineOf(2), Options: options(preferClosest, "maybe")}, `topologyManagerPolicyOptions[prefer-closest-numa-nodes]: "maybe" is neither true nor false`},
		{"unknown option", Config{Policy: Restricted, Machine: machineOf(2), Options: options("far", "true")}, "topologyManagerPolicyOptions[far]: unknown option: prefer-closest-numa-nodes and max-allowable-numa-nodes are known"},
		{"no distances", Config{Policy: Restricted, Machine: silent, Options: options(preferClosest, "true")}, "topologyManagerPolicyOptions[prefer-closest-numa-nodes]: the machine does not tell the distances of its NUMA nodes: remove the option"},
		{"no distances needed", Config{Policy: Restricted, Machine: silent, Options: options(preferClosest, "false")}, ""},
		{"unknown policy", Config{Policy: "strict", Machine: machineOf(2)}, `topologyManagerPolicy: unknown policy "strict": set none, best-effort, restricted or single-numa-node`},
		{"unknown scope", Config{Policy: Restricted, Scope: "node", Machine: machineOf(2)}, `topologyManagerScope: unknown scope "node": set container or pod`},
		{
			"high node",
			Config{Policy: Restricted, Machine: &machine.Machine{Nodes: []machine.Node{{ID: 64}}}},
			"NUMA node 64: topologyManagerPolicy restricted can be used with nodes 0 to 63 only: set it to none",
		},
	} {
		if tt.cfg.Scope == "" {
			tt.cfg.Scope = ContainerScope
		}
		_, err := New(tt.cfg)
		messagestest.SawError(err)
		if got := fmt.Sprint(err); got != tt.want && (err != nil || tt.want != "") {
			t.Errorf("%s: %s\nwant %s", tt.name, got, tt.want)
		}
	}
}

func TestDescribe(t *testing.T) {
	var many []Hint
	for n := range NodesOf(0, 1, 2, 3).SubsetsFrom(1) {
		many = append(many, Hint{Nodes: n, Preferred: n.Count() == 1})
	}
	for _, tt := range []struct {
		hints  []Hints
		merged Hint
		want   string
	}{
		{
			[]Hints{{"example.com/gpu": {h("yes", 1)}}, {"cpu": {h("no", 0, 1), h("yes", 1), h("yes", 0)}}, {}},
			h("yes", 1),
			"example.com/gpu {1}; cpu {0},{1}, else {0,1}; merged {1} preferred",
		},
		{[]Hints{{"b": {}, "a": nil}}, h("no", 0, 1), "a anywhere; b nowhere; merged {0,1} not preferred"},
		{[]Hints{{"a": {h("yes")}}}, h("yes"), "a anywhere; merged anywhere preferred"},
		{[]Hints{{"a": {h("no", 1), h("no", 0)}}}, h("no", 0), "a else {0},{1}; merged {0} not preferred"},
		{[]Hints{{"a": many}}, h("yes", 0), "a {0},{1},{2},{3}, else {0,1},{0,2} and 9 more; merged {0} preferred"},
	} {
		if got := describe(tt.hints, tt.merged); got != tt.want {
			t.Errorf("got  %s\nwant %s", got, tt.want)
		}
	}
}
