package kuberuntime

import (
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"

	"berth/internal/observe/metrics/metricstest"
	"berth/internal/pod/lifecycle"
)

// A container that cannot be started counts by its kind and the reason in its status.
func TestMetrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, registry := newBench(t), prometheus.NewRegistry()
		b.metrics = newMetrics(registry)
		p := podOf(v1.RestartPolicyAlways, "a")
		b.fake.Calls.Fail("CreateContainer", 1, status.Error(codes.Unknown, "no room"))
		if e := b.sync(p).StartErrors["a"]; e.Reason != lifecycle.CreateContainerError {
			t.Fatalf("got %+v", e)
		}
		p.Spec.InitContainers = []v1.Container{{Name: "first"}}
		p.Spec.EphemeralContainers = []v1.EphemeralContainer{{EphemeralContainerCommon: v1.EphemeralContainerCommon{Name: "debug"}}}
		b.metrics.startFailed(p, "first", lifecycle.ErrImagePull)
		b.metrics.startFailed(p, "debug", lifecycle.ErrImagePull)
		b.metrics.imagesUsed(2, nil)
		b.metrics.imagesUsed(1, &lifecycle.StartError{})
		want := map[string]float64{
			"kubelet_image_volume_requested_total": 3, "kubelet_image_volume_mounted_succeed_total": 2, "kubelet_image_volume_mounted_errors_total": 1,
			`kubelet_started_containers_errors_total{code="CreateContainerError",container_type="container"}`:   1,
			`kubelet_started_containers_errors_total{code="ErrImagePull",container_type="init_container"}`:      1,
			`kubelet_started_containers_errors_total{code="ErrImagePull",container_type="ephemeral_container"}`: 1,
		}
		if diff := cmp.Diff(want, metricstest.Values(t, registry)); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
}
