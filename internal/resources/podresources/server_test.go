package podresources

import (
	"net"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	podresourcesv1 "k8s.io/kubelet/pkg/apis/podresources/v1"
	"k8s.io/kubelet/pkg/apis/podresources/v1alpha1"

	"berth/internal/observe/metrics/metricstest"
	"berth/internal/record/events/messagestest"
)

const (
	webText = `pod_resources {name: "web" namespace: "default"
		containers {name: "side" devices {resource_name: "example.com/gpu" device_ids: "g2"}}
		containers {name: "main" cpu_ids: [2, 3, 10]
			devices {resource_name: "example.com/dsp" device_ids: "d7" topology {nodes {ID: 1}}}
			devices {resource_name: "example.com/gpu" device_ids: "g0"}
			devices {resource_name: "example.com/gpu" device_ids: "g1" topology {nodes {ID: 0}}}
			devices {resource_name: "example.com/gpu" device_ids: "g1" topology {nodes {ID: 1}}}
			memory {memory_type: "memory" size: 1073741824 topology {nodes {ID: 0} nodes {ID: 1}}}
			memory {memory_type: "hugepages-2Mi" size: 4194304 topology {nodes {ID: 0}}}
		}
		containers {name: "other" dynamic_resources {claim_name: "nic" claim_namespace: "default"
			claim_resources {driver_name: "net.example.com" pool_name: "n1" device_name: "eth1"
				cdi_devices {name: "example.com/net=eth1"} cdi_devices {name: "example.com/net=rdma1"}}
			claim_resources {driver_name: "net.example.com" pool_name: "n1" device_name: "eth2" share_id: "s-1"
				cdi_devices {name: "example.com/net=eth2"}}
		}}
	} `
	idleText = `pod_resources {name: "idle" namespace: "blue" containers {name: "main"}} `
	jobText  = `pod_resources {name: "job" namespace: "default" containers {name: "main"}} `
)

// A client over a real socket is told everything, by both versions, and counted.
func TestServer(t *testing.T) {
	n := fullNode()
	cfg := n.config()
	cfg.Socket = filepath.Join(t.TempDir(), "pod-resources", "kubelet.sock")
	registry := prometheus.NewRegistry()
	cfg.Metrics = registry
	start(t, cfg)
	conn := dial(t, "unix://"+cfg.Socket, waitForReady)
	client, ctx := podresourcesv1.NewPodResourcesListerClient(conn), t.Context()

	list, err := client.List(ctx, &podresourcesv1.ListPodResourcesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	expect(t, list, &podresourcesv1.ListPodResourcesResponse{}, idleText+webText)

	got, err := client.Get(ctx, &podresourcesv1.GetPodResourcesRequest{PodName: "web", PodNamespace: "default"})
	if err != nil {
		t.Fatal(err)
	}
	expect(t, got, &podresourcesv1.GetPodResourcesResponse{}, webText)

	allocatable, err := client.GetAllocatableResources(ctx, &podresourcesv1.AllocatableResourcesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	expect(t, allocatable, &podresourcesv1.AllocatableResourcesResponse{}, `cpu_ids: [2, 3, 10]
		devices {resource_name: "example.com/gpu" device_ids: "g0"}
		devices {resource_name: "example.com/gpu" device_ids: "g1" topology {nodes {ID: 0}}}
		memory {memory_type: "memory" size: 8589934592 topology {nodes {ID: 0}}}
		memory {memory_type: "memory" size: 4294967296 topology {nodes {ID: 1}}}`)

	alpha, err := v1alpha1.NewPodResourcesListerClient(conn).List(ctx, &v1alpha1.ListPodResourcesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	expect(t, alpha, &v1alpha1.ListPodResourcesResponse{}, idleText+jobText+`pod_resources {name: "web" namespace: "default"
		containers {name: "main"
			devices {resource_name: "example.com/dsp" device_ids: "d7"}
			devices {resource_name: "example.com/gpu" device_ids: "g0"}
			devices {resource_name: "example.com/gpu" device_ids: "g1"}
		}
		containers {name: "other"}
	}`)

	for _, no := range []struct{ namespace, name string }{{"blue", "web"}, {"", ""}, {"default", "web_default"}} {
		_, err = client.Get(ctx, &podresourcesv1.GetPodResourcesRequest{PodName: no.name, PodNamespace: no.namespace})
		want := "pod " + no.name + " in namespace " + no.namespace + " not found"
		messagestest.SawGRPC(err)
		if s := status.Convert(err); s.Code() != codes.Unknown || s.Message() != want {
			t.Errorf("Get said %v, want %q", err, want)
		}
	}
	version := func(name, v string) string { return name + `{server_api_version="` + v + `"}` }
	metricstest.Expect(t, registry, map[string]float64{
		version("kubelet_pod_resources_endpoint_requests_total", "v1"):             6,
		version("kubelet_pod_resources_endpoint_requests_total", "v1alpha1"):       1,
		version("kubelet_pod_resources_endpoint_requests_list", "v1"):              1,
		version("kubelet_pod_resources_endpoint_requests_list", "v1alpha1"):        1,
		version("kubelet_pod_resources_endpoint_requests_get", "v1"):               4,
		version("kubelet_pod_resources_endpoint_requests_get_allocatable", "v1"):   1,
		version("kubelet_pod_resources_endpoint_errors_get", "v1"):                 3,
		version("kubelet_pod_resources_endpoint_errors_list", "v1"):                0,
		version("kubelet_pod_resources_endpoint_errors_get_allocatable", "v1"):     0,
		version("kubelet_pod_resources_endpoint_requests_get_allocatable", "v1a1"): 0,
	})
}

func TestListKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, l := fullNode(), newPipes()
		cfg := n.config()
		cfg.Listen, cfg.ListKnown, cfg.Claims = func() (net.Listener, error) { return l, nil }, true, nil
		start(t, cfg)
		list, err := l.client(t).List(t.Context(), &podresourcesv1.ListPodResourcesRequest{})
		if err != nil {
			t.Fatal(err)
		}
		without := webText[:strings.Index(webText, "dynamic_resources")] + "}}" // and without claims, as there are none
		expect(t, list, &podresourcesv1.ListPodResourcesResponse{}, idleText+jobText+without)
	})
}

