package admission

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth/internal/host/cgroups"
	"berth/internal/pod"
)

func TestRankVictims(t *testing.T) {
	bestEffort := func(name string, options ...option) *v1.Pod { return newPod(name, options...) }
	burstable := func(name string, pairs ...string) *v1.Pod { return newPod(name, requests(pairs...)) }
	sure := func(name string, pairs ...string) *v1.Pod { return newPod(name, requests(pairs...), guaranteed) }
	cpu := func(milli int64) shortage { return shortage{resource: v1.ResourceCPU, requested: milli} }
	memory := func(n int64) shortage { return shortage{resource: v1.ResourceMemory, requested: n} }
	pods := func(n int64) shortage { return shortage{resource: v1.ResourcePods, requested: n} }
	for _, tc := range []struct {
		name      string
		preemptor *v1.Pod
		pods      []*v1.Pod
		need      []shortage
		want      []string
		err       string
	}{
		{
			name: "best effort for a place", need: []shortage{pods(1)},
			pods: []*v1.Pod{sure("g", "cpu", "1", "memory", "1Gi"), burstable("b", "cpu", "1"), bestEffort("e")},
			want: []string{"e"},
		},
		{
			name: "burstable before guaranteed", need: []shortage{cpu(500)},
			pods: []*v1.Pod{sure("g", "cpu", "500m", "memory", "1Gi"), burstable("b", "cpu", "2"), bestEffort("e")},
			want: []string{"b"},
		},
		{
			name: "guaranteed when the others are not enough", need: []shortage{cpu(1500)},
			pods: []*v1.Pod{sure("g", "cpu", "1", "memory", "1Gi"), burstable("b", "cpu", "1"), bestEffort("e")},
			want: []string{"b", "g"},
		},
		{
			name: "a guaranteed pod has to go, and is enough", need: []shortage{cpu(1500)},
			pods: []*v1.Pod{sure("g", "cpu", "1500m", "memory", "1Gi"), burstable("b", "cpu", "1")},
			want: []string{"g"},
		},
		{
			name: "one that is enough, the smallest by memory", need: []shortage{cpu(500)},
			pods: []*v1.Pod{burstable("big", "cpu", "2", "memory", "2Gi"), burstable("less", "cpu", "1", "memory", "1Gi"), burstable("little", "cpu", "100m", "memory", "1Mi")},
			want: []string{"less"},
		},
		{
			name: "the smallest by CPU among equals", need: []shortage{cpu(500)},
			pods: []*v1.Pod{burstable("two", "cpu", "2"), burstable("one", "cpu", "1")},
			want: []string{"one"},
		},
		{
			name: "the nearest first, again and again", need: []shortage{cpu(1000)},
			pods: []*v1.Pod{burstable("a", "cpu", "300m"), burstable("b", "cpu", "700m"), burstable("c", "cpu", "400m")},
			want: []string{"b", "a"},
		},
		{
			name: "two resources", need: []shortage{cpu(1000), memory(1 << 30)},
			pods: []*v1.Pod{burstable("cpu", "cpu", "1"), burstable("memory", "memory", "1Gi"), burstable("both", "cpu", "1", "memory", "1Gi")},
			want: []string{"both"},
		},
		{
			name: "what is used by others counts", need: []shortage{{resource: v1.ResourceCPU, requested: 1000, used: 1500, capacity: 2000}},
			pods: []*v1.Pod{burstable("a", "cpu", "500m"), burstable("b", "cpu", "1")},
			want: []string{"a"},
		},
		{
			name: "critical pods stay", need: []shortage{cpu(500)},
			pods: []*v1.Pod{newPod("static", requests("cpu", "1"), static, critical), newPod("critical", requests("cpu", "1"), critical)},
			err:  "no set of running pods found to reclaim resources: cpu: 500",
		},
		{
			name: "a critical pod of lower priority goes", preemptor: newPod("p", withPriority(2_000_001_000)), need: []shortage{cpu(500)},
			pods: []*v1.Pod{newPod("low", requests("cpu", "1"), withPriority(2_000_000_000))},
			want: []string{"low"},
		},
		{
			name: "a static pod without a priority has the lowest", need: []shortage{cpu(500)},
			pods: []*v1.Pod{newPod("static", requests("cpu", "1"), static)},
			want: []string{"static"},
		},
		{
			name: "not enough", need: []shortage{cpu(500), memory(1 << 30)},
			pods: []*v1.Pod{burstable("a", "cpu", "400m", "memory", "1Gi")},
			err:  "no set of running pods found to reclaim resources: cpu: 100",
		},
	} {
		preemptor := tc.preemptor
		if preemptor == nil {
			preemptor = newPod("p", critical)
		}
		victims, err := rankVictims(preemptor, tc.pods, tc.need)
		var got []string
		for _, v := range victims {
			got = append(got, v.Name)
		}
		text := ""
		if err != nil {
			text = err.Error()
		}
		if diff := cmp.Diff(tc.want, got); diff != "" || text != tc.err {
			t.Errorf("%s: error %q, want %q; victims (-want +got):\n%s", tc.name, text, tc.err, diff)
		}
	}
}

