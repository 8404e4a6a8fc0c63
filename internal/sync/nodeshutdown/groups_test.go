package nodeshutdown

import (
	"slices"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"berth/internal/config"
	"berth/internal/record/events/messagestest"
)

func TestGroups(t *testing.T) {
	seconds := func(n float64) metav1.Duration {
		return metav1.Duration{Duration: time.Duration(n * float64(time.Second))}
	}
	for _, tc := range []struct {
		name string
		in   config.KubeletConfiguration
		want []Group
	}{
		{"none", config.KubeletConfiguration{}, nil},
		{
			"two groups",
			config.KubeletConfiguration{ShutdownGracePeriod: seconds(30), ShutdownGracePeriodCriticalPods: seconds(10)},
			[]Group{{0, 20}, {2000000000, 10}},
		},
		{"no time for critical pods", config.KubeletConfiguration{ShutdownGracePeriod: seconds(30)}, []Group{{0, 30}, {2000000000, 0}}},
		{
			"whole seconds",
			config.KubeletConfiguration{ShutdownGracePeriod: seconds(4), ShutdownGracePeriodCriticalPods: seconds(1.5)},
			[]Group{{0, 2}, {2000000000, 1}},
		},
		{
			"by priority",
			config.KubeletConfiguration{ShutdownGracePeriodByPodPriority: []config.ShutdownGracePeriodByPodPriority{
				{Priority: 1000, ShutdownGracePeriodSeconds: 60},
				{Priority: -5, ShutdownGracePeriodSeconds: 0},
				{Priority: 10, ShutdownGracePeriodSeconds: 5},
			}},
			[]Group{{-5, 0}, {10, 5}, {1000, 60}},
		},
		{
			"no time at all",
			config.KubeletConfiguration{ShutdownGracePeriodByPodPriority: []config.ShutdownGracePeriodByPodPriority{{Priority: 1}}},
			nil,
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := Groups(&tc.in); !slices.Equal(got, tc.want) {
				t.Errorf("%v, want %v", got, tc.want)
			}
		})
	}
}

func TestTotalDelay(t *testing.T) {
	if got := totalDelay([]Group{{0, 20}, {5, 10}}); got != 30*time.Second {
		t.Errorf("%v", got)
	}
	if got := totalDelay([]Group{{0, 1 << 62}, {5, 1 << 62}, {6, 1 << 62}}); got <= 0 {
		t.Errorf("a sum beyond all bounds is %v", got)
	}
}

func TestGroupPods(t *testing.T) {
	groups := []Group{{10, 1}, {100, 1}, {2000000000, 1}}
	for _, tc := range []struct {
		priority *int32
		want     int
	}{
		{nil, 0},
		{ptr.To[int32](-7), 0},
		{ptr.To[int32](9), 0},
		{ptr.To[int32](10), 0},
		{ptr.To[int32](99), 0},
		{ptr.To[int32](100), 1},
		{ptr.To[int32](1999999999), 1},
		{ptr.To[int32](2000000000), 2},
		{ptr.To[int32](2000001000), 2},
	} {
		p := &v1.Pod{Spec: v1.PodSpec{Priority: tc.priority}}
		got := slices.IndexFunc(groupPods(groups, []*v1.Pod{p}), func(of []*v1.Pod) bool { return len(of) > 0 })
		if got != tc.want {
			t.Errorf("priority %v is in group %d, want %d", ptr.Deref(tc.priority, 0), got, tc.want)
		}
	}
}

func TestComputeGrace(t *testing.T) {
	for _, tc := range []struct {
		own   *int64
		group int64
		want  int64
	}{{nil, 7, 7}, {ptr.To[int64](30), 7, 7}, {ptr.To[int64](5), 7, 5}, {ptr.To[int64](5), 0, 0}} {
		if got := computeGrace(Group{0, tc.group}, &v1.Pod{Spec: v1.PodSpec{TerminationGracePeriodSeconds: tc.own}}); got != tc.want {
			t.Errorf("own %v, group %d: %d, want %d", tc.own, tc.group, got, tc.want)
		}
	}
}

func TestFinalStatus(t *testing.T) {
	for phase, want := range map[v1.PodPhase]v1.PodPhase{v1.PodRunning: v1.PodFailed, v1.PodPending: v1.PodFailed, v1.PodSucceeded: v1.PodSucceeded} {
		set := finalStatus(&v1.Pod{ObjectMeta: metav1.ObjectMeta{Generation: 3}})
		s := v1.PodStatus{Phase: phase, Conditions: []v1.PodCondition{{Type: v1.PodReady}}}
		set(&s)
		set(&s) // each report does
		messagestest.SawStatus(&s)
		if s.Phase != want || s.Reason != "Terminated" || s.Message != "Pod was terminated in response to imminent node shutdown." {
			t.Errorf("%s: %s %s %q", phase, s.Phase, s.Reason, s.Message)
		}
		if len(s.Conditions) != 2 {
			t.Fatalf("conditions %v", s.Conditions)
		}
		if c := s.Conditions[1]; c.Type != "DisruptionTarget" || c.Status != v1.ConditionTrue || c.Reason != "TerminationByKubelet" || c.Message != s.Message || c.ObservedGeneration != 3 {
			t.Errorf("condition %+v", c)
		}
	}
}
