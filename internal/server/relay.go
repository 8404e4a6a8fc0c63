package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"sync"

	"golang.org/x/net/websocket"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/portforward"
	"k8s.io/apimachinery/pkg/util/remotecommand"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"
	"k8s.io/streaming/pkg/httpstream/wsstream"
)

// serveSPDY answers an upgrade with SPDY, over the connection itself or inside of a WebSocket (KEP-4006), and has serve use it.
// The connection has ended when serveSPDY returns. protocol is what was agreed on.
func (s *runtimeStreams) serveSPDY(w http.ResponseWriter, r *http.Request, protocol string, accept httpstream.NewStreamHandler, serve func(httpstream.Connection)) {
	client := &upgradingWriter{ResponseWriter: w, ctx: r.Context(), idle: s.idle}
	defer client.close()
	use := func(conn httpstream.Connection) {
		defer conn.Close()
		serve(conn)
	}
	if !wsstream.IsWebSocketRequestWithTunnelingProtocol(r) {
		w.Header().Set(httpstream.HeaderProtocolVersion, protocol)
		if conn := spdy.NewResponseUpgrader().UpgradeResponse(client, r, accept); conn != nil { // otherwise the client was told why
			use(conn)
		}
		return
	}
	websocket.Server{
		Handshake: func(c *websocket.Config, _ *http.Request) error {
			if !slices.Contains(c.Protocol, portforward.WebsocketsSPDYTunnelingPortForwardV1) {
				return fmt.Errorf("protocols %q: only %s is spoken here", c.Protocol, portforward.WebsocketsSPDYTunnelingPortForwardV1)
			}
			c.Protocol = []string{portforward.WebsocketsSPDYTunnelingPortForwardV1}
			return nil
		},
		Handler: func(ws *websocket.Conn) {
			ws.PayloadType = websocket.BinaryFrame
			defer ws.Close()                                                   // with a frame that says so
			if conn, err := spdy.NewServerConnection(ws, accept); err == nil { // it closes the WebSocket when it fails
				use(conn)
			}
		},
	}.ServeHTTP(client, r)
}

// relay joins a client that speaks SPDY with the runtime, which speaks it too, stream by stream.
//
// Bytes alone are not passed on: the client's pings would be, and one that reaches the runtime after it has closed its side makes the
// kernel there reset the connection, and the end of the output and the result of the command with it. Pings are answered here.
func (s *runtimeStreams) relay(w http.ResponseWriter, r *http.Request, target *url.URL) error {
	protocols := r.Header.Values(httpstream.HeaderProtocolVersion)
	if wsstream.IsWebSocketRequestWithTunnelingProtocol(r) {
		protocols = []string{portforward.PortForwardV1Name}
	}
	conn, protocol, err := s.dial(r.Context(), target, protocols...)
	if err != nil {
		return refuseStream(w, err)
	}
	defer conn.Close()
	runtime, err := spdy.NewClientConnection(streamConn{conn}) // it closes conn when it fails
	if err != nil {
		return refuseStream(w, err)
	}
	y := &relay{ctx: r.Context(), runtime: runtime, protocol: protocol}
	s.serveSPDY(w, r, protocol, y.accept, func(client httpstream.Connection) {
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			<-runtime.CloseChan()
			y.end()
			y.output.Wait() // the client has all of it
		}()
		select {
		case <-ended:
		case <-client.CloseChan():
			conn.Close() // first, so that nothing waits for the runtime to take what is left
			runtime.Close()
			<-ended
		}
	})
	conn.Close()
	runtime.Close()
	y.input.Wait()
	return nil
}

// relay are the streams between one client and the runtime.
type relay struct {
	ctx      context.Context // of the request: it is done when the agent ends
	runtime  httpstream.Connection
	protocol string

	mu            sync.Mutex
	ended         bool // no stream is added any more
	input, output sync.WaitGroup
}

// accept opens the stream at the runtime that the client has opened here. It implements httpstream.NewStreamHandler.
func (y *relay) accept(client httpstream.Stream, _ <-chan struct{}) error {
	if !y.begin() {
		return errors.New("the container runtime has ended the connection")
	}
	runtime, err := y.runtime.CreateStream(client.Headers())
	if err != nil {
		y.input.Done()
		y.output.Done()
		return fmt.Errorf("open the stream at the container runtime: %w", err)
	}
	go func() {
		defer y.input.Done()
		pour(runtime, client)
		runtime.Close()
	}()
	go func() {
		defer y.output.Done()
		n := pour(client, runtime)
		if n == 0 && y.tellsResult(client) && y.ctx.Err() == nil {
			_, _ = client.Write(computeLostResult()) // the client may have left before
		}
		client.Close()
	}()
	return nil
}

// begin counts the two directions of one stream more, and returns false if it is too late for it.
func (y *relay) begin() bool {
	y.mu.Lock()
	defer y.mu.Unlock()
	if y.ended {
		return false
	}
	y.input.Add(1)
	y.output.Add(1)
	return true
}

func (y *relay) end() {
	y.mu.Lock()
	defer y.mu.Unlock()
	y.ended = true
}

// tellsResult says whether the runtime must write to the stream how the command ended, even when it ended well.
func (y *relay) tellsResult(s httpstream.Stream) bool {
	return y.protocol == remotecommand.StreamProtocolV4Name && s.Headers().Get(v1.StreamType) == v1.StreamTypeError
}

// pour copies until the end of from, and returns how much came. What to does not take is let go: it would hold up the other streams of
// the connection.
func pour(to io.Writer, from io.Reader) int64 {
	n, err := io.Copy(to, from)
	if err != nil {
		rest, _ := io.Copy(io.Discard, from)
		n += rest
	}
	return n
}

// computeLostResult returns the last word of a stream whose runtime did not have one: clients take silence for success, though part of
// the output may be missing.
func computeLostResult() []byte {
	b, err := json.Marshal(&metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"},
		Status:   metav1.StatusFailure,
		Reason:   metav1.StatusReasonInternalError,
		Code:     http.StatusInternalServerError,
		Message:  "the stream broke off before the container runtime told how the command ended; output may be missing",
	})
	if err != nil {
		panic(err) // a struct of strings
	}
	return b
}
