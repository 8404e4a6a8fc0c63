package admission

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"berth/internal/observe/metrics/metricstest"
	"berth/internal/pod"
	"berth/internal/pod/allocation"
	"berth/internal/record/events/messagestest"
)

// resizing is a chain over a node with two CPUs, and what came of it.
type resizing struct {
	*Chain
	t      *testing.T
	active map[string]*v1.Pod
	ready  chan struct{}
	events []string
	woken  []string
	facts  Facts
	node   *v1.Node
	// metrics count what was granted after it was deferred.
	metrics *prometheus.Registry
}

func newResizing(t *testing.T) *resizing {
	r := &resizing{t: t, active: map[string]*v1.Pod{}, ready: make(chan struct{}), node: newNode(), metrics: prometheus.NewRegistry()}
	r.Chain = newChain(Config{
		Handlers: []Handler{predicates}, Ready: r.ready, Allocations: allocation.New(allocation.Config{}),
		Node:    func() (*v1.Node, bool) { return r.node, true },
		Facts:   func() Facts { return r.facts },
		Metrics: r.metrics,
		Wake:    func(uid pod.UID) { r.woken = append(r.woken, string(uid)) },
		Event: func(p *v1.Pod, _, eventtype, reason, message string) {
			messagestest.SawEvent(reason, message)
			summary, _, _ := strings.Cut(message, "{")
			r.events = append(r.events, eventtype+" "+reason+" "+p.Name+": "+summary)
		},
	})
	return r
}

// running makes the pod one that runs.
func (r *resizing) running(p *v1.Pod) *v1.Pod {
	r.active[p.Name] = p
	r.run(p)
	r.Adopt(p)
	return p
}

// wants lets a pod's spec ask for so much CPU and memory, and its worker see it. It returns what
// the pod has after that.
func (r *resizing) wants(name string, pairs ...string) string {
	p := r.active[name].DeepCopy()
	p.Generation++
	requests(pairs...)(p)
	if p.Name == "guaranteed" {
		guaranteed(p)
	}
	r.active[name] = p
	r.run(p)
	return r.looks(name)
}

// looks lets the pod's worker look at it.
func (r *resizing) looks(name string) string {
	p := r.Resize(r.active[name])
	text := p.Spec.Containers[0].Resources.Requests.Cpu().String()
	if s := r.cfg.Allocations.Resize(p.UID); s.Pending != nil {
		text += " " + s.Pending.Reason
	}
	return text
}

func (r *resizing) check(what, got, want string) {
	r.t.Helper()
	if got != want {
		r.t.Errorf("%s: got %q, want %q", what, got, want)
	}
}

// A wish for what the node does not declare is told of once, and decided like any other.
func TestResizeNeedsDeclaredFeatures(t *testing.T) {
	const podLevel = "InPlacePodLevelResourcesVerticalScaling"
	warning := "Warning FailedNodeDeclaredFeaturesCheck a: Pod requires node features that are not available: " + podLevel
	for _, c := range []struct {
		name     string
		declared []string
		want     []string
	}{
		{"gate off", nil, nil},
		{"declared", []string{podLevel}, nil},
		{"not declared", []string{}, []string{warning, warning}},
	} {
		r := newResizing(t)
		r.facts.DeclaredFeatures = c.declared
		asking := func(cpu string) *v1.ResourceRequirements {
			return &v1.ResourceRequirements{Requests: v1.ResourceList{v1.ResourceCPU: resource.MustParse(cpu)}}
		}
		p := newPod("a", requests("cpu", "100m"))
		p.Spec.Resources = asking("100m")
		r.running(p)
		r.looks("a")
		for _, cpu := range []string{"200m", "300m"} {
			p = p.DeepCopy()
			p.Generation++
			p.Spec.Resources = asking(cpu)
			r.active["a"] = p
			r.looks("a")
			r.looks("a")
		}
		if diff := cmp.Diff(c.want, r.events); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.name, diff)
		}
	}
}

