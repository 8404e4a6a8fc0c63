package agenttest

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"strings"
	"sync"
	"syscall"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/test/bufconn"

	"berth/internal/runtime/cri/critest"
)

// Network simulates the ports of pods in memory. Ports without a server refuse connections. It is
// safe for concurrent use.
type Network struct {
	runtime *critest.Runtime

	mu       sync.Mutex
	servers  map[string]Server            // guarded by mu; by "pod:port"
	requests map[string]int               // guarded by mu; HTTP requests by "pod:port/path"
	others   map[string]*bufconn.Listener // guarded by mu; by address that is not a pod's
}

// Server is the behaviour of a port. The zero value hangs: it accepts connections and requests, and
// never responds.
type Server struct {
	// Answers are the HTTP responses by path; "" is for all other paths.
	Answers map[string]Answer
	// Health, unless unknown, is the response to the health service's Check. The port does not
	// speak HTTP then.
	Health healthpb.HealthCheckResponse_ServingStatus
	// Deaf means that connections are neither accepted nor refused.
	Deaf bool
}

// Answer is an HTTP response.
type Answer struct {
	Code int // 0: none
	// Location is the target of a redirect.
	Location string
}

func newNetwork(r *critest.Runtime) *Network {
	return &Network{runtime: r, servers: map[string]Server{}, requests: map[string]int{}, others: map[string]*bufconn.Listener{}}
}

// Listen accepts the connections to an address, host and port, that is not a pod's.
func (n *Network) Listen(address string) net.Listener {
	n.mu.Lock()
	defer n.mu.Unlock()
	l := bufconn.Listen(1 << 16)
	n.others[address] = l
	return l
}

// Serve sets the behaviour of a pod's port, as "pod:port", from now on.
func (n *Network) Serve(port string, s Server) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.servers[port] = s
}

// Answer sets a port's response to requests for a path; "" is for all other paths.
func (n *Network) Answer(port, path string, a Answer) {
	n.mu.Lock()
	defer n.mu.Unlock()
	answers := maps.Clone(n.servers[port].Answers) // open connections use the old ones
	if answers == nil {
		answers = map[string]Answer{}
	}
	answers[path] = a
	n.servers[port] = Server{Answers: answers}
}

// Close makes a port refuse connections.
func (n *Network) Close(port string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.servers, port)
}

// Requests returns the number of HTTP requests for a path, as "pod:port/path", since
// ForgetRequests.
func (n *Network) Requests(path string) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.requests[path]
}

// ForgetRequests resets the request counts.
func (n *Network) ForgetRequests() {
	n.mu.Lock()
	defer n.mu.Unlock()
	clear(n.requests)
}

// Dial connects to a port of the pod with the address, or to the listener of the address.
func (n *Network) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	n.mu.Lock()
	other := n.others[address]
	n.mu.Unlock()
	if other != nil {
		return other.DialContext(ctx)
	}
	fails := func(err error) error { return &net.OpError{Op: "dial", Net: network, Err: err} }
	host, number, err := net.SplitHostPort(address)
	if err != nil {
		return nil, fails(err)
	}
	pod, ok := n.runtime.PodAt(host)
	if !ok {
		return nil, fails(syscall.EHOSTUNREACH)
	}
	port := pod + ":" + number
	n.mu.Lock()
	s, ok := n.servers[port]
	n.mu.Unlock()
	switch {
	case !ok:
		return nil, fails(syscall.ECONNREFUSED)
	case s.Deaf:
		<-ctx.Done()
		return nil, fails(ctx.Err())
	}
	client, server := net.Pipe()
	if s.Health != healthpb.HealthCheckResponse_UNKNOWN {
		go serveHealth(server, s.Health)
	} else {
		go n.serveHTTP(server, port, s)
	}
	return client, nil
}

// serveHTTP answers one request, or hangs until the client disconnects.
func (n *Network) serveHTTP(c net.Conn, port string, s Server) {
	defer c.Close()
	in := bufio.NewReader(c)
	req, err := http.ReadRequest(in)
	if err != nil {
		// Invalid HTTP gets the response of servers to TLS requests. A client that only connected
		// does not read it.
		_, _ = fmt.Fprint(c, "HTTP/1.0 400 Bad Request\r\n\r\n")
		return
	}
	path := req.URL.Path
	n.mu.Lock()
	n.requests[port+path]++
	n.mu.Unlock()
	answer, ok := s.Answers[path]
	if !ok {
		answer = s.Answers[""]
	}
	if answer.Code == 0 {
		_, _ = in.ReadByte() // returns when the client disconnects
		return
	}
	location := ""
	if answer.Location != "" {
		location = "Location: " + answer.Location + "\r\n"
	}
	// The client may have disconnected.
	_, _ = fmt.Fprintf(c, "HTTP/1.1 %d %s\r\n%sContent-Length: 0\r\nConnection: close\r\n\r\n", answer.Code, http.StatusText(answer.Code), location)
}

// serveHealth answers the health service's Check until the client disconnects.
func serveHealth(c net.Conn, status healthpb.HealthCheckResponse_ServingStatus) {
	checks := health.NewServer()
	checks.SetServingStatus("", status)
	s := grpc.NewServer()
	healthpb.RegisterHealthServer(s, checks)
	l := &oneConn{conn: make(chan net.Conn, 1), gone: make(chan struct{})}
	l.conn <- &watchedConn{Conn: c, l: l}
	_ = s.Serve(l) // always an error: the connection is closed
	s.Stop()
}

// oneConn is a listener with a single connection; it closes with it.
type oneConn struct {
	conn chan net.Conn
	gone chan struct{}
	once sync.Once
}

func (l *oneConn) Accept() (net.Conn, error) {
	select {
	case c := <-l.conn:
		return c, nil
	case <-l.gone:
		return nil, net.ErrClosed
	}
}

func (l *oneConn) Close() error   { l.once.Do(func() { close(l.gone) }); return nil }
func (l *oneConn) Addr() net.Addr { return &net.TCPAddr{} }

type watchedConn struct {
	net.Conn
	l *oneConn
}

func (c *watchedConn) Close() error { return errors.Join(c.Conn.Close(), c.l.Close()) }

// parsePort splits "pod:port/path" into port and path.
func parsePort(ref string) (port, path string, err error) {
	port, path, _ = strings.Cut(ref, "/")
	if path != "" {
		path = "/" + path
	}
	if _, _, err := net.SplitHostPort(port); err != nil {
		return "", "", fmt.Errorf("a pod and its port, such as web:8080, are needed: %w", err)
	}
	return port, path, nil
}
