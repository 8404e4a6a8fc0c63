package server_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"

	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"

	"berth/internal/api/server"
	"berth/internal/pod"
)

// servePorts serves an agent whose pod web is the given server at 127.0.0.1:80 of a network of its
// own; nobody listens on other ports.
func servePorts(t *testing.T, serve func(*net.TCPConn)) (addr string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var running sync.WaitGroup
	running.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			running.Go(func() {
				defer conn.Close()
				serve(conn.(*net.TCPConn))
			})
		}
	})
	h := streamingNode(&streamer{})
	h.Streams.PodDialer = func(_ context.Context, sandbox *pod.SandboxStatus) (server.Dialer, error) {
		return func(ctx context.Context, network, address string) (net.Conn, error) {
			if sandbox.ID != "s-web" || network != "tcp4" || address != "127.0.0.1:80" {
				return nil, fmt.Errorf("dial %s %s: nobody listens", network, address)
			}
			return (&net.Dialer{}).DialContext(ctx, "tcp", l.Addr().String())
		}, nil
	}
	t.Cleanup(running.Wait)
	t.Cleanup(func() { l.Close() })
	return serveTCP(t, server.Config{Handlers: h})
}

// eachClient runs the test once for each way to have a connection for port-forwards, each time with
// a pod of its own.
func eachClient(t *testing.T, test func(t *testing.T, connect func(serve func(*net.TCPConn)) httpstream.Connection)) {
	const path = "/portForward/default/web"
	t.Run("SPDY", func(t *testing.T) {
		test(t, func(serve func(*net.TCPConn)) httpstream.Connection {
			return upgrade(t, servePorts(t, serve), path, "portforward.k8s.io")
		})
	})
	t.Run("SPDY in a WebSocket", func(t *testing.T) {
		test(t, func(serve func(*net.TCPConn)) httpstream.Connection {
			conn, err := spdy.NewClientConnection(dialWebSocket(t, servePorts(t, serve), path, "SPDY/3.1+portforward.k8s.io"))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { conn.Close() })
			return conn
		})
	})
}

// openPort opens the streams of one connection; the client has nothing to say to the stream of
// failures.
func openPort(t *testing.T, conn httpstream.Connection, port, request string) (data, failure httpstream.Stream) {
	t.Helper()
	failure = open(t, conn, "streamType", "error", "port", port, "requestID", request)
	if err := failure.Close(); err != nil {
		t.Fatal(err)
	}
	return open(t, conn, "streamType", "data", "port", port, "requestID", request), failure
}

// A client that has said all it has to say gets the answer to it, of as many connections as it has.
func TestForwardClientEndsFirst(t *testing.T) {
	eachClient(t, func(t *testing.T, connect func(func(*net.TCPConn)) httpstream.Connection) {
		const connections = 10
		var all, g sync.WaitGroup
		all.Add(connections)
		conn := connect(func(conn *net.TCPConn) {
			got, err := io.ReadAll(conn)
			all.Done()
			all.Wait() // nobody is answered before all have ended
			if err == nil {
				_, err = fmt.Fprintf(conn, "%d bytes", len(got))
			}
			if err != nil {
				t.Error(err)
			}
		})
		for i := range connections {
			data, failure := openPort(t, conn, "80", fmt.Sprint(i))
			g.Go(func() {
				if _, err := io.WriteString(data, strings.Repeat("x", i<<16)); err != nil {
					t.Error(err)
				}
				if err := data.Close(); err != nil {
					t.Error(err)
				}
				if got, want := readAll(t, data), fmt.Sprintf("%d bytes", i<<16); got != want {
					t.Errorf("connection %d got %q, want %q", i, got, want)
				}
				if got := readAll(t, failure); got != "" {
					t.Errorf("connection %d failed: %s", i, got)
				}
			})
		}
		g.Wait()
	})
}

