package streams

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/portforward"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"
	"k8s.io/streaming/pkg/httpstream/wsstream"

	"berth/internal/pod"
)

// pairTimeout is how long one of the two streams of a connection waits for the other, and the limit
// for connecting to the port.
const pairTimeout = 30 * time.Second

// Dialer connects to an address in a pod's network namespace.
type Dialer func(ctx context.Context, network, address string) (net.Conn, error)

// Forward connects the client to ports of a pod. Connections support half-close in both directions.
func (s *Joiner) Forward(w http.ResponseWriter, r *http.Request, sandbox pod.SandboxID, dial Dialer) error {
	if !wsstream.IsWebSocketRequest(r) {
		if _, err := httpstream.Handshake(r, w, []string{portforward.PortForwardV1Name}); err != nil {
			return nil // the client has got the response
		}
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	f := &forwarder{ctx: ctx, sandbox: sandbox, dial: dial, limit: s.forwarded, streams: make(chan httpstream.Stream)}
	return s.serveSPDY(w, r, portforward.PortForwardV1Name, func(client net.Conn) {
		conn, err := spdy.NewServerConnection(client, f.accept)
		if err != nil {
			return // it has closed the connection
		}
		defer conn.Close()
		defer f.running.Wait()
		defer cancel()
		f.serve(conn)
	})
}

// forwarder holds one client's connections to ports of a pod.
type forwarder struct {
	ctx     context.Context // done when the client's connection is closed
	sandbox pod.SandboxID
	dial    Dialer
	limit   *semaphore.Weighted    // concurrent connections
	streams chan httpstream.Stream // opened by the client
	running sync.WaitGroup
}

// portStreams are the client's two streams of a connection: data and error.
type portStreams struct {
	data, failure httpstream.Stream
	expiry        *time.Timer
}

// accept accepts a stream of a client, or rejects it. It implements httpstream.NewStreamHandler.
func (f *forwarder) accept(s httpstream.Stream, replied <-chan struct{}) error {
	if _, err := portOf(s); err != nil {
		return err
	}
	if kind := s.Headers().Get(v1.StreamType); kind != v1.StreamTypeData && kind != v1.StreamTypeError {
		return fmt.Errorf("invalid stream type %q", kind)
	}
	go func() {
		<-replied // a reset before the reply would be for an unopened stream
		select {
		case f.streams <- s:
		case <-f.ctx.Done():
			_ = s.Reset()
		}
	}()
	return nil
}

func portOf(s httpstream.Stream) (uint16, error) {
	text := s.Headers().Get(v1.PortHeader)
	port, err := strconv.ParseUint(text, 10, 16)
	if err != nil || port == 0 {
		return 0, fmt.Errorf("port %q is not a number from 1 to 65535", text)
	}
	return uint16(port), nil
}

// requestOf returns the common ID of a connection's two streams. Clients without a request ID open
// the error stream first.
func requestOf(s httpstream.Stream) string {
	if id := s.Headers().Get(v1.PortForwardRequestIDHeader); id != "" {
		return id
	}
	id := s.Identifier()
	if s.Headers().Get(v1.StreamType) == v1.StreamTypeData {
		id -= 2 // client stream IDs are odd
	}
	return "stream " + strconv.FormatUint(uint64(id), 10)
}

// serve connects each pair of streams, until the client disconnects.
func (f *forwarder) serve(conn httpstream.Connection) {
	waiting := map[string]*portStreams{} // for the second stream
	expired := make(chan string)
	defer func() {
		for _, p := range waiting {
			p.expiry.Stop()
			f.refuse(p, nil)
		}
	}()
	for {
		select {
		case <-conn.CloseChan():
			return
		case id := <-expired:
			if p := waiting[id]; p != nil {
				delete(waiting, id)
				conn.RemoveStreams(p.data, p.failure)
				f.running.Go(func() { f.refuse(p, fmt.Errorf("request %s: timed out waiting for streams", id)) })
			}
		case s := <-f.streams:
			id := requestOf(s)
			p := waiting[id]
			if p == nil {
				p = &portStreams{expiry: time.AfterFunc(pairTimeout, func() {
					select {
					case expired <- id:
					case <-f.ctx.Done():
					}
				})}
				waiting[id] = p
			}
			if s.Headers().Get(v1.StreamType) == v1.StreamTypeData {
				p.data, s = s, p.data
			} else {
				p.failure, s = s, p.failure
			}
			if s != nil { // a duplicate of this kind
				conn.RemoveStreams(s)
				_ = s.Reset()
			}
			if p.data == nil || p.failure == nil {
				continue
			}
			delete(waiting, id)
			p.expiry.Stop()
			conn.RemoveStreams(p.data, p.failure) // they close on their own
			f.running.Go(func() { f.join(p) })
		}
	}
}

// join connects the streams to the port, until both directions are closed.
func (f *forwarder) join(p *portStreams) {
	if !f.limit.TryAcquire(1) {
		f.refuse(p, errors.New("too many connections at a time"))
		return
	}
	defer f.limit.Release(1)
	conn, err := f.connect(p)
	if err != nil {
		f.refuse(p, err)
		return
	}
	defer conn.Close()
	stop := context.AfterFunc(f.ctx, func() { conn.Close() })
	defer stop()
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		copyAll(conn, p.data)
		_ = closeWrite(conn) // it may be closed completely
	}()
	_, err = io.Copy(p.data, conn)
	select {
	case <-sent: // a server may reset a connection whose client has closed it
		err = nil
	default:
	}
	if err != nil {
		f.refuse(p, err)
	} else {
		// The pod has closed its side and the result is known: clients without half-close support
		// wait for the end of both.
		_ = p.data.Close()
		_ = p.failure.Close()
	}
	<-sent
}

// connect connects to the port, which may listen on either localhost.
func (f *forwarder) connect(p *portStreams) (net.Conn, error) {
	port, err := portOf(p.data)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(f.ctx, pairTimeout)
	defer cancel()
	text := strconv.Itoa(int(port))
	conn, err4 := f.dial(ctx, "tcp4", net.JoinHostPort("127.0.0.1", text))
	if err4 == nil {
		return conn, nil
	}
	conn, err6 := f.dial(ctx, "tcp6", net.JoinHostPort("::1", text))
	if err6 == nil {
		return conn, nil
	}
	return nil, fmt.Errorf("failed to connect to localhost:%d inside namespace %q, IPv4: %w IPv6: %w", port, f.sandbox, err4, err6)
}

// refuse resets the existing streams, and writes the reason if there is one.
func (f *forwarder) refuse(p *portStreams, why error) {
	if p.failure != nil {
		if why != nil {
			port, _ := portOf(p.failure) // parsed before
			// The kubelet's message, with containerd's, which has no UID, appended.
			fmt.Fprintf(p.failure, "error forwarding port %d to pod %s, uid %s: %v", port, f.sandbox, "", why)
		}
		_ = p.failure.Reset()
	}
	if p.data != nil {
		_ = p.data.Reset()
	}
}
