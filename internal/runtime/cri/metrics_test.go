package cri_test

import (
	"testing"
	"testing/synctest"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/observe/metrics/metricstest"
	"berth/internal/runtime/cri"
	"berth/internal/runtime/cri/critest"
)

// Calls count under the kubelet's words for them, and those of sandboxes and images by themselves,
// too.
func TestMetrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fake, registry := critest.Start(t, critest.WithImages(image)), prometheus.NewRegistry()
		c, err := cri.New(cri.Config{Endpoint: "fake", Dial: fake.Dialer(), Metrics: registry})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, err := c.RunPodSandbox(t.Context(), sandboxConfig("a"), ""); err != nil {
			t.Fatal(err)
		}
		fake.Calls.Fail("RunPodSandbox", 1, status.Error(codes.Unknown, "no network"))
		if _, err := c.RunPodSandbox(t.Context(), sandboxConfig("b"), ""); err == nil {
			t.Fatal("it was to fail")
		}
		fake.Calls.Fail("RunPodSandbox", 1, status.Error(codes.Unknown, "no ids"))
		own := sandboxConfig("c")
		own.Linux = &runtimeapi.LinuxPodSandboxConfig{SecurityContext: &runtimeapi.LinuxSandboxSecurityContext{
			NamespaceOptions: &runtimeapi.NamespaceOption{UsernsOptions: &runtimeapi.UserNamespace{Mode: runtimeapi.NamespaceMode_POD}},
		}}
		if _, err := c.RunPodSandbox(t.Context(), own, ""); err == nil {
			t.Fatal("it was to fail")
		}
		fake.Images.AddToRegistry(critest.RegistryImage{Image: critest.Image{Name: "registry.example/app:1"}})
		if _, err := c.Images.PullImage(t.Context(), &runtimeapi.ImageSpec{Image: "registry.example/app:1"}, nil, nil); err != nil {
			t.Fatal(err)
		}
		fake.Calls.Fail("PullImage", 1, status.Error(codes.Unknown, "no route"))
		if _, err := c.Images.PullImage(t.Context(), &runtimeapi.ImageSpec{Image: "registry.example/app:1"}, nil, nil); err == nil {
			t.Fatal("it was to fail")
		}
		metricstest.Expect(t, registry, map[string]float64{
			`kubelet_runtime_operations_total{operation_type="run_podsandbox"}`:                  3,
			`kubelet_runtime_operations_errors_total{operation_type="run_podsandbox"}`:           2,
			`kubelet_runtime_operations_duration_seconds_count{operation_type="run_podsandbox"}`: 3,
			`kubelet_run_podsandbox_duration_seconds_count{runtime_handler=""}`:                  3,
			`kubelet_run_podsandbox_errors_total{runtime_handler=""}`:                            2,
			`kubelet_started_pods_errors_total`:                                                  2,
			`kubelet_started_user_namespaced_pods_errors_total`:                                  1,
			`kubelet_image_pull_duration_seconds_count{image_size_in_bytes="N/A"}`:               1,
			`kubelet_runtime_operations_errors_total{operation_type="pull_image"}`:               1,
		})
	})
}