// Ten calls at once are let in, by whatever version and client, and then one each 10 ms.
func TestRateLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, l := &node{}, newPipes()
		cfg := n.config()
		registry := prometheus.NewRegistry()
		cfg.Listen, cfg.Metrics = func() (net.Listener, error) { return l, nil }, registry
		start(t, cfg)
		clients := []podresourcesv1.PodResourcesListerClient{l.client(t), l.client(t)}
		burst := func(calls int) (in int) {
			for i := range calls {
				_, err := clients[i%2].List(t.Context(), &podresourcesv1.ListPodResourcesRequest{})
				messagestest.SawGRPC(err)
				if err == nil {
					in++
				} else if s := status.Convert(err); s.Code() != codes.ResourceExhausted || s.Message() != "rejected by rate limit" {
					t.Fatalf("List said %v", err)
				}
			}
			return in
		}
		for _, c := range []struct {
			after time.Duration
			in    int
		}{{0, 10}, {0, 0}, {10 * time.Millisecond, 1}, {35 * time.Millisecond, 3}, {time.Hour, 10}} {
			time.Sleep(c.after)
			if in := burst(20); in != c.in {
				t.Errorf("after %v: %d calls were let in, want %d", c.after, in, c.in)
			}
		}
		metricstest.Expect(t, registry, map[string]float64{
			`kubelet_pod_resources_endpoint_requests_total{server_api_version="v1"}`: 24,
			`kubelet_pod_resources_endpoint_errors_list{server_api_version="v1"}`:    0,
		})
	})
}

func TestNewRefuses(t *testing.T) {
	for name, spoil := range map[string]func(*Config){
		"pods":    func(c *Config) { c.Pods = nil },
		"devices": func(c *Config) { c.Devices = nil },
		"CPUs":    func(c *Config) { c.CPUs = nil },
		"memory":  func(c *Config) { c.Memory = nil },
		"log":     func(c *Config) { c.Log = nil },
		"socket":  func(c *Config) { c.Socket = "kubelet.sock" },
	} {
		cfg := (&node{}).config()
		cfg.Socket = "/var/lib/berth/pod-resources/kubelet.sock"
		spoil(&cfg)
		if _, err := New(cfg); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