// A pod that has said all it has to say gets what the client still says.
func TestForwardPodEndsFirst(t *testing.T) {
	eachClient(t, func(t *testing.T, connect func(func(*net.TCPConn)) httpstream.Connection) {
		heard := make(chan string, 1)
		conn := connect(func(conn *net.TCPConn) {
			if _, err := io.WriteString(conn, "hello"); err != nil {
				t.Error(err)
			}
			if err := conn.CloseWrite(); err != nil {
				t.Error(err)
			}
			heard <- readAll(t, conn)
		})
		data, failure := openPort(t, conn, "80", "1")
		if hello, why := readAll(t, data), readAll(t, failure); hello != "hello" || why != "" {
			t.Errorf("got %q, %q", hello, why)
		}
		if _, err := io.WriteString(data, "later"); err != nil {
			t.Error(err)
		}
		if err := data.Close(); err != nil {
			t.Error(err)
		}
		if got := <-heard; got != "later" {
			t.Errorf("the pod got %q", got)
		}
	})
}

// A connection that fails says why and leaves the others alone.
func TestForwardNobodyListens(t *testing.T) {
	eachClient(t, func(t *testing.T, connect func(func(*net.TCPConn)) httpstream.Connection) {
		conn := connect(func(conn *net.TCPConn) { readAll(t, conn) })
		alive, noFailure := openPort(t, conn, "80", "1")
		_, failure := openPort(t, conn, "81", "2")
		const want = `error forwarding port 81 to pod s-web, uid : failed to connect to localhost:81 inside namespace "s-web", ` +
			`IPv4: dial tcp4 127.0.0.1:81: nobody listens IPv6: dial tcp6 [::1]:81: nobody listens`
		if got := readAll(t, failure); got != want {
			t.Errorf("got %s\nwant %s", got, want)
		}
		if err := alive.Close(); err != nil {
			t.Error(err)
		}
		if data, why := readAll(t, alive), readAll(t, noFailure); data != "" || why != "" {
			t.Errorf("the other one got %q, %q", data, why)
		}
		for _, h := range []http.Header{
			{"Streamtype": {"data"}, "Port": {"0"}}, {"Streamtype": {"data"}}, {"Streamtype": {"stdin"}, "Port": {"80"}},
		} {
			if _, err := conn.CreateStream(h); err == nil {
				t.Errorf("a stream with %v is taken", h)
			}
		}
	})
}

// A pod that breaks a connection off has the client told so.
func TestForwardReset(t *testing.T) {
	eachClient(t, func(t *testing.T, connect func(func(*net.TCPConn)) httpstream.Connection) {
		conn := connect(func(conn *net.TCPConn) {
			if _, err := io.ReadFull(conn, make([]byte, 1)); err != nil {
				t.Error(err)
			}
			if err := conn.SetLinger(0); err != nil { // its end is a reset
				t.Error(err)
			}
		})
		data, failure := openPort(t, conn, "80", "1")
		if _, err := io.WriteString(data, "x"); err != nil {
			t.Error(err)
		}
		if got := readAll(t, failure); !strings.HasPrefix(got, "error forwarding port 80 to pod s-web, uid : ") || !strings.Contains(got, "connection reset by peer") {
			t.Errorf("got %q", got)
		}
	})
}

// A client that leaves takes its connections along, those that wait for a second stream as well.
func TestForwardClientLeaves(t *testing.T) {
	eachClient(t, func(t *testing.T, connect func(func(*net.TCPConn)) httpstream.Connection) {
		began, ended := make(chan struct{}), make(chan struct{})
		conn := connect(func(conn *net.TCPConn) {
			close(began)
			_, _ = io.Copy(io.Discard, conn) // until the end or a reset
			close(ended)
		})
		openPort(t, conn, "80", "1")
		half := open(t, conn, "streamType", "data", "port", "80", "requestID", "2")
		if _, err := io.WriteString(half, "nobody reads it"); err != nil {
			t.Error(err)
		}
		<-began
		conn.Close()
		<-ended
	})
}

// Clients that do not number their connections open the stream of failures first.
func TestForwardWithoutRequestID(t *testing.T) {
	eachClient(t, func(t *testing.T, connect func(func(*net.TCPConn)) httpstream.Connection) {
		conn := connect(func(conn *net.TCPConn) {
			if _, err := io.WriteString(conn, "hello"); err != nil {
				t.Error(err)
			}
		})
		failure := open(t, conn, "streamType", "error", "port", "80")
		data := open(t, conn, "streamType", "data", "port", "80")
		if got, why := readAll(t, data), readAll(t, failure); got != "hello" || why != "" {
			t.Errorf("got %q, %q", got, why)
		}
	})
}
