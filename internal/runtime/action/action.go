// Package action runs the actions of probes and lifecycle hooks: httpGet, exec, tcpSocket, grpc and
// sleep, one attempt each.
//
// Owns: the rules of each type of action: addresses, headers, redirects, timeouts, and the texts of
// results.
// Reads: only its arguments; the responses at the addresses, and the runtime's responses to
// ExecSync.
// Never: repeats an attempt, counts failures, records an event, acts on a result.
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

// maxOutput limits how much of a response body or command output is used, in bytes.
const maxOutput = 10 << 10

// lingerSeconds is SO_LINGER of the sockets, as in the kubelet: closing waits at most that long for
// the peer. A linger of 0 would keep closed connections out of TIME_WAIT, but servers would see
// each attempt end with a reset.
const lingerSeconds = 1

// Executor runs commands in containers; *cri.Streaming implements it.
type Executor interface {
	// ExecSync runs a command in a container until it exits, at most for the request's timeout in
	// seconds; with 0 only ctx bounds it.
	ExecSync(ctx context.Context, req *runtimeapi.ExecSyncRequest) (*runtimeapi.ExecSyncResponse, error)
}

// Dialer opens a connection, as net.Dialer.DialContext does.
type Dialer func(ctx context.Context, network, address string) (net.Conn, error)

// Config configures Actions.
type Config struct {
	CRI Executor
	// Dial opens the connections of httpGet, tcpSocket and grpc; nil dials with a net.Dialer.
	Dial Dialer
	// Metrics is the registry for metrics; nil: they are not registered.
	Metrics prometheus.Registerer
}

// Actions runs actions. Its methods are safe for concurrent use.
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

// Target is the container incarnation that an action is for.
type Target struct {
	// ID is the container that commands run in.
	ID pod.ContainerID
	// Container has the ports that an action may name, and the environment for expanding a probe's
	// command.
	Container *v1.Container
	// PodIP is the default host of an action; for a pod in the host network, the node's.
	PodIP string
}

// Outcome is the outcome of an attempt.
type Outcome int

const (
	// Unknown: the attempt does not indicate the container's state, because it could not be made or
	// was cancelled.
	Unknown Outcome = iota
	Success
	Failure
	// Warning is a success that the user should be informed about.
	Warning
)

func (o Outcome) String() string {
	return [...]string{"unknown", "success", "failure", "warning"}[o]
}

// Result is an outcome and its text: the container's response, or the error.
type Result struct {
	Outcome Outcome
	Output  string
}

func unknown(err error) Result { return Result{Unknown, err.Error()} }

func failure(err error) Result { return Result{Failure, err.Error()} }

// Probe makes one attempt of the probe, bounded by its timeoutSeconds. It is Unknown if the probe's
// port has no number, if the runtime fails and if ctx is done.
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
		return unknown(err) // the caller has cancelled it
	}
	return r
}

// Hook runs a lifecycle handler until it completes; only ctx bounds it. It is Success, Failure, or
// Warning if a handler with scheme HTTPS got an HTTP response.
func (a *Actions) Hook(ctx context.Context, t Target, h *v1.LifecycleHandler) Result {
	switch {
	case h.Exec != nil:
		return a.hookExec(ctx, t, h.Exec)
	case h.HTTPGet != nil:
		return a.hookHTTP(ctx, t, h.HTTPGet)
	case h.Sleep != nil:
		return a.sleep(ctx, time.Duration(h.Sleep.Seconds)*time.Second)
	case h.TCPSocket != nil:
		// The API documents that such handlers fail at runtime.
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

// connect dials and sets the linger time.
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

// port returns the number of a port given as a number or as the name of one of the container's
// ports.
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
