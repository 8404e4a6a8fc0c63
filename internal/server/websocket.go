package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"time"

	"golang.org/x/net/websocket"
	"golang.org/x/sync/errgroup"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/portforward"
	"k8s.io/apimachinery/pkg/util/remotecommand"
	"k8s.io/klog/v2"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"
	"k8s.io/streaming/pkg/httpstream/wsstream"
)

// translate joins a client of the WebSocket protocol v5 with the runtime, which speaks SPDY v4: the same streams, with one way more
// to end the input.
func (s *runtimeStreams) translate(w http.ResponseWriter, r *http.Request, target *url.URL, wanted streamOptions) error {
	conn, err := s.dial(r.Context(), target, remotecommand.StreamProtocolV4Name)
	if err != nil {
		return refuseStream(w, err)
	}
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
		remotecommand.StreamProtocolV5Name: {Binary: true, Channels: channelsFor(wanted)},
	})
	ws.SetIdleTimeout(s.idle)
	// The library would log each end of a connection as an error, to where klog writes.
	r = r.WithContext(klog.NewContext(r.Context(), klog.Logger{}))
	_, from, err := ws.Open(w, r) // a client that is refused was told so
	if err != nil {
		return fmt.Errorf("open the WebSocket: %w", err)
	}
	defer ws.Close()

	// Nobody writes to the channel of errors but us: reading from it ends when the client is gone.
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		_, _ = io.Copy(io.Discard, from[remotecommand.StreamErr])
		ours.Close()
	}()
	var input sync.WaitGroup
	for _, channel := range []int{remotecommand.StreamStdIn, remotecommand.StreamResize} {
		if stream := to[channel]; stream != nil {
			input.Go(func() {
				_, _ = io.Copy(stream, from[channel]) // ends with the client or with the runtime, and either shows below
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
	if err == nil && len(result) > 0 {
		_, err = from[remotecommand.StreamErr].Write(result)
	}
	ws.Close() // the client may have closed it already
	ours.Close()
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

// tunnel takes the SPDY of a port-forward out of the WebSocket that it travels in.
func (s *runtimeStreams) tunnel(w http.ResponseWriter, r *http.Request, target *url.URL) error {
	conn, err := s.dial(r.Context(), target, portforward.PortForwardV1Name)
	if err != nil {
		return refuseStream(w, err)
	}
	defer conn.Close()
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
			copyBoth(r.Context(), ws, conn)
		},
	}.ServeHTTP(w, r)
	return nil
}

// copyBoth copies in both directions until one of them ends, and closes both.
func copyBoth(ctx context.Context, a, b io.ReadWriteCloser) {
	stop := context.AfterFunc(ctx, func() { a.Close(); b.Close() })
	defer stop()
	var g errgroup.Group
	for _, way := range [][2]io.ReadWriteCloser{{a, b}, {b, a}} {
		g.Go(func() error {
			defer way[0].Close()
			defer way[1].Close()
			_, err := io.Copy(way[0], way[1])
			return err
		})
	}
	_ = g.Wait() // the first to end is the end of both, however it came
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
