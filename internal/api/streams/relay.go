package streams

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/moby/spdystream/spdy"
	"golang.org/x/net/websocket"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/portforward"
	"k8s.io/apimachinery/pkg/util/remotecommand"
	"k8s.io/streaming/pkg/httpstream"
	spdystreaming "k8s.io/streaming/pkg/httpstream/spdy"
	"k8s.io/streaming/pkg/httpstream/wsstream"
)

// serveSPDY responds to an upgrade to SPDY and calls use with the connection, direct or tunnelled
// in a WebSocket (KEP-4006). The connection is closed when serveSPDY returns. protocol is the
// negotiated one.
func (s *Joiner) serveSPDY(w http.ResponseWriter, r *http.Request, protocol string, use func(net.Conn)) error {
	client := &upgradingWriter{ResponseWriter: w, ctx: r.Context(), idle: s.idle}
	defer client.close()
	if wsstream.IsWebSocketRequestWithTunnelingProtocol(r) {
		serveTunnel(client, r, use)
		return nil
	}
	if !strings.EqualFold(r.Header.Get(httpstream.HeaderUpgrade), spdystreaming.HeaderSpdy31) {
		http.Error(w, fmt.Sprintf("unable to upgrade: %s: %q; expected %s", httpstream.HeaderUpgrade, r.Header.Get(httpstream.HeaderUpgrade), spdystreaming.HeaderSpdy31), http.StatusBadRequest)
		return nil
	}
	h := w.Header()
	h.Set(httpstream.HeaderConnection, httpstream.HeaderUpgrade)
	h.Set(httpstream.HeaderUpgrade, spdystreaming.HeaderSpdy31)
	h.Set(httpstream.HeaderProtocolVersion, protocol)
	w.WriteHeader(http.StatusSwitchingProtocols)
	conn, _, err := client.Hijack() // the connection has the data that was read already
	if err != nil {
		return fmt.Errorf("take over the connection: %w", err)
	}
	use(conn)
	return nil
}

// serveTunnel calls use with a SPDY connection tunnelled in a WebSocket.
func serveTunnel(w http.ResponseWriter, r *http.Request, use func(net.Conn)) {
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
			defer ws.Close() // with a close frame
			use(ws)
		},
	}.ServeHTTP(w, r)
}

// relay connects a SPDY client to the runtime's SPDY server, frame by frame.
//
// Bytes are not copied: the client's pings would be, and one that reaches the runtime after it has
// closed its side makes the kernel there reset the connection, which loses the end of the output
// and the result. Pings are answered here.
func (s *Joiner) relay(w http.ResponseWriter, r *http.Request, target *url.URL) error {
	protocols := r.Header.Values(httpstream.HeaderProtocolVersion)
	if wsstream.IsWebSocketRequestWithTunnelingProtocol(r) {
		protocols = []string{portforward.PortForwardV1Name}
	}
	conn, protocol, err := s.dial(r.Context(), target, protocols...)
	if err != nil {
		return refuseStream(w, err)
	}
	defer conn.Close()
	y := &relay{givesResult: protocol == remotecommand.StreamProtocolV4Name}
	if y.runtime, err = newFrames(conn); err != nil {
		return refuseStream(w, err)
	}
	var ended error
	err = s.serveSPDY(w, r, protocol, func(client net.Conn) {
		if y.client, ended = newFrames(client); ended != nil {
			return
		}
		sent := make(chan struct{})
		go func() {
			defer close(sent)
			y.send()
			conn.Close()
		}()
		ended = y.receive()
		client.Close() // after it has read everything
		<-sent
	})
	return errors.Join(err, ended)
}

// relay is one client and the runtime.
type relay struct {
	client, runtime *frames
	givesResult     bool          // the runtime must report the result, even on success
	resultStream    atomic.Uint32 // the stream of the result; 0: not opened yet by the client
	open            sync.Map      // the streams (spdy.StreamId) that the runtime has not closed yet
}

// send forwards the client's frames to the runtime, until the client disconnects. If the runtime
// has disconnected, they are read and dropped, because unread frames would block the client.
func (y *relay) send() {
	failed := false
	for {
		frame, err := y.client.ReadFrame()
		if err != nil {
			return
		}
		switch f := frame.(type) {
		case *spdy.PingFrame:
			if f.Id%2 == 1 { // the client's own; an even one answers the runtime's
				if y.client.write(f) != nil {
					return
				}
				continue
			}
		case *spdy.SynStreamFrame:
			y.open.Store(f.StreamId, nil)
			if y.givesResult && f.Headers.Get(v1.StreamType) == v1.StreamTypeError {
				y.resultStream.Store(uint32(f.StreamId))
			}
		}
		failed = failed || y.runtime.write(frame) != nil
	}
}

// receive forwards the runtime's frames to the client, until either disconnects.
func (y *relay) receive() error {
	given := false
	for {
		frame, err := y.runtime.ReadFrame()
		result := spdy.StreamId(y.resultStream.Load())
		last := err != nil
		switch f := frame.(type) {
		case *spdy.DataFrame:
			given = given || f.StreamId == result && len(f.Data) > 0
			if f.Flags&spdy.DataFlagFin != 0 {
				y.open.Delete(f.StreamId)
				last = f.StreamId == result
			}
		case *spdy.RstStreamFrame:
			y.open.Delete(f.StreamId)
			last = f.StreamId == result
		}
		if last && !given && result != 0 {
			given = true
			if err := y.client.write(&spdy.DataFrame{StreamId: result, Data: computeLostResult()}); err != nil {
				return err
			}
		}
		if err != nil {
			return y.endAll() // the cause does not matter: the client has the result, or an error in its place
		}
		if err := y.client.write(frame); err != nil {
			return err
		}
	}
}

// endAll closes the streams that the runtime has left open.
func (y *relay) endAll() (err error) {
	y.open.Range(func(id, _ any) bool {
		err = y.client.write(&spdy.DataFrame{StreamId: id.(spdy.StreamId), Flags: spdy.DataFlagFin})
		return err == nil
	})
	return err
}

// frames is a SPDY connection.
type frames struct {
	*spdy.Framer
	mu  sync.Mutex // guards writes
	out *bufio.Writer
}

func newFrames(conn io.ReadWriter) (*frames, error) {
	f := &frames{out: bufio.NewWriter(conn)}
	var err error
	f.Framer, err = spdy.NewFramer(f.out, bufio.NewReader(conn))
	return f, err
}

func (f *frames) write(frame spdy.Frame) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.WriteFrame(frame); err != nil {
		return err
	}
	return f.out.Flush()
}

// copyAll copies until the end of from, and returns the number of bytes read. If to fails, the rest
// is dropped: it would block the other streams of the connection.
func copyAll(to io.Writer, from io.Reader) int64 {
	n, err := io.Copy(to, from)
	if err != nil {
		rest, _ := io.Copy(io.Discard, from)
		n += rest
	}
	return n
}

// computeLostResult returns the result of a stream whose runtime sent none: clients take a missing
// result for success, although output may be missing.
func computeLostResult() []byte {
	b, err := json.Marshal(&metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"},
		Status:   metav1.StatusFailure,
		Reason:   metav1.StatusReasonInternalError,
		Code:     http.StatusInternalServerError,
		Message:  "the stream broke off before the command exited: its exit code is unknown, and output may be missing",
	})
	if err != nil {
		panic(err) // a struct of strings
	}
	return b
}
