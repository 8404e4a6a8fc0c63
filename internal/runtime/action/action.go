// Package action does what probes and lifecycle hooks ask for: httpGet, exec, tcpSocket, grpc and
// sleep, one attempt each.
//
// Owns: the rules of each kind of action: addresses, headers, redirects, time-outs, and the texts
// of what came out.
// Reads: only its arguments; what answers at the addresses, and the runtime's answers to ExecSync.
// Never: repeats an attempt, counts failures, records an event, decides what follows from a result.
package action

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/pod"
)

// maxOutput bounds what is read of an answer and kept of an output, in bytes.
const maxOutput = 10 << 10

// lingerSeconds is SO_LINGER of the sockets, as of the kubelet's: to close one waits so long at
// most for the peer to take its end. A linger of 0 would keep closed connections from staying in
// TIME_WAIT, but servers would see each attempt end with a reset.
const lingerSeconds = 1

// Executor is what exec actions need of the runtime; *cri.Client provides it.
type Executor interface {
	// ExecSync runs a command in a container to its end, at most for the request's timeout in
	// seconds; 0 is no limit but ctx.
	ExecSync(ctx context.Context, req *runtimeapi.ExecSyncRequest) (*runtimeapi.ExecSyncResponse, error)
}

// Dialer opens a connection, as net.Dialer.DialContext does.
type Dialer func(ctx context.Context, network, address string) (net.Conn, error)

// Config is what Actions need.
type Config struct {
	CRI Executor
	// Dial opens the connections of httpGet, tcpSocket and grpc; nil dials with a net.Dialer.
	Dial Dialer
	// Metrics is where metrics are registered; nil: nowhere.
	Metrics prometheus.Registerer
}

// Actions does actions. Its methods are safe for concurrent use.
type Actions struct {
	cri       Executor
	dial      Dialer
	transport *http.Transport
	metrics   *metrics
}

// New returns Actions.
func New(cfg Config) *Actions {
	a := &Actions{cri: cfg.CRI, dial: cfg.Dial, metrics: newMetrics(cfg.Metrics)}
	if a.dial == nil {
		var d net.Dialer
		a.dial = d.DialContext
	}
	a.transport = newTransport(a.connect)
	return a
}

// Target is the incarnation of a container that an action is aimed at.
type Target struct {
	// ID is the container that commands run in.
	ID pod.ContainerID
	// Container has the ports that an action may name, and the environment that a probe's command
	// is expanded with.
	Container *v1.Container
	// PodIP is the host of an action that names none; for a pod in the host's network, the node's.
	PodIP string
}

// Outcome is how an attempt ended.
type Outcome int

// The outcomes.
const (
	// Unknown: the attempt says nothing about the container, for it could not be made or was ended
	// before its time.
	Unknown Outcome = iota
	Success
	Failure
	// Warning is a success that the user should know something about.
	Warning
)

func (o Outcome) String() string {
	return [...]string{"unknown", "success", "failure", "warning"}[o]
}

// Result is an outcome and its text: what the container answered, or why it did not.
type Result struct {
	Outcome Outcome
	Output  string
}

func unknown(err error) Result { return Result{Unknown, err.Error()} }

func failure(err error) Result { return Result{Failure, err.Error()} }

// Probe makes one attempt of the probe, bounded by its timeoutSeconds. It is Unknown when the
// probe's port has no number, when the runtime fails and when ctx ends.
func (a *Actions) Probe(ctx context.Context, t Target, p *v1.Probe) Result {
	timeout := time.Duration(max(p.TimeoutSeconds, 1)) * time.Second
	var r Result
	switch {
	case p.Exec != nil:
		r = a.probeExec(ctx, t, p.Exec, timeout)
	case p.HTTPGet != nil:
		r = a.probeHTTP(ctx, t, p.HTTPGet, timeout)
	case p.TCPSocket != nil:
		r = a.probeTCP(ctx, t, p.TCPSocket, timeout)
	case p.GRPC != nil:
		r = a.probeGRPC(ctx, t, p.GRPC, timeout)
	default:
		r = Result{Unknown, fmt.Sprintf("the probe of container %q has none of exec, httpGet, tcpSocket and grpc", t.Container.Name)}
	}
	if err := ctx.Err(); err != nil {
		return unknown(err) // whoever asked does not want to know any more
	}
	return r
}

// Hook runs a lifecycle handler to its end; only ctx bounds it. It is Success, Failure, or Warning
// when a handler that asks for HTTPS was answered in HTTP.
func (a *Actions) Hook(ctx context.Context, t Target, h *v1.LifecycleHandler) Result {
	switch {
	case h.Exec != nil:
		return a.hookExec(ctx, t, h.Exec)
	case h.HTTPGet != nil:
		return a.hookHTTP(ctx, t, h.HTTPGet)
	case h.Sleep != nil:
		return a.sleep(ctx, time.Duration(h.Sleep.Seconds)*time.Second)
	case h.TCPSocket != nil:
		// The field is kept in the API, which says that such handlers fail at runtime.
		return Result{Failure, "a tcpSocket is not supported as a lifecycle handler; use exec, httpGet or sleep"}
	}
	return Result{Failure, "the lifecycle handler has none of exec, httpGet and sleep"}
}

func (a *Actions) sleep(ctx context.Context, d time.Duration) Result {
	began := time.Now()
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return Result{Outcome: Success}
	case <-ctx.Done():
		a.metrics.earlySleeps.Inc()
		return Result{Failure, fmt.Sprintf("sleep of %s was ended after %s", d, time.Since(began).Round(time.Millisecond))}
	}
}

// connect dials and sets how the connection is closed.
func (a *Actions) connect(ctx context.Context, network, address string) (net.Conn, error) {
	c, err := a.dial(ctx, network, address)
	if err != nil {
		return nil, err
	}
	if tcp, ok := c.(interface{ SetLinger(seconds int) error }); ok {
		if err := tcp.SetLinger(lingerSeconds); err != nil {
			return nil, fmt.Errorf("connection to %s: linger: %w", address, joinClose(err, c))
		}
	}
	return c, nil
}

// address returns host:port of an action.
func (t Target) address(host string, port intstr.IntOrString) (string, error) {
	if host == "" {
		host = t.PodIP
	}
	if host == "" {
		return "", fmt.Errorf("container %q: the pod has no IP address yet", t.Container.Name)
	}
	n, err := t.port(port)
	if err != nil {
		return "", err
	}
	return net.JoinHostPort(host, strconv.Itoa(n)), nil
}

// port returns the number of a port that is given as a number or as the name of one of the
// container's ports.
func (t Target) port(port intstr.IntOrString) (int, error) {
	n := port.IntValue() // also of a number that is given as a string
	if port.Type == intstr.String {
		for i := range t.Container.Ports {
			if p := &t.Container.Ports[i]; p.Name == port.StrVal {
				n = int(p.ContainerPort)
			}
		}
		if n == 0 {
			return 0, fmt.Errorf("container %q has no port that is named %q", t.Container.Name, port.StrVal)
		}
	}
	if n <= 0 || n > 65535 {
		return 0, fmt.Errorf("container %q: port %s is not between 1 and 65535", t.Container.Name, port.String())
	}
	return n, nil
}