func TestResizeIsDecided(t *testing.T) {
	r := newResizing(t)
	close(r.ready)
	r.running(newPod("a", requests("cpu", "500m")))
	r.running(newPod("b", requests("cpu", "500m")))
	r.check("as it was", r.looks("a"), "500m")
	r.check("room is there", r.wants("a", "cpu", "1500m"), "1500m")
	r.check("no room is left", r.wants("b", "cpu", "600m"), "500m Deferred")
	r.check("asked again", r.looks("b"), "500m Deferred")
	r.check("and again for more", r.wants("b", "cpu", "700m"), "500m Deferred")
	r.check("less is room for the other", r.wants("a", "cpu", "1"), "1")
	r.check("which has it", r.looks("b"), "700m")
	r.check("more than there is", r.wants("b", "cpu", "9"), "700m Deferred")
	r.check("given up", r.wants("b", "cpu", "700m"), "700m")
	if diff := cmp.Diff([]string{
		"Normal ResizeStarted a: Pod resize started: ", "Warning ResizeDeferred b: Pod resize OutOfcpu: ", "Warning ResizeDeferred b: Pod resize OutOfcpu: ",
		"Normal ResizeStarted a: Pod resize started: ", "Normal ResizeStarted b: Pod resize started: ", "Warning ResizeDeferred b: Pod resize OutOfcpu: ",
	}, r.events); diff != "" {
		t.Errorf("events: -want +got:\n%s", diff)
	}
	if diff := cmp.Diff(map[string]float64{`kubelet_pod_deferred_accepted_resizes_total{retry_trigger="pod_resized"}`: 1}, metricstest.Values(t, r.metrics)); diff != "" {
		t.Errorf("granted after it was deferred (-want +got):\n%s", diff)
	}
	if !slices.Equal(r.woken, []string{"b"}) {
		t.Errorf("woken were %v, want b alone, when it was given what it waited for", r.woken)
	}
	r.check("at its end", r.Allocated(r.active["b"]).Spec.Containers[0].Resources.Requests.Cpu().String(), "700m")
}

func TestResizeIsInfeasible(t *testing.T) {
	for _, tc := range []struct {
		name string
		pod  *v1.Pod
		swap bool
		want []string // what it asks for then
		gets string
		why  string
	}{
		{name: "static", pod: newPod("p", static, requests("cpu", "1")), want: []string{"cpu", "500m"}, gets: "1 Infeasible", why: "In-place resize of static-pods is not supported"},
		{
			name: "another class", pod: newPod("p", requests("cpu", "1", "memory", "1Gi"), guaranteed), want: []string{"cpu", "500m"}, gets: "1 Infeasible",
			why: "Pod QOS Class may not change as a result of resizing: it is Guaranteed and would be Burstable",
		},
		{name: "memory with swap", pod: newPod("p", requests("cpu", "1", "memory", "1Gi")), swap: true, want: []string{"memory", "2Gi"}, gets: "1 Infeasible", why: "In-place resize of containers with swap is not supported."},
		{name: "CPU with swap", pod: newPod("p", requests("cpu", "1", "memory", "1Gi")), swap: true, want: []string{"cpu", "500m"}, gets: "500m"},
		{name: "memory with swap, of a critical pod", pod: newPod("p", critical, requests("cpu", "1", "memory", "1Gi")), swap: true, want: []string{"memory", "2Gi"}, gets: "1"},
		{name: "memory with a restart", pod: newPod("p", requests("cpu", "1", "memory", "1Gi"), restartsForMemory), swap: true, want: []string{"memory", "2Gi"}, gets: "1"},
		{name: "more than the node has", pod: newPod("p", requests("cpu", "1")), want: []string{"cpu", "3"}, gets: "1 Deferred", why: "Node didn't have enough resource: cpu, requested: 3000, used: 0, capacity: 2000"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := newResizing(t)
			close(r.ready)
			r.facts.LimitedSwap = tc.swap
			r.running(tc.pod)
			r.check("the pod has", r.wants("p", tc.want...), tc.gets)
			why := ""
			if s := r.cfg.Allocations.Resize("p"); s.Pending != nil {
				why = s.Pending.Message
				messagestest.Saw("condition", string(v1.PodResizePending)+"/"+s.Pending.Reason, s.Pending.Message)
			}
			r.check("because", why, tc.why)
		})
	}
}

