package streams

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/remotecommand"
	"k8s.io/klog/v2"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"
	"k8s.io/streaming/pkg/httpstream/wsstream"
)

// webSocketProtocols are the WebSocket protocols of commands, and the runtime's SPDY protocol with
// the same form of the result: text before v4, then a Status.
var webSocketProtocols = map[string]struct {
	binary bool
	spdy   string
}{
	"":                                      {true, remotecommand.StreamProtocolV3Name},
	wsstream.ChannelWebSocketProtocol:       {true, remotecommand.StreamProtocolV3Name},
	wsstream.Base64ChannelWebSocketProtocol: {false, remotecommand.StreamProtocolV3Name},
	remotecommand.StreamProtocolV4Name:      {true, remotecommand.StreamProtocolV4Name},
	"v4." + wsstream.Base64ChannelWebSocketProtocol: {false, remotecommand.StreamProtocolV4Name},
	remotecommand.StreamProtocolV5Name:              {true, remotecommand.StreamProtocolV4Name},
}

// chooseWebSocketProtocol returns the first requested protocol that is supported.
func chooseWebSocketProtocol(r *http.Request) (string, error) {
	var wanted []string
	for p := range strings.SplitSeq(strings.Join(r.Header.Values(wsstream.WebSocketProtocolHeader), ","), ",") {
		wanted = append(wanted, strings.TrimSpace(p))
	}
	for _, p := range wanted {
		if _, ok := webSocketProtocols[p]; ok {
			return p, nil
		}
	}
	return "", fmt.Errorf("WebSocket protocols %q: only %q are spoken here", wanted, slices.Sorted(maps.Keys(webSocketProtocols)))
}

// translate connects a client of a WebSocket protocol to the runtime, which uses the same streams
// in SPDY.
func (s *Joiner) translate(w http.ResponseWriter, r *http.Request, target *url.URL, wanted Options) error {
	protocol, err := chooseWebSocketProtocol(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return nil
	}
	conn, _, err := s.dial(r.Context(), target, webSocketProtocols[protocol].spdy)
	if err != nil {
		return refuseStream(w, err)
	}
	defer conn.Close()
	ours, err := spdy.NewClientConnection(streamConn{conn}) // closes conn on failure
	if err != nil {
		return refuseStream(w, err)
	}
	defer ours.Close()
	to, err := createStreams(ours, wanted)
	if err != nil {
		return refuseStream(w, err)
	}
	ws := wsstream.NewConn(map[string]wsstream.ChannelProtocolConfig{
		protocol: {Binary: webSocketProtocols[protocol].binary, Channels: channelsFor(wanted)},
	})
	ws.SetIdleTimeout(s.idle)
	client := &upgradingWriter{ResponseWriter: w, ctx: r.Context(), idle: s.idle}
	defer client.close()
	// The library would log the end of each connection as an error with klog.
	r = r.WithContext(klog.NewContext(r.Context(), klog.Logger{}))
	_, from, err := ws.Open(client, r) // a rejected client has got the response
	if err != nil {
		return fmt.Errorf("open the WebSocket: %w", err)
	}
	defer ws.Close()

	t := translation{to: to, from: from}
	t.begin()
	// Only this side writes to the error channel: reading from it ends when the client disconnects.
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		_, _ = io.Copy(io.Discard, from[remotecommand.StreamErr])
		conn.Close() // first, so that nothing waits for the runtime to read the rest
		ours.Close()
	}()
	var input sync.WaitGroup
	t.copyInput(&input)
	result, err := t.copyOutput()
	if len(result) == 0 && webSocketProtocols[protocol].spdy == remotecommand.StreamProtocolV4Name {
		result = computeLostResult()
	}
	if err == nil && len(result) > 0 {
		_, err = from[remotecommand.StreamErr].Write(result) // the last data for the client
	}
	ws.Close() // the client may have closed it already
	<-stopped
	input.Wait()
	return err
}

// translation is one client of a WebSocket protocol and the runtime: their streams, by channel
// number. The runtime's are nil if not requested.
type translation struct {
	to   []httpstream.Stream  // the runtime
	from []io.ReadWriteCloser // the client
}

// begin writes an empty message to one output: clients of the old protocols start when a message
// arrives.
func (t translation) begin() {
	for _, channel := range []int{remotecommand.StreamStdOut, remotecommand.StreamStdErr, remotecommand.StreamErr} {
		if t.to[channel] != nil {
			_, _ = t.from[channel].Write(nil) // errors show up later
			return
		}
	}
}

