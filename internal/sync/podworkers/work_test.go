package podworkers

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth/internal/pod"
)

func TestComputeGrace(t *testing.T) {
	n := func(v int64) *int64 { return &v }
	for _, tc := range []struct {
		name     string
		now      int64
		spec     *int64
		deletion *int64
		override *int64
		want     int64
	}{
		{"the spec's", 0, n(30), nil, nil, 30},
		{"the deletion's replaces the spec's, even when longer", 0, n(30), n(60), nil, 60},
		{"an override replaces both when shorter", 0, n(30), n(20), n(5), 5},
		{"an override does not lengthen", 0, n(30), n(20), n(50), 20},
		{"it only shrinks", 10, n(30), n(20), n(15), 10},
		{"shrinks", 10, n(30), nil, n(3), 3},
		{"at least a second", 0, n(30), n(0), nil, 1},
		{"no spec", 0, nil, nil, nil, 1},
	} {
		w := work{grace: tc.now, pod: &v1.Pod{}}
		w.pod.Spec.TerminationGracePeriodSeconds, w.pod.DeletionGracePeriodSeconds = tc.spec, tc.deletion
		if got := computeGrace(w, &KillPodOptions{PodTerminationGracePeriodSecondsOverride: tc.override}); got != tc.want {
			t.Errorf("%s: got %d, want %d", tc.name, got, tc.want)
		}
	}
}

func TestNextLifecycle(t *testing.T) {
	plain, deleted, failed := &v1.Pod{}, &v1.Pod{}, &v1.Pod{}
	deleted.DeletionTimestamp = &metav1.Time{}
	failed.Status.Phase = v1.PodFailed
	for _, tc := range []struct {
		name string
		l    pod.Lifecycle
		o    UpdatePodOptions
		want pod.Lifecycle
	}{
		{"an update changes nothing", pod.Lifecycle{State: Syncing}, UpdatePodOptions{UpdateType: SyncPodUpdate, Pod: plain}, pod.Lifecycle{State: Syncing}},
		{"a kill ends", pod.Lifecycle{State: Syncing}, UpdatePodOptions{UpdateType: SyncPodKill, Pod: plain}, pod.Lifecycle{State: Terminating}},
		{
			"an eviction is marked",
			pod.Lifecycle{State: Syncing},
			UpdatePodOptions{UpdateType: SyncPodKill, Pod: plain, KillPodOptions: &KillPodOptions{Evict: Evicted}},
			pod.Lifecycle{State: Terminating, Evicted: true},
		},
		{"a deletion ends", pod.Lifecycle{State: Waiting}, UpdatePodOptions{UpdateType: SyncPodUpdate, Pod: deleted}, pod.Lifecycle{State: Terminating, Deleted: true}},
		{"a terminal phase ends", pod.Lifecycle{State: Syncing}, UpdatePodOptions{UpdateType: SyncPodUpdate, Pod: failed}, pod.Lifecycle{State: Terminating}},
		{"nothing goes back", pod.Lifecycle{State: Terminated}, UpdatePodOptions{UpdateType: SyncPodUpdate, Pod: plain}, pod.Lifecycle{State: Terminated}},
		{
			"the runtime alone knows it",
			pod.Lifecycle{State: Waiting},
			UpdatePodOptions{UpdateType: SyncPodKill, RunningPod: &pod.Status{}},
			pod.Lifecycle{State: Terminating, RuntimeOnly: true, Deleted: true},
		},
		{"a spec that is known is used", pod.Lifecycle{State: Syncing}, UpdatePodOptions{UpdateType: SyncPodKill, RunningPod: &pod.Status{}}, pod.Lifecycle{State: Terminating}},
	} {
		if got := nextLifecycle(tc.l, &tc.o); got != tc.want {
			t.Errorf("%s: got %+v, want %+v", tc.name, got, tc.want)
		}
	}
}

func TestMergeWorkKeepsWhatIsNewestAndStrongest(t *testing.T) {
	ending := pod.Lifecycle{State: Terminating}
	first, second := &v1.Pod{}, &v1.Pod{}
	thirty := int64(30)
	first.Spec.TerminationGracePeriodSeconds = &thirty
	second.Spec.TerminationGracePeriodSeconds = &thirty
	five := int64(5)
	a, b := make(chan struct{}), make(chan struct{})
	w, shortened := mergeWork(work{}, &UpdatePodOptions{UpdateType: SyncPodKill, Pod: first, KillPodOptions: &KillPodOptions{CompletedCh: a}}, ending)
	if shortened || w.grace != 30 {
		t.Fatalf("grace %d, shortened %v", w.grace, shortened)
	}
	w, shortened = mergeWork(w, &UpdatePodOptions{UpdateType: SyncPodKill, Pod: second, KillPodOptions: &KillPodOptions{CompletedCh: b, PodTerminationGracePeriodSecondsOverride: &five}}, ending)
	if !shortened || w.grace != 5 || w.pod != second || len(w.completions) != 2 {
		t.Fatalf("got %+v, shortened %v", w, shortened)
	}
	if w, _ = mergeWork(w, &UpdatePodOptions{UpdateType: SyncPodKill, RunningPod: &pod.Status{}}, ending); w.pod != second {
		t.Fatal("a spec was lost to what the runtime knows")
	}
}
