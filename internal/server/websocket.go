package server

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

// webSocketProtocols are the WebSocket protocols of commands, and the SPDY protocol of the runtime whose result has the same form: text
// before v4, a Status since.
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

// chooseWebSocketProtocol returns the first protocol that the client wants and that is spoken here.
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

// translate joins a client of a WebSocket protocol with the runtime, which speaks SPDY: the same streams.
func (s *runtimeStreams) translate(w http.ResponseWriter, r *http.Request, target *url.URL, wanted streamOptions) error {
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
	ours, err := spdy.NewClientConnection(streamConn{conn}) // it closes conn when it fails
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
	// The library would log each end of a connection as an error, to where klog writes.
	r = r.WithContext(klog.NewContext(r.Context(), klog.Logger{}))
	_, from, err := ws.Open(client, r) // a client that is refused was told so
	if err != nil {
		return fmt.Errorf("open the WebSocket: %w", err)
	}
	defer ws.Close()

	// Clients of the old protocols begin when something comes.
	for _, channel := range []int{remotecommand.StreamStdOut, remotecommand.StreamStdErr, remotecommand.StreamErr} {
		if to[channel] != nil {
			_, _ = from[channel].Write(nil) // whether the client is there, shows below
			break
		}
	}
	// Nobody writes to the channel of errors but us: reading from it ends when the client is gone.
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		_, _ = io.Copy(io.Discard, from[remotecommand.StreamErr])
		conn.Close() // first, so that nothing waits for the runtime to take what is left
		ours.Close()
	}()
	var input sync.WaitGroup
	for _, channel := range []int{remotecommand.StreamStdIn, remotecommand.StreamResize} {
		if stream := to[channel]; stream != nil {
			input.Go(func() {
				pour(stream, from[channel]) // ends with the client or with the runtime, and either shows below
				stream.Close()
			})
		}
	}
	var output errgroup.Group
	for _, channel := range []int{remotecommand.StreamStdOut, remotecommand.StreamStdErr} {
		if stream := to[channel]; stream != nil {
			output.Go(func() error {
				_, err := io.Copy(from[channel], stream)
				return err
			})
		}
	}
	// The result is the last thing that the client gets.
	result, err := io.ReadAll(io.LimitReader(to[remotecommand.StreamErr], maxBodyBytes))
	if e := output.Wait(); err == nil {
		err = e
	}
	if len(result) == 0 && webSocketProtocols[protocol].spdy == remotecommand.StreamProtocolV4Name && r.Context().Err() == nil {
		result = computeLostResult()
	}
	if err == nil && len(result) > 0 {
		_, err = from[remotecommand.StreamErr].Write(result)
	}
	ws.Close() // the client may have closed it already
	<-gone
	input.Wait()
	return err
}

// channelsFor returns the directions of the channels, by their numbers in the protocol.
func channelsFor(wanted streamOptions) []wsstream.ChannelType {
	channels := []wsstream.ChannelType{
		remotecommand.StreamStdIn:  wsstream.IgnoreChannel,
		remotecommand.StreamStdOut: wsstream.IgnoreChannel,
		remotecommand.StreamStdErr: wsstream.IgnoreChannel,
		remotecommand.StreamErr:    wsstream.ReadWriteChannel,
		remotecommand.StreamResize: wsstream.IgnoreChannel,
	}
	if wanted.stdin {
		channels[remotecommand.StreamStdIn] = wsstream.ReadChannel
	}
	if wanted.stdout {
		channels[remotecommand.StreamStdOut] = wsstream.WriteChannel
	}
	if wanted.stderr {
		channels[remotecommand.StreamStdErr] = wsstream.WriteChannel
	}
	if wanted.tty {
		channels[remotecommand.StreamResize] = wsstream.ReadChannel
	}
	return channels
}

// createStreams opens the streams of the SPDY protocol that the runtime waits for, by the numbers of the WebSocket protocol; those
// that are not wanted are nil.
func createStreams(conn httpstream.Connection, wanted streamOptions) ([]httpstream.Stream, error) {
	streams := make([]httpstream.Stream, remotecommand.StreamResize+1)
	for _, s := range []struct {
		channel int
		name    string
		wanted  bool
	}{
		{remotecommand.StreamErr, v1.StreamTypeError, true},
		{remotecommand.StreamStdIn, v1.StreamTypeStdin, wanted.stdin},
		{remotecommand.StreamStdOut, v1.StreamTypeStdout, wanted.stdout},
		{remotecommand.StreamStdErr, v1.StreamTypeStderr, wanted.stderr},
		{remotecommand.StreamResize, v1.StreamTypeResize, wanted.tty},
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

// refuseStream answers a request that has not become a stream.
func refuseStream(w http.ResponseWriter, err error) error {
	status := http.StatusBadGateway
	var r *refusal
	if errors.As(err, &r) {
		status = r.status
	}
	http.Error(w, err.Error(), status)
	return nil
}

// streamConn is an upgraded connection as SPDY wants it. Deadlines are never set: idleConn ends what is idle.
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
