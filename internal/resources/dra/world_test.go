package dra_test

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/test/bufconn"
	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	healthapi "k8s.io/kubelet/pkg/apis/dra-health/v1alpha1"
	drav1 "k8s.io/kubelet/pkg/apis/dra/v1"

	"berth/internal/cluster/kube"
	"berth/internal/cluster/kube/kubetest"
	"berth/internal/pod"
	"berth/internal/record/events/messagestest"
	"berth/internal/record/journal"
	"berth/internal/resources/dra"
	"berth/internal/resources/dra/dratest"
)

// world is a machine with drivers, an API server, and an agent that starts and ends.
type world struct {
	*testing.T
	API     *kubetest.Server
	Journal *journal.Journal
	Metrics *prometheus.Registry
	root    string
	client  *kube.Client
	config  func(*dra.Config)

	mu    sync.Mutex
	doors map[string]*bufconn.Listener // guarded by mu; by socket: those that listen
}

// inBubble runs a test in a world in a bubble.
func inBubble(t *testing.T, test func(w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { test(newWorld(t)) })
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{T: t, API: kubetest.New(), Journal: journal.New(slog.New(slog.DiscardHandler)), root: t.TempDir(), doors: map[string]*bufconn.Listener{}}
	var err error
	w.client, err = kube.Open(kube.Config{REST: w.API.Config(), Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func (w *world) dial(ctx context.Context, socket string) (net.Conn, error) {
	w.mu.Lock()
	door := w.doors[socket]
	w.mu.Unlock()
	if door == nil {
		return nil, &net.OpError{Op: "dial", Net: "unix", Err: syscall.ECONNREFUSED}
	}
	return door.DialContext(ctx)
}

// agent is one life of the agent.
type agent struct {
	*dra.Manager
	Inbox *pod.Inbox[pod.UID]
	leave context.CancelFunc
	ctx   context.Context
	done  chan struct{}
}

// newAgent returns an agent that does not run.
func (w *world) newAgent() *agent {
	w.Helper()
	w.Metrics = prometheus.NewRegistry()
	cfg := dra.Config{
		API: kube.PodObjects{Client: w.client}, NodeName: "here", StateFile: w.state(), HealthFile: filepath.Join(w.root, "dra_health_state"),
		Dial: w.dial, Journal: w.Journal, Metrics: w.Metrics, Log: slog.New(slog.DiscardHandler),
	}
	if w.config != nil {
		w.config(&cfg)
	}
	m, err := dra.New(cfg)
	if err != nil {
		w.Fatal(err)
	}
	return &agent{Manager: m, Inbox: m.Subscribe(), done: make(chan struct{})}
}

func (w *world) state() string { return filepath.Join(w.root, "dra_manager_state") }

// start starts an agent, to which the drivers register.
func (w *world) start(drivers ...*driver) *agent {
	w.Helper()
	a := w.newAgent()
	if err := a.Load(); err != nil {
		w.Fatal(err)
	}
	a.ctx, a.leave = context.WithCancel(w.Context())
	go func() {
		defer close(a.done)
		_ = a.Run(a.ctx)
	}()
	w.Cleanup(a.stop)
	for _, d := range drivers {
		w.register(a, d)
	}
	synctest.Wait()
	return a
}

func (a *agent) stop() {
	a.leave()
	<-a.done
}

func (w *world) register(a *agent, d *driver) {
	w.Helper()
	if err := a.ValidatePlugin(d.Name, d.Socket(), d.Services()); err != nil {
		w.Fatal(err)
	}
	if err := a.RegisterPlugin(w.Context(), d.Name, d.Socket(), d.Services()); err != nil {
		w.Fatal(err)
	}
	synctest.Wait()
}

// driver is a driver that listens while it is up.
type driver struct {
	*dratest.Driver
	w      *world
	server *grpc.Server
	// intercept stands between the agent and each call about claims; nil: nothing does.
	intercept func(ctx context.Context, method string, carryOut func() error) error
	// seen is told of each call about claims, by their UIDs; nil: nobody is.
	seen   func(method string, claims []string)
	health *healthServer
}

func (w *world) driver(name string) *driver {
	w.Helper()
	d := &driver{Driver: &dratest.Driver{Name: name, Dir: filepath.Join(w.root, name), Pool: "here"}, w: w}
	if err := dratest.SetDevices(d.Dir, "none"); err != nil { // makes the folder
		w.Fatal(err)
	}
	d.up()
	w.Cleanup(func() { d.server.Stop() })
	return d
}

func (d *driver) up() {
	door := bufconn.Listen(1 << 20)
	d.server = grpc.NewServer(grpc.UnaryInterceptor(func(ctx context.Context, r any, c *grpc.UnaryServerInfo, carryOut grpc.UnaryHandler) (any, error) {
		if r, ok := r.(interface{ GetClaims() []*drav1.Claim }); ok && d.seen != nil {
			var uids []string
			for _, claim := range r.GetClaims() {
				uids = append(uids, claim.Uid)
			}
			d.seen(path.Base(c.FullMethod), uids)
		}
		if d.intercept == nil {
			return carryOut(ctx, r)
		}
		var answer any
		err := d.intercept(ctx, path.Base(c.FullMethod), func() (err error) {
			answer, err = carryOut(ctx, r)
			return err
		})
		return answer, err
	}))
	d.Register(d.server)
	if d.health != nil {
		healthapi.RegisterDRAResourceHealthServer(d.server, d.health)
	}
	d.w.mu.Lock()
	d.w.doors[d.Socket()] = door
	d.w.mu.Unlock()
	server := d.server
	go func() { _ = server.Serve(door) }()
}

// down ends the driver; its socket stays.
func (d *driver) down() {
	d.w.mu.Lock()
	delete(d.w.doors, d.Socket())
	d.w.mu.Unlock()
	d.server.Stop()
	synctest.Wait()
}

// calls returns the driver's calls, "prepare a b" of two claims.
func (d *driver) calls() []string {
	d.w.Helper()
	calls, err := dratest.Calls(d.Dir)
	if err != nil {
		d.w.Fatal(err)
	}
	var out []string
	for _, c := range calls {
		slices.Sort(c.Claims)
		out = append(out, strings.ToLower(strings.TrimSuffix(strings.TrimPrefix(c.Method, "Node"), "Resources"))+" "+strings.Join(c.Claims, " "))
	}
	return out
}

func (d *driver) prepared() []string {
	d.w.Helper()
	out, err := dratest.Prepared(d.Dir)
	if err != nil {
		d.w.Fatal(err)
	}
	return out
}

// claim makes a claim with devices of the drivers, for the pods. Its UID is its name.
func (w *world) claim(name string, drivers []*driver, pods ...string) *resourcev1.ResourceClaim {
	c := &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name)}}
	c.Status.Allocation = &resourcev1.AllocationResult{}
	for _, d := range drivers {
		c.Status.Allocation.Devices.Results = append(c.Status.Allocation.Devices.Results,
			resourcev1.DeviceRequestAllocationResult{Request: "r", Driver: d.Name, Pool: "here", Device: "device"})
	}
	for _, p := range pods {
		c.Status.ReservedFor = append(c.Status.ReservedFor, resourcev1.ResourceClaimConsumerReference{Resource: "pods", Name: p, UID: types.UID(p)})
	}
	return kubetest.Put(w.API, c)
}

