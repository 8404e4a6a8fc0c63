package metrics

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth/internal/observe/metrics/metricstest"
	"berth/internal/pod"
	"berth/internal/record/journal"
)

// Pulls and init containers at one time are left out once.
func TestComputeExcluded(t *testing.T) {
	zero := time.Unix(1700000000, 0)
	at := func(seconds int) time.Time { return zero.Add(time.Duration(seconds) * time.Second) }
	image := func(took, end int) journal.Entry {
		return journal.Entry{Component: "image", Took: time.Duration(took) * time.Second, Time: at(end)}
	}
	failed := image(3, 24)
	failed.Error = "no such image"
	p := &v1.Pod{Spec: v1.PodSpec{InitContainers: []v1.Container{{Name: "init"}}, Containers: []v1.Container{{Name: "main"}}}}
	for _, tt := range []struct {
		name    string
		entries []journal.Entry
		ends    []journal.End
		want    int
	}{
		{"nothing", nil, nil, 0},
		{"a pull", []journal.Entry{image(4, 6)}, nil, 4},
		{"before it was made", []journal.Entry{image(10, 2)}, nil, 2},
		{"of another component", []journal.Entry{{Component: "volume", Took: time.Second, Time: at(9)}}, nil, 0},
		{"that failed", []journal.Entry{failed}, nil, 0},
		{"an init container", nil, []journal.End{{Container: "init", Started: at(5), Finished: at(8)}, {Container: "main", Started: at(9), Finished: at(12)}}, 3},
		{"side by side", []journal.Entry{image(6, 8), image(1, 3), image(4, 20)}, []journal.End{{Container: "init", Started: at(7), Finished: at(10)}}, 8 + 4},
		{"longer than the start", []journal.Entry{image(10, 40)}, nil, 0},
		{"at its end", []journal.Entry{image(10, 35)}, nil, 5},
	} {
		got := computeExcluded(p, &journal.Timeline{Entries: tt.entries, Ends: tt.ends}, span{zero, at(30)})
		if want := time.Duration(tt.want) * time.Second; got != want {
			t.Errorf("%s: %v, want %v", tt.name, got, want)
		}
	}
}

// The start that counts for the objective is without the pull; the first of a pod with a network of
// its own is told besides.
func TestStartsForTheObjective(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		r := prometheus.NewRegistry()
		pods := map[pod.UID]*v1.Pod{}
		changed := pod.NewInbox[pod.UID]()
		p := NewPods(PodsConfig{
			Changed: changed, Pod: func(uid pod.UID) (*v1.Pod, bool) { x, ok := pods[uid]; return x, ok },
			List: func() []*v1.Pod { return nil }, Started: began, Metrics: r,
			Timeline: func(pod.UID) (journal.Timeline, bool) {
				return journal.Timeline{Entries: []journal.Entry{{Component: "image", Took: 2 * time.Second, Time: began.Add(3 * time.Second)}}}, true
			},
		})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- p.Run(ctx) }()
		time.Sleep(5 * time.Second)
		run := func(uid pod.UID, change func(*v1.Pod)) {
			pods[uid] = &v1.Pod{
				ObjectMeta: metav1.ObjectMeta{UID: uid, CreationTimestamp: metav1.NewTime(began)},
				Status:     v1.PodStatus{Phase: v1.PodRunning, StartTime: &metav1.Time{Time: began}},
			}
			change(pods[uid])
			changed.Put(uid)
			synctest.Wait()
		}
		run("host", func(p *v1.Pod) { p.Spec.HostNetwork = true })
		metricstest.Expect(t, r, map[string]float64{
			"kubelet_pod_start_sli_duration_seconds_sum": 3, "kubelet_pod_start_total_duration_seconds_sum": 5, "kubelet_first_network_pod_start_sli_duration_seconds": 0,
		})
		run("web", func(*v1.Pod) {})
		time.Sleep(time.Second)
		run("next", func(*v1.Pod) {})
		metricstest.Expect(t, r, map[string]float64{
			"kubelet_pod_start_sli_duration_seconds_count": 3, "kubelet_pod_start_sli_duration_seconds_sum": 10, "kubelet_first_network_pod_start_sli_duration_seconds": 3,
		})
		cancel()
		<-done
	})
}

// What the kubelet hides is shown on demand.
func TestHiddenFamilies(t *testing.T) {
	for hidden, want := range map[bool]int{false: 0, true: 1} {
		r := prometheus.NewRegistry()
		r.MustRegister(Resource{Readings: readings{}, Log: slog.New(slog.DiscardHandler), Hidden: hidden})
		got := 0
		for name := range metricstest.Values(t, r) {
			if name == "scrape_error" {
				got++
			}
		}
		if got != want {
			t.Errorf("hidden %t: %d", hidden, got)
		}
	}
}