// copyInput starts copying the client's input to the runtime. It ends when either disconnects,
// which also ends the output.
func (t translation) copyInput(running *sync.WaitGroup) {
	for _, channel := range []int{remotecommand.StreamStdIn, remotecommand.StreamResize} {
		if stream := t.to[channel]; stream != nil {
			running.Go(func() {
				copyAll(stream, t.from[channel])
				stream.Close()
			})
		}
	}
}

// copyOutput copies the command's output to the client until its end, and returns the result.
func (t translation) copyOutput() (result []byte, err error) {
	var output errgroup.Group
	for _, channel := range []int{remotecommand.StreamStdOut, remotecommand.StreamStdErr} {
		if stream := t.to[channel]; stream != nil {
			output.Go(func() error {
				_, err := io.Copy(t.from[channel], stream)
				return err
			})
		}
	}
	result, err = io.ReadAll(io.LimitReader(t.to[remotecommand.StreamErr], maxAnswerBytes))
	if e := output.Wait(); err == nil {
		err = e
	}
	return result, err
}

// channelsFor returns the directions of the channels, by channel number.
func channelsFor(wanted Options) []wsstream.ChannelType {
	channels := []wsstream.ChannelType{
		remotecommand.StreamStdIn:  wsstream.IgnoreChannel,
		remotecommand.StreamStdOut: wsstream.IgnoreChannel,
		remotecommand.StreamStdErr: wsstream.IgnoreChannel,
		remotecommand.StreamErr:    wsstream.ReadWriteChannel,
		remotecommand.StreamResize: wsstream.IgnoreChannel,
	}
	if wanted.Stdin {
		channels[remotecommand.StreamStdIn] = wsstream.ReadChannel
	}
	if wanted.Stdout {
		channels[remotecommand.StreamStdOut] = wsstream.WriteChannel
	}
	if wanted.Stderr {
		channels[remotecommand.StreamStdErr] = wsstream.WriteChannel
	}
	if wanted.TTY {
		channels[remotecommand.StreamResize] = wsstream.ReadChannel
	}
	return channels
}

// createStreams opens the SPDY streams that the runtime expects, by channel number; those not
// requested are nil.
func createStreams(conn httpstream.Connection, wanted Options) ([]httpstream.Stream, error) {
	streams := make([]httpstream.Stream, remotecommand.StreamResize+1)
	for _, s := range []struct {
		channel int
		name    string
		wanted  bool
	}{
		{remotecommand.StreamErr, v1.StreamTypeError, true},
		{remotecommand.StreamStdIn, v1.StreamTypeStdin, wanted.Stdin},
		{remotecommand.StreamStdOut, v1.StreamTypeStdout, wanted.Stdout},
		{remotecommand.StreamStdErr, v1.StreamTypeStderr, wanted.Stderr},
		{remotecommand.StreamResize, v1.StreamTypeResize, wanted.TTY},
	} {
		if !s.wanted {
			continue
		}
		h := http.Header{}
		h.Set(v1.StreamType, s.name)
		stream, err := conn.CreateStream(h)
		if err != nil {
			return nil, fmt.Errorf("open the stream %s: %w", s.name, err)
		}
		streams[s.channel] = stream
	}
	return streams, nil
}

// refuseStream responds to a request that did not become a stream.
func refuseStream(w http.ResponseWriter, err error) error {
	status := http.StatusBadGateway
	var r *refusal
	if errors.As(err, &r) {
		status = r.status
	}
	http.Error(w, err.Error(), status)
	return nil
}

// streamConn adapts an upgraded connection for SPDY. It has no deadlines: idleConn closes idle
// connections.
type streamConn struct{ io.ReadWriteCloser }

func (streamConn) LocalAddr() net.Addr              { return streamAddr{} }
func (streamConn) RemoteAddr() net.Addr             { return streamAddr{} }
func (streamConn) SetDeadline(time.Time) error      { return errNoDeadline }
func (streamConn) SetReadDeadline(time.Time) error  { return errNoDeadline }
func (streamConn) SetWriteDeadline(time.Time) error { return errNoDeadline }

var errNoDeadline = errors.New("an upgraded connection has no deadlines")

type streamAddr struct{}

func (streamAddr) Network() string { return "http" }
func (streamAddr) String() string  { return "streaming server of the container runtime" }
