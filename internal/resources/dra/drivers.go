package dra

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	"k8s.io/apimachinery/pkg/util/validation"
	drav1 "k8s.io/kubelet/pkg/apis/dra/v1"
	drav1beta1 "k8s.io/kubelet/pkg/apis/dra/v1beta1"
)

// services are the supported versions of the driver service, by the name in the registration.
var services = map[string]func(grpc.ClientConnInterface) drav1.DRAPluginClient{
	drav1.DRAPluginService: drav1.NewDRAPluginClient,
	drav1beta1.DRAPluginService: func(c grpc.ClientConnInterface) drav1.DRAPluginClient {
		return drav1beta1.V1Beta1ClientWrapper{DRAPluginClient: drav1beta1.NewDRAPluginClient(c)}
	},
}

// reconnects is the back-off for connections to a driver. It must find a recovered driver well
// before absence is over.
var reconnects = backoff.Config{BaseDelay: time.Second, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 5 * time.Second}

// endpoint is a socket on which a driver listens. A driver has two during a rolling update.
type endpoint struct {
	driver, address string
	// number increases with each registration.
	number    uint64
	client    drav1.DRAPluginClient
	conn      *grpc.ClientConn
	connected bool          // guarded by drivers.mu
	gone      chan struct{} // closed on deregistration
}

// drivers are the registered drivers. It is safe for concurrent use.
type drivers struct {
	metrics *metrics
	dial    func(ctx context.Context, socket string) (net.Conn, error)
	// changed is called, without a lock, after a driver was deregistered, connected or lost its
	// connection.
	changed func(driver string)

	mu        sync.Mutex
	count     uint64                 // guarded by mu
	endpoints map[string][]*endpoint // guarded by mu; by driver, the oldest first
	fresh     []*endpoint            // guarded by mu; not followed yet
}

// chooseService returns the client of the first supported version.
func chooseService(versions []string) (func(grpc.ClientConnInterface) drav1.DRAPluginClient, error) {
	for _, v := range versions {
		if client := services[v]; client != nil {
			return client, nil
		}
	}
	return nil, fmt.Errorf("none of the versions %q is supported; %s and %s are", versions, drav1.DRAPluginService, drav1beta1.DRAPluginService)
}

// chooseEndpoint returns the newest connected endpoint, or else the newest; nil if there is none.
func chooseEndpoint(all []*endpoint) *endpoint {
	for _, e := range slices.Backward(all) {
		if e.connected {
			return e
		}
	}
	if len(all) == 0 {
		return nil
	}
	return all[len(all)-1]
}

func validateDriver(name string, versions []string) error {
	if problems := validation.IsDNS1123Subdomain(name); len(problems) > 0 {
		return fmt.Errorf("DRA driver name %q: %s", name, strings.Join(problems, "; "))
	}
	_, err := chooseService(versions)
	if err != nil {
		return fmt.Errorf("DRA driver %s: %w", name, err)
	}
	return nil
}

func (d *drivers) add(name, address string, versions []string) error {
	if err := validateDriver(name, versions); err != nil {
		return err
	}
	service, err := chooseService(versions)
	if err != nil {
		return err
	}
	e := &endpoint{driver: name, address: address, gone: make(chan struct{})}
	d.mu.Lock()
	defer d.mu.Unlock()
	if slices.ContainsFunc(d.endpoints[name], func(o *endpoint) bool { return o.address == address }) {
		return fmt.Errorf("endpoint %s already registered for DRA driver plugin %s", address, name)
	}
	e.conn, err = grpc.NewClient("passthrough:///localhost",
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithIdleTimeout(0),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: reconnects, MinConnectTimeout: 20 * time.Second}),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return d.dial(ctx, strings.TrimPrefix(address, "unix://"))
		}))
	if err != nil {
		return fmt.Errorf("DRA driver %s: %w", name, err)
	}
	d.count++
	e.number, e.client = d.count, service(e.conn)
	d.endpoints[name] = append(d.endpoints[name], e)
	d.fresh = append(d.fresh, e)
	return nil
}

func (d *drivers) remove(name, address string) {
	d.mu.Lock()
	i := slices.IndexFunc(d.endpoints[name], func(e *endpoint) bool { return e.address == address })
	if i < 0 {
		d.mu.Unlock()
		return
	}
	e := d.endpoints[name][i]
	d.endpoints[name] = slices.Delete(d.endpoints[name], i, i+1)
	if len(d.endpoints[name]) == 0 {
		delete(d.endpoints, name)
	}
	e.connected = false
	d.mu.Unlock()
	close(e.gone)
	_ = e.conn.Close() // only fails if closed already
	d.changed(name)
}

// closeAll closes all connections without deregistering the endpoints.
func (d *drivers) closeAll() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, all := range d.endpoints {
		for _, e := range all {
			_ = e.conn.Close() // as above
		}
	}
}

// takeFresh returns the endpoints that are not followed yet, and clears the list.
func (d *drivers) takeFresh() []*endpoint {
	d.mu.Lock()
	defer d.mu.Unlock()
	fresh := d.fresh
	d.fresh = nil
	return fresh
}

// choose returns the endpoint for driver calls.
func (d *drivers) choose(name string) (*endpoint, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if e := chooseEndpoint(d.endpoints[name]); e != nil {
		return e, nil
	}
	return nil, fmt.Errorf("DRA driver %s is not registered", name)
}

func (d *drivers) connected(name string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	e := chooseEndpoint(d.endpoints[name])
	return e != nil && e.connected
}

func (d *drivers) connectedNames() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	var out []string
	for name, all := range d.endpoints {
		if chooseEndpoint(all).connected {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}

// follow tracks the state of the endpoint's connection, and reconnects when it is idle.
func (d *drivers) follow(ctx context.Context, e *endpoint) {
	for {
		state := e.conn.GetState()
		if state == connectivity.Idle {
			e.conn.Connect()
		}
		d.mu.Lock()
		was := e.connected
		e.connected = state == connectivity.Ready && slices.Contains(d.endpoints[e.driver], e)
		is := e.connected
		d.mu.Unlock()
		if was != is {
			d.changed(e.driver)
		}
		if state == connectivity.Shutdown || !e.conn.WaitForStateChange(ctx, state) {
			return
		}
	}
}

// untilDeregistered returns a context that is also canceled when the endpoint is deregistered.
func (e *endpoint) untilDeregistered(ctx context.Context) (context.Context, context.CancelCauseFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	go func() {
		select {
		case <-e.gone:
			cancel(errDeregistered)
		case <-ctx.Done():
		}
	}()
	return ctx, cancel
}

var errDeregistered = errors.New("the driver was deregistered")
