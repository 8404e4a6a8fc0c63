package devicemanager

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	v1 "k8s.io/api/core/v1"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"berth/internal/pod"
	"berth/internal/record/journal"
)

type plugins struct {
	allocations     *allocations
	store           *store
	dial            func(ctx context.Context, socket string) (net.Conn, error)
	changed         *pod.Inbox[pod.UID]
	capacityChanged func()
	log             *slog.Logger
	logs            logLimiter
	metrics         *metrics

	slots   chan struct{}   // semaphore for registrations in progress
	started chan struct{}   // closed when Run has started
	ctx     context.Context // the context of Run; set before started is closed
	running sync.WaitGroup
}

// endpoint is one connection to a plugin. After it closes, the plugin must register again.
type endpoint struct {
	resource, socket string
	client           pluginapi.DevicePluginClient
	options          *pluginapi.DevicePluginOptions
	noPreference     atomic.Bool // GetPreferredAllocation failed; it is not called again

	ctx   context.Context // done when the connection is closed
	close func()
}

// errSocketGone is the cause if the plugin watcher reports that a plugin's socket was removed.
var errSocketGone = errors.New("its socket is gone")

// preferred calls the plugin's GetPreferredAllocation; nil: no preference. After a failure the
// plugin is not called again until it registers anew, so that it does not delay more pods.
func (e *endpoint) preferred(j *journal.Journal, p *v1.Pod, container string, q preferenceRequest) []string {
	if e == nil || !e.options.GetGetPreferredAllocationAvailable() || e.noPreference.Load() {
		return nil
	}
	ctx, cancel := context.WithTimeout(e.ctx, preferenceTimeout)
	defer cancel()
	r, err := e.client.GetPreferredAllocation(ctx, &pluginapi.PreferredAllocationRequest{ContainerRequests: []*pluginapi.ContainerPreferredAllocationRequest{{
		AvailableDeviceIDs: q.available, MustIncludeDeviceIDs: q.must, AllocationSize: int32(q.size),
	}}})
	if err == nil && len(r.GetContainerResponses()) == 0 {
		err = errors.New("the answer is for no container")
	}
	if err != nil {
		e.noPreference.Store(true)
		note(j, p, container, fmt.Sprintf("choose from %s without its device plugin, which is not asked again until it registers", e.resource), err)
		return nil
	}
	return r.ContainerResponses[0].GetDeviceIDs()
}

// connect makes the plugin that listens on the socket the endpoint of the resource. On an error
// nothing changes.
func (ps *plugins) connect(ctx context.Context, resource, socket string) error {
	select {
	case <-ps.started:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	select {
	case ps.slots <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	defer func() { <-ps.slots }()
	ps.allocations.mu.Lock()
	err := ps.allocations.hasCapacity(resource)
	ps.allocations.mu.Unlock()
	if err != nil {
		return err
	}
	e, err := ps.open(ctx, resource, socket)
	if err != nil {
		return err
	}
	if err := ps.adopt(e); err != nil {
		e.close()
		return err
	}
	return nil
}

// open connects to a plugin and reads its options.
func (ps *plugins) open(ctx context.Context, resource, socket string) (*endpoint, error) {
	dialing, cancel := context.WithTimeout(ctx, dialTimeout)
	raw, err := ps.dial(dialing, socket)
	cancel()
	if err != nil {
		return nil, fmt.Errorf("connect to the device plugin of %s: %w", resource, err)
	}
	// One connection is one plugin registration: gRPC must not reconnect.
	once := make(chan net.Conn, 1)
	once <- raw
	conn, err := grpc.NewClient("passthrough:///localhost", grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDisableServiceConfig(),
		grpc.WithIdleTimeout(0), grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage)),
		grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) {
			select {
			case c := <-once:
				return c, nil
			default:
				return nil, errDisconnected
			}
		}))
	if err != nil {
		return nil, errors.Join(err, raw.Close())
	}
	life, end := context.WithCancel(ps.ctx)
	e := &endpoint{resource: resource, socket: socket, client: pluginapi.NewDevicePluginClient(conn), ctx: life, close: func() {
		end()
		_, _ = conn.Close(), raw.Close() // raw too: gRPC may not have dialed yet
	}}
	asking, cancel := context.WithTimeout(ctx, optionsTimeout)
	defer cancel()
	if e.options, err = e.client.GetDevicePluginOptions(asking, &pluginapi.Empty{}); err != nil {
		e.close()
		return nil, fmt.Errorf("failed to get device plugin options: resource %s: %w", resource, err)
	}
	return e, nil
}

