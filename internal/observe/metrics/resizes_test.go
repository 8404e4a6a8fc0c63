package metrics

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"berth/internal/pod"
)

// A resize is counted when it is asked for, when it cannot be had, and when it is done; telling it
// twice makes no difference.
func TestResizes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var shown *v1.Pod
		r := prometheus.NewRegistry()
		p := NewPods(PodsConfig{
			Metrics: r, List: func() []*v1.Pod { return []*v1.Pod{shown} }, Wanted: func() []*v1.Pod { return nil },
			Observed: func() []*pod.Status { return nil }, Lifecycles: func() map[pod.UID]pod.Lifecycle { return nil },
		})
		r.MustRegister(p)
		show := func(request, limit string, conditions ...v1.PodCondition) {
			shown = &v1.Pod{Spec: v1.PodSpec{Containers: []v1.Container{{Name: "main"}}}, Status: v1.PodStatus{Conditions: conditions}}
			list := func(q string) v1.ResourceList {
				if q == "" {
					return nil
				}
				return v1.ResourceList{v1.ResourceMemory: resource.MustParse(q)}
			}
			shown.Spec.Containers[0].Resources = v1.ResourceRequirements{Requests: list(request), Limits: list(limit)}
			p.count(shown)
			p.count(shown)
		}
		condition := func(kind v1.PodConditionType, reason, message string) v1.PodCondition {
			return v1.PodCondition{Type: kind, Status: v1.ConditionTrue, Reason: reason, Message: message}
		}
		has := func(lines ...string) {
			t.Helper()
			got := text(t, r)
			for _, want := range lines {
				if !strings.Contains(got, want+"\n") {
					t.Errorf("lacks %s", want)
				}
			}
		}
		show("1Gi", "")
		show("2Gi", "2Gi")
		show("1Gi", "2Gi", condition(v1.PodResizePending, v1.PodReasonInfeasible, "In-place resize of static-pods is not supported"))
		has(
			`kubelet_container_requested_resizes_total{operation="increase",requirement="requests",resource="memory"} 1`,
			`kubelet_container_requested_resizes_total{operation="add",requirement="limits",resource="memory"} 1`,
			`kubelet_container_requested_resizes_total{operation="decrease",requirement="requests",resource="memory"} 1`,
			`kubelet_pod_infeasible_resizes_total{reason_detail="static_pod"} 1`, `kubelet_pod_pending_resizes{reason="infeasible"} 1`,
		)
		show("1Gi", "2Gi", condition(v1.PodResizePending, v1.PodReasonDeferred, "no room"))
		has(`kubelet_pod_pending_resizes{reason="deferred"} 1`, `kubelet_pod_pending_resizes{reason="infeasible"} 0`)
		show("1Gi", "2Gi", condition(v1.PodResizeInProgress, "", ""))
		has("kubelet_pod_in_progress_resizes 1")
		time.Sleep(40 * time.Millisecond)
		show("1Gi", "2Gi", condition(v1.PodResizeInProgress, v1.PodReasonError, "below usage"))
		time.Sleep(20 * time.Millisecond)
		show("1Gi", "2Gi")
		has(
			"kubelet_pod_in_progress_resizes 0", `kubelet_pod_resize_duration_milliseconds_sum{success="false"} 40`, `kubelet_pod_resize_duration_milliseconds_count{success="false"} 1`,
			`kubelet_pod_resize_duration_milliseconds_sum{success="true"} 60`, `kubelet_pod_resize_duration_milliseconds_count{success="true"} 1`,
		)
		show("1Gi", "")
		has(`kubelet_container_requested_resizes_total{operation="remove",requirement="limits",resource="memory"} 1`)
	})
}
