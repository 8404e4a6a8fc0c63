package podresources

import (
	"context"
	"log/slog"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	podresourcesv1 "k8s.io/kubelet/pkg/apis/podresources/v1"
	"k8s.io/utils/cpuset"

	"berth/internal/pod"
)

// node is all that the API reads.
type node struct {
	active, ended []*v1.Pod
	devices       map[string][]Device // by UID/container
	healthy       []Device
	cpus          map[string]cpuset.CPUSet
	blocks        map[string][]Block
	claims        map[string][]Claim
	allocatable   struct {
		cpus   cpuset.CPUSet
		blocks []Block
	}
	asked func() // when Healthy is called; nil: nothing
}

func (n *node) Active() []*v1.Pod { return n.active }

func (n *node) List() []*v1.Pod { return slices.Concat(n.ended, n.active) }

func (n *node) GetByFullName(name pod.FullName) (*v1.Pod, bool) {
	for _, p := range n.List() {
		if pod.FullNameOf(p) == name {
			return p, true
		}
	}
	return nil, false
}

type (
	nodeDevices struct{ *node }
	nodeCPUs    struct{ *node }
	nodeMemory  struct{ *node }
	nodeClaims  struct{ *node }
)

func of(uid pod.UID, container string) string { return string(uid) + "/" + container }

func (n nodeDevices) Devices(uid pod.UID, c string) []Device { return n.devices[of(uid, c)] }

func (n nodeDevices) Healthy() []Device {
	if n.asked != nil {
		n.asked()
	}
	return n.healthy
}

func (n nodeCPUs) Exclusive(uid pod.UID, c string) cpuset.CPUSet { return n.cpus[of(uid, c)] }

func (n nodeCPUs) Allocatable() cpuset.CPUSet { return n.allocatable.cpus }

func (n nodeMemory) Blocks(uid pod.UID, c string) []Block { return n.blocks[of(uid, c)] }

func (n nodeMemory) Allocatable() []Block { return n.allocatable.blocks }

func (n nodeClaims) Claims(p *v1.Pod, c *v1.Container) []Claim { return n.claims[of(p.UID, c.Name)] }

func (n *node) config() Config {
	return Config{
		Pods: n, Devices: nodeDevices{n}, CPUs: nodeCPUs{n}, Memory: nodeMemory{n}, Claims: nodeClaims{n},
		Metrics: prometheus.NewRegistry(), Log: slog.New(slog.DiscardHandler),
	}
}

func newPod(namespace, name string, containers ...v1.Container) *v1.Pod {
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: pod.UID("u-" + name)},
		Spec:       v1.PodSpec{Containers: containers},
	}
}

// fullNode has a pod with something of each kind, one with nothing, and one that has ended.
func fullNode() *node {
	always := v1.ContainerRestartPolicyAlways
	web := newPod("default", "web", v1.Container{Name: "main"}, v1.Container{Name: "other"})
	web.Spec.InitContainers = []v1.Container{{Name: "first"}, {Name: "side", RestartPolicy: &always}}
	web.Spec.EphemeralContainers = []v1.EphemeralContainer{{EphemeralContainerCommon: v1.EphemeralContainerCommon{Name: "shell"}}}
	share := "s-1"
	n := &node{
		active: []*v1.Pod{web, newPod("blue", "idle", v1.Container{Name: "main"})},
		ended:  []*v1.Pod{newPod("default", "job", v1.Container{Name: "main"})},
		devices: map[string][]Device{
			"u-web/main": {
				{Resource: "example.com/gpu", ID: "g1", Nodes: []int{1, 0}},
				{Resource: "example.com/gpu", ID: "g0"},
				{Resource: "example.com/dsp", ID: "d7", Nodes: []int{1}},
			},
			"u-web/first": {{Resource: "example.com/gpu", ID: "g9"}},
			"u-web/shell": {{Resource: "example.com/gpu", ID: "g8"}},
			"u-web/side":  {{Resource: "example.com/gpu", ID: "g2"}},
		},
		healthy: []Device{{Resource: "example.com/gpu", ID: "g1", Nodes: []int{0}}, {Resource: "example.com/gpu", ID: "g0"}},
		cpus:    map[string]cpuset.CPUSet{"u-web/main": cpuset.New(10, 2, 3)},
		blocks: map[string][]Block{
			"u-web/main": {{Type: v1.ResourceMemory, Bytes: 1 << 30, Nodes: []int{1, 0}}, {Type: "hugepages-2Mi", Bytes: 4 << 20, Nodes: []int{0}}},
		},
		claims: map[string][]Claim{"u-web/other": {{Namespace: "default", Name: "nic", Devices: []ClaimedDevice{
			{Driver: "net.example.com", Pool: "n1", Name: "eth1", CDI: []string{"example.com/net=eth1", "example.com/net=rdma1"}},
			{Driver: "net.example.com", Pool: "n1", Name: "eth2", Share: &share, CDI: []string{"example.com/net=eth2"}},
		}}}},
	}
	n.allocatable.cpus = cpuset.New(3, 2, 10)
	n.allocatable.blocks = []Block{{Type: v1.ResourceMemory, Bytes: 8 << 30, Nodes: []int{0}}, {Type: v1.ResourceMemory, Bytes: 4 << 30, Nodes: []int{1}}}
	return n
}

// start runs a server until the test ends, and returns what ends it earlier.
func start(t *testing.T, cfg Config) (stop func()) {
	t.Helper()
	s, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != context.Canceled {
			t.Errorf("Run returned %v", err)
		}
	})
	t.Cleanup(stop)
	return stop
}

// pipes is a listener whose connections are in memory, so that virtual time passes over them.
type pipes struct {
	accept chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func newPipes() *pipes { return &pipes{accept: make(chan net.Conn), closed: make(chan struct{})} }

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.accept:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error {
	p.once.Do(func() { close(p.closed) })
	return nil
}

func (p *pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipes", Net: "unix"} }

func (p *pipes) dial(ctx context.Context, _ string) (net.Conn, error) {
	near, far := net.Pipe()
	select {
	case p.accept <- far:
		return near, nil
	case <-p.closed:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// dial returns a connection to the target, which is closed when the test ends.
func dial(t *testing.T, target string, options ...grpc.DialOption) *grpc.ClientConn {
	t.Helper()
	quick := backoff.Config{BaseDelay: time.Millisecond, Multiplier: 2, MaxDelay: 100 * time.Millisecond}
	options = append(options, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithConnectParams(grpc.ConnectParams{Backoff: quick, MinConnectTimeout: time.Minute}))
	c, err := grpc.NewClient(target, options...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

func (p *pipes) client(t *testing.T) podresourcesv1.PodResourcesListerClient {
	return podresourcesv1.NewPodResourcesListerClient(dial(t, "passthrough:///pipes", grpc.WithContextDialer(p.dial)))
}