// adopt replaces the previous endpoint of the resource. The previous device list stays until the
// new plugin sends its own.
func (ps *plugins) adopt(e *endpoint) error {
	ps.allocations.mu.Lock()
	if ps.ctx.Err() != nil {
		ps.allocations.mu.Unlock()
		return context.Cause(ps.ctx)
	}
	r := ps.allocations.resources[e.resource]
	if r == nil {
		if err := ps.allocations.hasCapacity(e.resource); err != nil {
			ps.allocations.mu.Unlock()
			return err
		}
		r = &resource{devices: map[string]device{}}
		ps.allocations.resources[e.resource] = r
		ps.allocations.generation++
	}
	delete(ps.allocations.gone, e.resource)
	before, known := r.endpoint, ps.allocations.registered[e.resource]
	r.endpoint, r.prestart = e, e.options.GetPreStartRequired()
	ps.allocations.registered[e.resource] = true
	var waiting []pod.UID
	if before == nil || !known {
		waiting = ps.allocations.pods.users(e.resource, func(string) bool { return true })
	}
	ps.running.Go(func() { ps.follow(e) })
	ps.allocations.mu.Unlock()

	if before != nil {
		before.close()
	}
	ps.log.Log(e.ctx, ps.logs.level(slog.LevelInfo), "device plugin registered", "resource", e.resource, "socket", e.socket, "preStartRequired", e.options.GetPreStartRequired(),
		"preferredAllocation", e.options.GetGetPreferredAllocationAvailable())
	ps.notify(waiting)
	ps.capacityChanged()
	ps.store.saveSoon()
	return nil
}

func (ps *plugins) notify(pods []pod.UID) {
	for _, uid := range pods {
		ps.changed.Put(uid)
	}
}

// follow reads the plugin's device lists until the stream fails, then closes the connection.
func (ps *plugins) follow(e *endpoint) {
	err := ps.lists(e)
	e.close()
	ps.disconnected(e, err)
}

func (ps *plugins) lists(e *endpoint) error {
	stream, err := e.client.ListAndWatch(e.ctx, &pluginapi.Empty{})
	if err != nil {
		return err
	}
	var reported string
	var full time.Time // when the rate limit's budget is full again
	for {
		// The rate limit slows down a plugin that sends more, by flow control.
		now := time.Now()
		if full.Before(now) {
			full = now
		}
		full = full.Add(listEvery)
		if over := full.Sub(now) - listBurst*listEvery; over > 0 && !pod.Pause(e.ctx, over) {
			return context.Cause(e.ctx)
		}
		list, err := stream.Recv()
		if err != nil {
			return err
		}
		devices, complaint, err := readDevices(list.GetDevices())
		if err != nil {
			return err
		}
		if complaint != reported && complaint != "" {
			ps.log.Log(e.ctx, ps.logs.level(slog.LevelWarn), "a device plugin's list is not as it should be", "resource", e.resource, "what", complaint)
		}
		reported = complaint
		ps.update(e, devices)
	}
}

// update sets the devices of the resource, unless the plugin has been replaced.
func (ps *plugins) update(e *endpoint, devices map[string]device) {
	ps.allocations.mu.Lock()
	r := ps.allocations.resources[e.resource]
	if r == nil || r.endpoint != e {
		ps.allocations.mu.Unlock()
		return
	}
	before := r.devices
	r.devices = devices
	changed := !maps.EqualFunc(before, devices, func(a, b device) bool { return a.healthy == b.healthy && slices.Equal(a.nodes, b.nodes) })
	var users []pod.UID
	if changed {
		ps.allocations.generation++
		users = ps.allocations.pods.users(e.resource, func(id string) bool {
			was, had := before[id]
			is, has := devices[id]
			return had != has || was.healthy != is.healthy
		})
	}
	ps.allocations.mu.Unlock()
	if changed {
		ps.notify(users)
		ps.capacityChanged()
		ps.store.saveSoon()
	}
}

// disconnected marks the devices of a closed connection unhealthy. A replaced connection is
// ignored.
func (ps *plugins) disconnected(e *endpoint, err error) {
	ps.allocations.mu.Lock()
	r := ps.allocations.resources[e.resource]
	if r == nil || r.endpoint != e || ps.ctx.Err() != nil {
		ps.allocations.mu.Unlock()
		return
	}
	before := maps.Clone(r.devices)
	r.stop(time.Now())
	ps.allocations.generation++
	users := ps.allocations.pods.users(e.resource, func(id string) bool { return before[id].healthy })
	ps.allocations.mu.Unlock()
	ps.log.Log(e.ctx, ps.logs.level(slog.LevelWarn), "device plugin is gone; its devices are unhealthy until it registers again", "resource", e.resource, "socket", e.socket, "error", brief(err))
	ps.notify(users)
	ps.capacityChanged()
	ps.store.saveSoon()
}

func (ps *plugins) closeAll() {
	ps.allocations.mu.Lock()
	var open []*endpoint
	for _, r := range ps.allocations.resources {
		if r.endpoint != nil {
			open = append(open, r.endpoint)
		}
	}
	ps.allocations.mu.Unlock()
	for _, e := range open {
		e.close()
	}
}