// newPod returns a pod whose container main has all the claims. Its UID is its name.
func newPod(name string, claims ...string) *v1.Pod {
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name)}}
	c := v1.Container{Name: "main"}
	for _, claim := range claims {
		p.Spec.ResourceClaims = append(p.Spec.ResourceClaims, v1.PodResourceClaim{Name: "my-" + claim, ResourceClaimName: &claim})
		c.Resources.Claims = append(c.Resources.Claims, v1.ResourceClaim{Name: "my-" + claim})
	}
	p.Spec.Containers = []v1.Container{c}
	return p
}

func (w *world) prepare(a *agent, p *v1.Pod) {
	w.Helper()
	if err := a.Prepare(w.Context(), p); err != nil {
		w.Fatal(err)
	}
}

func (w *world) unprepare(a *agent, uid pod.UID) {
	w.Helper()
	if err := a.Unprepare(w.Context(), uid); err != nil {
		w.Fatal(err)
	}
}

// want compares what there is with what is wanted, as text.
func (w *world) want(what string, got, want any) {
	w.Helper()
	if g, x := fmt.Sprint(got), fmt.Sprint(want); g != x {
		w.Errorf("%s: %s, want %s", what, g, x)
	}
}

// fails wants an error with that text.
func (w *world) fails(err error, text string) {
	w.Helper()
	messagestest.SawError(err)
	if err == nil || err.Error() != text {
		w.Errorf("error %q, want %q", fmt.Sprint(err), text)
	}
}

// woken returns the pods that were put into the inbox since it was last called.
func (a *agent) woken() []pod.UID {
	synctest.Wait()
	out := a.Inbox.Take()
	slices.Sort(out)
	return out
}

// pass lets time pass.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// healthServer is the health of a driver in a bubble.
type healthServer struct {
	healthapi.UnimplementedDRAResourceHealthServer
	lists chan *healthapi.NodeWatchResourcesResponse // nil ends the stream
}

func (s *healthServer) NodeWatchResources(_ *healthapi.NodeWatchResourcesRequest, stream grpc.ServerStreamingServer[healthapi.NodeWatchResourcesResponse]) error {
	for {
		select {
		case list := <-s.lists:
			if list == nil {
				return fmt.Errorf("as the test wants it")
			}
			if err := stream.Send(list); err != nil {
				return err
			}
		case <-stream.Context().Done():
			return stream.Context().Err()
		}
	}
}
