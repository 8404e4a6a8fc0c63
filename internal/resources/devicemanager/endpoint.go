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
)

// plugins manages the connections to plugins.
type plugins struct {
	*Manager
	slots   chan struct{}   // semaphore for registrations in progress
	began   chan struct{}   // closed when Run has started
	life    context.Context // the context of Run; set before began is closed
	running sync.WaitGroup
}

// endpoint is one connection to a plugin. After it closes, the plugin must register again.
type endpoint struct {
	resource, socket string
	client           pluginapi.DevicePluginClient
	options          *pluginapi.DevicePluginOptions
	silent           atomic.Bool // GetPreferredAllocation failed; it is not called again

	ctx   context.Context // done when the connection is closed
	close func()
}

// errSocketGone is the cause if the plugin watcher reports that a plugin's socket was removed.
var errSocketGone = errors.New("its socket is gone")

// connect makes the plugin that listens on the socket the endpoint of the resource. On an error
// nothing changes.
func (m *plugins) connect(ctx context.Context, resource, socket string) error {
	select {
	case <-m.began:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	select {
	case m.slots <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	defer func() { <-m.slots }()
	m.mu.Lock()
	err := m.hasCapacity(resource)
	m.mu.Unlock()
	if err != nil {
		return err
	}
	e, err := m.open(ctx, resource, socket)
	if err != nil {
		return err
	}
	if err := m.adopt(e); err != nil {
		e.close()
		return err
	}
	return nil
}

// open connects to a plugin and reads its options.
func (m *plugins) open(ctx context.Context, resource, socket string) (*endpoint, error) {
	dialing, cancel := context.WithTimeout(ctx, dialTimeout)
	raw, err := m.Dial(dialing, socket)
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
				return nil, errAway
			}
		}))
	if err != nil {
		return nil, errors.Join(err, raw.Close())
	}
	life, end := context.WithCancel(m.life)
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
func (m *plugins) adopt(e *endpoint) error {
	m.mu.Lock()
	if m.life.Err() != nil {
		m.mu.Unlock()
		return context.Cause(m.life)
	}
	r := m.resources[e.resource]
	if r == nil {
		if err := m.hasCapacity(e.resource); err != nil {
			m.mu.Unlock()
			return err
		}
		r = &resource{devices: map[string]device{}}
		m.resources[e.resource] = r
		m.generation++
	}
	delete(m.gone, e.resource)
	before, known := r.endpoint, m.registered[e.resource]
	r.endpoint, r.prestart = e, e.options.GetPreStartRequired()
	m.registered[e.resource] = true
	var waiting []pod.UID
	if before == nil || !known {
		waiting = m.pods.users(e.resource, func(string) bool { return true })
	}
	m.running.Go(func() { m.follow(e) })
	m.mu.Unlock()

	if before != nil {
		before.close()
	}
	m.Log.Log(e.ctx, m.logs.level(slog.LevelInfo), "device plugin registered", "resource", e.resource, "socket", e.socket, "preStartRequired", e.options.GetPreStartRequired(),
		"preferredAllocation", e.options.GetGetPreferredAllocationAvailable())
	m.notify(waiting)
	m.CapacityChanged()
	m.wakeUp()
	return nil
}

func (m *Manager) notify(pods []pod.UID) {
	for _, uid := range pods {
		m.Changed.Put(uid)
	}
}

// follow reads the plugin's device lists until the stream fails, then closes the connection.
func (m *plugins) follow(e *endpoint) {
	err := m.lists(e)
	e.close()
	m.ended(e, err)
}

func (m *plugins) lists(e *endpoint) error {
	stream, err := e.client.ListAndWatch(e.ctx, &pluginapi.Empty{})
	if err != nil {
		return err
	}
	var told string
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
		if complaint != told && complaint != "" {
			m.Log.Log(e.ctx, m.logs.level(slog.LevelWarn), "a device plugin's list is not as it should be", "resource", e.resource, "what", complaint)
		}
		told = complaint
		m.update(e, devices)
	}
}

// update sets the devices of the resource, unless the plugin has been replaced.
func (m *Manager) update(e *endpoint, devices map[string]device) {
	m.mu.Lock()
	r := m.resources[e.resource]
	if r == nil || r.endpoint != e {
		m.mu.Unlock()
		return
	}
	before := r.devices
	r.devices = devices
	changed := !maps.EqualFunc(before, devices, func(a, b device) bool { return a.healthy == b.healthy && slices.Equal(a.nodes, b.nodes) })
	var users []pod.UID
	if changed {
		m.generation++
		users = m.pods.users(e.resource, func(id string) bool {
			was, had := before[id]
			is, has := devices[id]
			return had != has || was.healthy != is.healthy
		})
	}
	m.mu.Unlock()
	if changed {
		m.notify(users)
		m.CapacityChanged()
		m.wakeUp()
	}
}

// ended marks the devices of a closed connection unhealthy. A replaced connection is ignored.
func (m *Manager) ended(e *endpoint, err error) {
	m.mu.Lock()
	r := m.resources[e.resource]
	if r == nil || r.endpoint != e || m.plugins.life.Err() != nil {
		m.mu.Unlock()
		return
	}
	before := maps.Clone(r.devices)
	r.stop(time.Now())
	m.generation++
	users := m.pods.users(e.resource, func(id string) bool { return before[id].healthy })
	m.mu.Unlock()
	m.Log.Log(e.ctx, m.logs.level(slog.LevelWarn), "device plugin is gone; its devices are unhealthy until it registers again", "resource", e.resource, "socket", e.socket, "error", brief(err))
	m.notify(users)
	m.CapacityChanged()
	m.wakeUp()
}

// preferred calls the plugin's GetPreferredAllocation; nil: no preference. After a failure the
// plugin is not called again until it registers anew, so that it does not delay more pods.
func (m *Manager) preferred(e *endpoint, p *v1.Pod, container string, q preferenceRequest) []string {
	if e == nil || !e.options.GetGetPreferredAllocationAvailable() || e.silent.Load() {
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
		e.silent.Store(true)
		m.note(p, container, fmt.Sprintf("choose from %s without its device plugin, which is not asked again until it registers", e.resource), err)
		return nil
	}
	return r.ContainerResponses[0].GetDeviceIDs()
}

// closeAll closes the connections to plugins.
func (m *plugins) closeAll() {
	m.mu.Lock()
	var open []*endpoint
	for _, r := range m.resources {
		if r.endpoint != nil {
			open = append(open, r.endpoint)
		}
	}
	m.mu.Unlock()
	for _, e := range open {
		e.close()
	}
}