// Whatever runs: the victims are enough, all of them may be ended, and a better class goes only if
// the worse ones together are not enough.
func TestRankVictimsHolds(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for round := range 2000 {
		var pods []*v1.Pod
		for i := range random.IntN(8) {
			p := newPod(fmt.Sprint(i))
			if class := random.IntN(3); class > 0 {
				requests("cpu", fmt.Sprintf("%dm", 1+random.IntN(1000)), "memory", fmt.Sprint(1+random.IntN(1000)))(p)
				if class == 2 {
					guaranteed(p)
				}
			}
			if random.IntN(5) == 0 {
				critical(p)
			}
			pods = append(pods, p)
		}
		need := amounts{}
		for _, r := range []v1.ResourceName{v1.ResourceCPU, v1.ResourceMemory, v1.ResourcePods} {
			if random.IntN(2) == 0 {
				need[r] = 1 + random.Int64N(1500)
			}
		}
		if n, ok := need[v1.ResourcePods]; ok {
			need[v1.ResourcePods] = min(n, 2)
		}
		var shortages []shortage
		for r, n := range need {
			shortages = append(shortages, shortage{resource: r, requested: n})
		}
		may := map[v1.PodQOSClass][]candidate{}
		var all []candidate
		for _, p := range pods {
			if !pod.IsCritical(p) {
				c := candidate{p, requestsOf(p)}
				may[cgroups.QOSClass(p)], all = append(may[cgroups.QOSClass(p)], c), append(all, c)
			}
		}
		victims, err := rankVictims(newPod("p", critical), pods, shortages)
		if (err != nil) != (len(need.without(all)) > 0) {
			t.Fatalf("round %d: need %v, error %v, pods %v", round, need, err, all)
		}
		if err != nil {
			continue
		}
		var gone []candidate
		classes := map[v1.PodQOSClass]bool{}
		for _, v := range victims {
			if pod.IsCritical(v) {
				t.Fatalf("round %d: a critical pod has to go", round)
			}
			gone = append(gone, candidate{v, requestsOf(v)})
			classes[cgroups.QOSClass(v)] = true
		}
		if left := need.without(gone); len(left) > 0 {
			t.Fatalf("round %d: %v of %v is still missing", round, left, need)
		}
		worse := [][]candidate{may[v1.PodQOSBestEffort], may[v1.PodQOSBurstable]}
		if classes[v1.PodQOSGuaranteed] && len(need.without(worse...)) == 0 {
			t.Fatalf("round %d: a guaranteed pod has to go for %v, though others are enough", round, need)
		}
		if classes[v1.PodQOSBurstable] && len(need.without(worse[0])) == 0 {
			t.Fatalf("round %d: a burstable pod has to go for %v, though those of best effort are enough", round, need)
		}
	}
}

func TestPreemptedStatus(t *testing.T) {
	p := newPod("p")
	p.Generation = 3
	s := v1.PodStatus{Phase: v1.PodRunning, Conditions: []v1.PodCondition{{Type: v1.PodReady, Status: v1.ConditionTrue}}}
	preemptedStatus(p)(&s)
	at := metav1.NewTime(time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC))
	s.Conditions[1].LastTransitionTime = at
	preemptedStatus(p)(&s)
	want := v1.PodStatus{
		Phase: v1.PodFailed, Reason: "Preempting", Message: "Preempted in order to admit critical pod",
		Conditions: []v1.PodCondition{
			{Type: v1.PodReady, Status: v1.ConditionTrue},
			{
				Type: v1.DisruptionTarget, Status: v1.ConditionTrue, Reason: "TerminationByKubelet", ObservedGeneration: 3, LastTransitionTime: at,
				Message: "Pod was preempted by Kubelet to accommodate a critical pod.",
			},
		},
	}
	if diff := cmp.Diff(want, s); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}
