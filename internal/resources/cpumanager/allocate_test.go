package cpumanager

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/cpuset"

	"berth/internal/observe/metrics/metricstest"
	"berth/internal/pod"
	"berth/internal/record/events/messagestest"
	"berth/internal/resources/topologymanager"
)

func TestExclusiveCPUs(t *testing.T) {
	of := func(change func(*v1.Pod)) *v1.Pod {
		p := podOf("p", ask{"i", "3", "init"}, ask{"s", "1", "sidecar"}, ask{"a", "2", ""}, ask{"b", "1500m", ""})
		if change != nil {
			change(p)
		}
		return p
	}
	level := func(p *v1.Pod) {
		l := v1.ResourceList{v1.ResourceCPU: resource.MustParse("8"), v1.ResourceMemory: resource.MustParse("1Gi")}
		p.Spec.Resources = &v1.ResourceRequirements{Limits: l, Requests: l}
		p.Spec.Containers[1].Resources = v1.ResourceRequirements{Requests: v1.ResourceList{v1.ResourceCPU: resource.MustParse("2")}}
	}
	tests := []struct {
		name   string
		change func(*v1.Pod)
		gates  Gates
		want   map[string]int
	}{
		{name: "whole CPUs", want: map[string]int{"i": 3, "s": 1, "a": 2}},
		{
			name: "2000m are 2", change: func(p *v1.Pod) {
				for _, l := range []v1.ResourceList{p.Spec.Containers[0].Resources.Limits, p.Spec.Containers[0].Resources.Requests} {
					l[v1.ResourceCPU] = resource.MustParse("2000m")
				}
			}, want: map[string]int{"i": 3, "s": 1, "a": 2},
		},
		{name: "burstable", change: func(p *v1.Pod) { delete(p.Spec.Containers[1].Resources.Limits, v1.ResourceMemory) }},
		{
			name:   "ephemeral",
			change: func(p *v1.Pod) { p.Spec.Containers = p.Spec.Containers[1:] }, want: map[string]int{"i": 3, "s": 1},
		},
		{name: "resources of the pod", change: level},
		{name: "resources of the pod, with the gate", change: level, gates: Gates{PodLevelResourceManagers: true}, want: map[string]int{"i": 3, "s": 1, "a": 2}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			p := of(test.change)
			got := map[string]int{}
			for c := range pod.Containers(&of(nil).Spec) {
				of := pod.FindContainer(&p.Spec, c.Name)
				if of == nil {
					of = c // an ephemeral one has no place among the others
				}
				if n := exclusiveCPUs(p, of, test.gates); n > 0 {
					got[c.Name] = n
				}
			}
			if test.want == nil {
				test.want = map[string]int{}
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestAllocate(t *testing.T) {
	tests := []struct {
		name string
		box  box
		on   []string
		pods []*v1.Pod
		want []string // per pod: what it has, or the error
	}{
		{
			name: "one after the other", box: small,
			pods: []*v1.Pod{podOf("a", ask{"c", "1", ""}), podOf("b", ask{"c", "2", ""}), podOf("c", ask{"c", "1", ""}), podOf("d", ask{"c", "", ""})},
			want: []string{"c=1", "c=2-3", "not enough cpus available to satisfy request: requested=1, available=0", "c=shared"},
		},
		{
			name: "init containers leave their CPUs", box: laptop,
			pods: []*v1.Pod{
				podOf("a", ask{"i", "4", "init"}, ask{"j", "2", "init"}, ask{"c", "2", ""}, ask{"d", "2", ""}, ask{"e", "1", ""}),
				podOf("b", ask{"c", "2", ""}),
			},
			want: []string{"i=2-5 j=2-3 c=2-3 d=4-5 e=1", "c=6-7"},
		},
		{
			name: "sidecars do not", box: laptop,
			pods: []*v1.Pod{podOf("a", ask{"s", "2", "sidecar"}, ask{"i", "2", "init"}, ask{"t", "2", "sidecar"}, ask{"c", "2", ""})},
			want: []string{"s=2-3 i=4-5 t=4-5 c=6-7"},
		},
		{
			name: "init containers of others do not", box: small,
			pods: []*v1.Pod{podOf("a", ask{"i", "3", "init"}, ask{"c", "1", ""}), podOf("b", ask{"c", "1", ""})},
			want: []string{"i=1-3 c=1", "not enough cpus available to satisfy request: requested=1, available=0"},
		},
		{
			name: "whole cores", box: laptop, on: []string{fullPhysicalCPUs},
			pods: []*v1.Pod{podOf("a", ask{"c", "3", ""}), podOf("b", ask{"c", "4", ""}), podOf("c", ask{"c", "4", ""}), podOf("d", ask{"i", "2", "init"}, ask{"c", "2", ""})},
			want: []string{
				"SMT Alignment Error: requested 3 cpus not multiple cpus per core = 2", "c=2-5",
				"SMT Alignment Error: not enough free physical CPUs: available physical CPUs = 2, requested CPUs = 4, CPUs per core = 2",
				"i=6-7 c=6-7",
			},
		},
		{
			name: "strict", box: small, on: []string{strictReservation},
			pods: []*v1.Pod{podOf("a", ask{"c", "3", ""}), podOf("b", ask{"c", "1", ""})},
			want: []string{"c=1-3", "not enough cpus available to satisfy request: requested=1, available=0"},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			m := load(t, configOf(t, test.box, test.on...))
			for i, p := range test.pods {
				got, err := admit(m, p)
				messagestest.SawError(err)
				if err != nil {
					got = err.Error()
				}
				if got != test.want[i] {
					t.Errorf("pod %d: %s; want %s", i, got, test.want[i])
				}
			}
		})
	}
}

// With full-pcpus-only a thread beside one that was given away before the option was set is not
// free, and a pod that has CPUs keeps them on a node that is full.
func TestFullPhysicalCPUs(t *testing.T) {
	cfg := configOf(t, laptop)
	a, b, c := podOf("a", ask{"c", "1", ""}), podOf("b", ask{"c", "4", ""}), podOf("c", ask{"c", "2", ""})
	m := load(t, cfg)
	mustAdmit(t, m, a, "c=1")
	m.Release("a")
	two := podOf("two", ask{"c", "2", ""}, ask{"d", "1", ""}) // 2-3, 1
	mustAdmit(t, m, two, "c=2-3 d=1")
	m.Release("two")
	mustAdmit(t, m, a, "c=1")
	odd := podOf("odd", ask{"c", "3", ""})
	mustAdmit(t, m, odd, "c=2-4")
	cfg.Options = map[string]string{fullPhysicalCPUs: "true"}
	m = load(t, cfg)
	_, err := admit(m, b)
	wantError(t, err, "SMT Alignment Error: not enough free physical CPUs: available physical CPUs = 2, requested CPUs = 4, CPUs per core = 2")
	if got := asRefusal(err); got != "SMTAlignmentError" {
		t.Errorf("reason %q", got)
	}
	mustAdmit(t, m, c, "c=6-7")
	m = load(t, cfg)
	for _, p := range []*v1.Pod{a, odd, c} {
		if _, err := admit(m, p); err != nil {
			t.Errorf("a pod that has CPUs is refused: %v", err)
		}
	}
}

// A machine of which one thread is offline, or with cores of two kinds, has fewer than two threads
// a core on average.
func TestFullPhysicalCPUsOnTwoKindsOfCores(t *testing.T) {
	cfg := configOf(t, laptop, fullPhysicalCPUs)
	cfg.Machine.CPUs = slices.Delete(cfg.Machine.CPUs, 3, 4) // core 2 has one thread
	cfg.ReservedCPUs = set("0")
	m := load(t, cfg)
	_, err := admit(m, podOf("a", ask{"c", "1", ""}))
	wantError(t, err, "SMT Alignment Error: requested 1 cpus not multiple cpus per core = 2")
	mustAdmit(t, m, podOf("b", ask{"c", "4", ""}), "c=4-7")
}

func TestHintsOfPods(t *testing.T) {
	cfg := configOf(t, box{2, 1, 1, 2, 2})
	m := load(t, cfg)
	hints := func(p *v1.Pod) (got []string) {
		for c := range pod.Containers(&p.Spec) {
			got = append(got, c.Name+": "+hintsText(m.Hints(p, c)))
		}
		return append(got, "pod: "+hintsText(m.PodHints(p)))
	}
	want := func(p *v1.Pod, want ...string) {
		t.Helper()
		if diff := cmp.Diff(want, hints(p)); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	}
	p := podOf("p", ask{"i", "5", "init"}, ask{"s", "1", "sidecar"}, ask{"j", "2", "init"}, ask{"c", "3", ""}, ask{"d", "500m", ""})
	want(p, "i: 01!", "s: 0! 1! 01", "j: 0! 1! 01", "c: 0! 1! 01", "d: any", "pod: 01!")
	want(podOf("q", ask{"c", "500m", ""}), "c: any", "pod: any")
	want(podOf("q", ask{"c", "8", ""}), "c: impossible", "pod: impossible")

	// The init container leaves CPUs of both nodes, of which the sidecar takes one.
	near := topologymanager.Hint{Nodes: 1 << 1, Preferred: true}
	for c := range pod.Containers(&p.Spec) {
		if err := m.Allocate(p, c, near); err != nil {
			t.Fatal(err)
		}
		if c.Name == "s" {
			break
		}
	}
	if got := m.Exclusive("p", "i").String() + " " + m.Exclusive("p", "s").String(); got != "1,4-7 4" {
		t.Errorf("the pod has %s", got)
	}
	want(p, "i: 01!", "s: 1! 01", "j: 01", "c: 01", "d: any", "pod: 01!")

	// A later agent knows the same, and a container keeps what it has though it asks for more.
	m = load(t, cfg)
	p.Spec.InitContainers[1] = podOf("p", ask{"s", "3", "sidecar"}).Spec.InitContainers[0]
	want(p, "i: 01!", "s: 1! 01", "j: 01", "c: 01", "d: any", "pod: 01!")
	mustAdmit(t, m, p, "i=1,4-7 s=4 j=2-3 c=1-3 d=shared")
	want(p, "i: 01!", "s: 1! 01", "j: 0! 01", "c: 0! 01", "d: any", "pod: 01!")
	m.Release("p")
	m.Release("p")
	if got := m.store.current().shared.String(); got != "0-7" {
		t.Errorf("shared %s", got)
	}
}

// A pod that has all its CPUs keeps them, though it now asks for more than there are.
func TestHintsOfPodThatGrew(t *testing.T) {
	m := load(t, configOf(t, box{2, 1, 1, 2, 2}))
	mustAdmit(t, m, podOf("p", ask{"c", "2", ""}), "c=2-3")
	p := podOf("p", ask{"c", "8", ""})
	if c, all := hintsText(m.Hints(p, &p.Spec.Containers[0])), hintsText(m.PodHints(p)); c != "0! 01" || all != c {
		t.Errorf("hints %s, of the pod %s", c, all)
	}
}

func TestReusable(t *testing.T) {
	p := podOf("p", ask{"i", "", "init"}, ask{"s", "", "sidecar"}, ask{"j", "", "init"}, ask{"c", "", ""}, ask{"d", "", ""})
	has := map[string]cpuset.CPUSet{"i": set("1-4"), "s": set("4-5"), "j": set("3,6"), "c": set("2")}
	for name, want := range map[string]string{"i": "", "s": "1,3", "j": "1,3", "d": "1,3,6"} {
		if got := reusable(p, pod.FindContainer(&p.Spec, name), has).String(); got != want {
			t.Errorf("%s can reuse %s; want %s", name, got, want)
		}
	}
}

func TestRetain(t *testing.T) {
	m := load(t, configOf(t, laptop))
	for _, uid := range []string{"a", "b", "c"} {
		if _, err := admit(m, podOf(uid, ask{"x", "1", ""}, ask{"y", "1", ""})); err != nil {
			t.Fatal(err)
		}
	}
	m.CPUs("a", "z")
	m.Retain(map[pod.UID]bool{"b": true})
	if ownsAny(m, "a") || !ownsAny(m, "b") || ownsAny(m, "c") || len(m.store.initial) != 0 {
		t.Errorf("pools %+v, initial %v", m.store.current(), m.store.initial)
	}
	wantFile(t, m, string(must(encode(Static, m.store.current()))))
	m.CPUs("b", "x")
	m.Release("b")
	if len(m.store.initial) != 0 {
		t.Errorf("of pods that are gone there is %v", m.store.initial)
	}
	if got := m.Allocatable().String(); got != "1-7" {
		t.Errorf("allocatable %s", got)
	}
}

// Where all CPUs but the reserved ones were given away, the others run on those.
func TestNothingShared(t *testing.T) {
	m := load(t, configOf(t, small, strictReservation))
	if got := m.CPUs("x", "c"); got != "1-3" {
		t.Errorf("CPUs %s", got)
	}
	mustAdmit(t, m, podOf("a", ask{"c", "3", ""}), "c=1-3")
	if a, x := m.CPUs("a", "c"), m.CPUs("x", "c"); a != "1-3" || x != "0" {
		t.Errorf("CPUs %s and %s", a, x)
	}
}

func TestStory(t *testing.T) {
	cfg := configOf(t, laptop, fullPhysicalCPUs)
	m := load(t, cfg)
	a := podOf("a", ask{"i", "4", "init"}, ask{"c", "2", ""}, ask{"d", "", ""})
	a.Spec.Containers[1].Resources = a.Spec.Containers[0].Resources
	near := topologymanager.Hint{Nodes: 1, Preferred: true}
	for c := range pod.Containers(&a.Spec) {
		if err := m.Allocate(a, c, near); err != nil {
			t.Fatal(err)
		}
	}
	if err := m.Allocate(a, &a.Spec.Containers[0], near); err != nil {
		t.Fatal(err)
	}
	m.Release("a")
	m.Release("nobody")
	b := podOf("b", ask{"c", "3", ""})
	if err := m.Allocate(b, &b.Spec.Containers[0], topologymanager.Hint{Nodes: 1}); err == nil {
		t.Error("the pod is not refused")
	}
	want := []string{
		"i: give CPUs 2-5: it asks for 4 of the 6 free CPUs 2-7; NUMA nodes preferred: 0; options: full-pcpus-only; shared CPUs are 0-1,6-7",
		"c: give CPUs 2-3: it asks for 2 of the 6 free CPUs 2-7; 2-5 are those of init containers before it; NUMA nodes preferred: 0; options: full-pcpus-only; shared CPUs are 0-1,6-7",
		"d: give CPUs 4-5: it asks for 2 of the 4 free CPUs 4-7; 4-5 are those of init containers before it; NUMA nodes preferred: 0; options: full-pcpus-only; shared CPUs are 0-1,6-7",
		"c: keep CPUs 2-3: the container has them from before",
		": take CPUs 2-5 back: the pod has ended, or was refused; shared CPUs are 0-7",
	}
	if diff := cmp.Diff(want, story(m, "a")); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	want = []string{
		"c: refuse 3 CPUs: it asks for 3 of the 6 free CPUs 2-7; NUMA nodes wanted: 0; options: full-pcpus-only; shared CPUs are 0-7: SMT Alignment Error: requested 3 cpus not multiple cpus per core = 2",
	}
	if diff := cmp.Diff(want, story(m, "b")); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if s := story(m, "nobody"); s != nil {
		t.Errorf("of nobody there is %q", s)
	}
}

// alignment counts by "aligned physical_cpu".
type alignment map[string]int

func (a alignment) Aligned(scope, boundary string) { a["aligned "+scope+" "+boundary]++ }
func (a alignment) Failed(scope, boundary string)  { a["failed "+scope+" "+boundary]++ }

func TestMetrics(t *testing.T) {
	const (
		requests  = "kubelet_cpu_manager_pinning_requests_total"
		failures  = "kubelet_cpu_manager_pinning_errors_total"
		shared    = "kubelet_cpu_manager_shared_pool_size_millicores"
		exclusive = "kubelet_cpu_manager_exclusive_cpu_allocation_count"
		perNode   = "kubelet_cpu_manager_allocation_per_numa"
	)
	r, counts := prometheus.NewRegistry(), alignment{}
	cfg := configOf(t, box{2, 1, 2, 2, 2}, fullPhysicalCPUs, alignByUncoreCache)
	cfg.Metrics, cfg.Alignment = r, counts
	m := load(t, cfg)
	metricstest.Expect(t, r, map[string]float64{requests: 0, failures: 0, shared: 16000, exclusive: 0, perNode + `{numa_node="0"}`: 0, perNode + `{numa_node="1"}`: 0})
	mustAdmit(t, m, podOf("a", ask{"c", "2", ""}, ask{"d", "500m", ""}), "c=2-3 d=shared") // one cache
	mustAdmit(t, m, podOf("b", ask{"c", "6", ""}), "c=4-9")                                // two of them
	if _, err := admit(m, podOf("c", ask{"c", "1", ""})); err == nil {
		t.Error("not refused")
	}
	metricstest.Expect(t, r, map[string]float64{requests: 3, failures: 1, shared: 8000, exclusive: 8, perNode + `{numa_node="0"}`: 6, perNode + `{numa_node="1"}`: 2})
	m.Release("a")
	metricstest.Expect(t, r, map[string]float64{requests: 3, failures: 1, shared: 10000, exclusive: 6, perNode + `{numa_node="0"}`: 4})
	want := alignment{"aligned container physical_cpu": 2, "aligned container uncore_cache": 1, "failed container physical_cpu": 1}
	if diff := cmp.Diff(want, counts); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