// CPUs and memory that are a container's own stay with it as long as it runs.
func TestResizeOfWhatIsTheContainersOwn(t *testing.T) {
	has := func(cpu, memory string) *v1.Pod {
		return newPod("p", requests("cpu", cpu, "memory", memory), guaranteed)
	}
	burstable := func(cpu string) *v1.Pod { return newPod("p", requests("cpu", cpu)) }
	const cpus, memory = "Resize is infeasible for Guaranteed Pods alongside CPU Manager static policy", "Resize is infeasible for Guaranteed Pods alongside Memory Manager static policy"
	for _, tc := range []struct {
		name          string
		given, wanted *v1.Pod
		facts         Facts
		want          string
	}{
		{"nothing is anyone's own", has("2", "1Gi"), has("1", "2Gi"), Facts{}, ""},
		{"CPU", has("2", "1Gi"), has("1", "1Gi"), Facts{OwnCPUs: true}, cpus},
		{"memory with own CPUs", has("2", "1Gi"), has("2", "2Gi"), Facts{OwnCPUs: true}, ""},
		{"memory", has("2", "1Gi"), has("2", "2Gi"), Facts{OwnMemory: true}, memory},
		{"CPU with own memory", has("2", "1Gi"), has("1", "1Gi"), Facts{OwnMemory: true}, ""},
		{"of a burstable pod", burstable("2"), burstable("1"), Facts{OwnCPUs: true, OwnMemory: true}, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := infeasible(tc.given, tc.wanted, tc.facts); got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}

func TestResizeAtPodLevel(t *testing.T) {
	for _, off := range []bool{false, true} {
		r := newResizing(t)
		close(r.ready)
		r.facts.PodLevelResizeOff = off
		p := newPod("p", requests("cpu", "500m"))
		p.Spec.Resources = &v1.ResourceRequirements{Requests: v1.ResourceList{v1.ResourceCPU: resource.MustParse("1")}}
		r.running(p)
		p = p.DeepCopy()
		p.Generation++
		p.Spec.Resources.Requests[v1.ResourceCPU] = resource.MustParse("2")
		given, why := r.Resize(p).Spec.Resources.Requests.Cpu().String(), ""
		if s := r.cfg.Allocations.Resize("p"); s.Pending != nil {
			why = s.Pending.Reason + ": " + s.Pending.Message
		}
		if off {
			r.check("the pod has", given, "1")
			r.check("because", why, "Infeasible: In-place resize of resources at pod level is not supported: the feature gate InPlacePodLevelResourcesVerticalScaling is off")
		} else {
			r.check("the pod has", given, "2")
			r.check("because", why, "")
		}
	}
}

func restartsForMemory(p *v1.Pod) {
	p.Spec.Containers[0].ResizePolicy = []v1.ContainerResizePolicy{{ResourceName: v1.ResourceMemory, RestartPolicy: v1.RestartContainer}}
}

// What is deferred is granted in this order: what takes nothing, then by priority, by class, by
// age.
func TestResizeOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newResizing(t)
		var order []string
		r.cfg.Event = func(p *v1.Pod, _, _, reason, _ string) {
			if reason == "ResizeStarted" {
				order = append(order, p.Name)
			}
		}
		for _, p := range []*v1.Pod{
			newPod("young", requests("cpu", "10m", "memory", "1Mi")), newPod("guaranteed", requests("cpu", "10m", "memory", "1Mi"), guaranteed),
			newPod("old", requests("cpu", "10m", "memory", "1Mi")), newPod("important", requests("cpu", "10m", "memory", "1Mi"), withPriority(5)),
			newPod("shrinks", requests("cpu", "30m", "memory", "1Mi")),
		} {
			r.running(p)
		}
		for _, name := range []string{"old", "young", "guaranteed", "important", "shrinks"} {
			r.check("before it is known what runs", r.wants(name, "cpu", "20m"), has(name))
			time.Sleep(time.Second)
		}
		close(r.ready)
		r.RetryPending()
		if diff := cmp.Diff([]string{"shrinks", "important", "guaranteed", "old", "young"}, order); diff != "" {
			t.Errorf("-want +got:\n%s", diff)
		}
	})
}

// has is what the pods of TestResizeOrder have in the beginning.
func has(name string) string {
	if name == "shrinks" {
		return "30m"
	}
	return "10m"
}

// While room is made for a critical pod, nobody takes it; and a node that becomes larger is room.
func TestResizeWaitsForRoom(t *testing.T) {
	r := newResizing(t)
	close(r.ready)
	r.running(newPod("a", requests("cpu", "1")))
	victim := make(chan struct{})
	r.victims = []<-chan struct{}{victim}
	r.check("while room is made", r.wants("a", "cpu", "1500m"), "1")
	close(victim)
	r.RetryPending()
	r.check("after that", r.looks("a"), "1500m")
	r.check("too much", r.wants("a", "cpu", "3"), "1500m Deferred")
	r.node = nodeOf("4", "4Gi", 10)
	r.NodeChanged()
	r.check("on a larger node", r.looks("a"), "3")
	if diff := cmp.Diff(map[string]float64{`kubelet_pod_deferred_accepted_resizes_total{retry_trigger="node_changed"}`: 1}, metricstest.Values(t, r.metrics)); diff != "" {
		t.Errorf("granted after it was deferred (-want +got):\n%s", diff)
	}
	if !slices.Equal(r.woken, []string{"a", "a"}) {
		t.Errorf("woken were %v", r.woken)
	}
}

// A pod that ends wishes for nothing.
func TestResizeOfAPodThatEnds(t *testing.T) {
	r := newResizing(t)
	close(r.ready)
	r.running(newPod("a", requests("cpu", "1")))
	r.running(newPod("b", requests("cpu", "1")))
	r.check("no room", r.wants("a", "cpu", "2"), "1 Deferred")
	r.Allocated(r.active["a"])
	r.cfg.Pods.Remove(r.active["b"])
	r.Forget("b")
	r.RetryPending()
	if got := r.cfg.Allocations.Resize("a"); got != (allocation.Resize{}) || len(r.woken) > 0 {
		t.Errorf("a pod that ends is resized: %+v, woken %v", got, r.woken)
	}
}
