package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/streaming/pkg/httpstream"

	"berth/internal/api/server"
	"berth/internal/pod"
)

// portForwardProtocol is the name of the protocol of PodPortForward: a stream for the data and one
// for an error.
const portForwardProtocol = "portforward.k8s.io"

// forwarder joins connections to this machine with a pod's ports. Each has a connection of its own
// to the agent, so that none waits for another, and none ends with another.
type forwarder struct {
	client      *client
	pod         *v1.Pod
	out, errOut io.Writer // safe for concurrent use
}

// portListener is where connections for a port of the pod come in.
type portListener struct {
	net.Listener
	portPair
}

// listen begins to listen on as many of the ports as can be had, and fails when there is none.
func (f *forwarder) listen(ctx context.Context, addresses []listenAddress, pairs []portPair) ([]portListener, error) {
	var all []portListener
	for i := range pairs {
		listeners, err := f.listenOn(ctx, addresses, &pairs[i])
		if err != nil {
			fmt.Fprintf(f.errOut, "Unable to listen on port %d: %v\n", pairs[i].local, err)
			continue
		}
		all = append(all, listeners...)
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("unable to listen on any of the requested ports: %v", pairs)
	}
	return all, nil
}

// listenOn listens on the port at the addresses. A port that is 0 is set to the free one that was
// found.
func (f *forwarder) listenOn(ctx context.Context, addresses []listenAddress, pair *portPair) (found []portListener, err error) {
	var failed []error
	required := false
	for _, a := range addresses {
		var lc net.ListenConfig
		l, err := lc.Listen(ctx, "tcp", net.JoinHostPort(a.host, strconv.Itoa(int(pair.local))))
		if err != nil {
			required = required || !a.optional
			failed = append(failed, err)
			continue
		}
		pair.local = uint16(l.Addr().(*net.TCPAddr).Port)
		found = append(found, portListener{l, *pair})
	}
	if required || len(found) == 0 {
		for _, l := range found {
			failed = append(failed, l.Close())
		}
		return nil, errors.Join(failed...)
	}
	for _, l := range found {
		fmt.Fprintf(f.out, "Forwarding from %s -> %d\n", l.Addr(), pair.remote)
	}
	return found, nil
}

// errPodEnded says that there is nothing left to forward to.
var errPodEnded = errors.New("lost connection to pod: it has ended")

// run forwards until the pod ends, which is an error, or ctx is done, which is not.
func (f *forwarder) run(ctx context.Context, listeners []portListener) error {
	asked := ctx
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	context.AfterFunc(ctx, func() {
		for _, l := range listeners {
			_ = l.Close() // nothing was written to it
		}
	})
	var running sync.WaitGroup
	running.Go(func() { cancel(f.awaitEnd(ctx)) })
	for _, l := range listeners {
		running.Go(func() {
			if err := f.accept(ctx, l); err != nil {
				cancel(err)
			}
		})
	}
	running.Wait()
	if asked.Err() != nil {
		return nil
	}
	return context.Cause(ctx)
}

// awaitEnd returns when the pod, or the agent, has ended.
func (f *forwarder) awaitEnd(ctx context.Context) error {
	listed, there := false, false
	return f.client.watch(ctx, func(e server.WatchEvent) error {
		ended := e.Type == server.Deleted || pod.IsTerminal(e.Object.Status.Phase)
		switch {
		case e.Type == server.Bookmark && !listed:
			listed = true
			if !there {
				return errPodEnded
			}
		case e.Object.UID != f.pod.UID:
		case ended:
			return errPodEnded
		default:
			there = true
		}
		return nil
	})
}

// accept joins whoever connects, until the listener is closed.
func (f *forwarder) accept(ctx context.Context, l portListener) error {
	var joined sync.WaitGroup
	defer joined.Wait()
	for {
		conn, err := l.Accept()
		if ctx.Err() != nil {
			if err == nil {
				_ = conn.Close() // it came too late
			}
			return nil
		}
		if err != nil {
			return fmt.Errorf("accept connections to port %d: %w", l.local, err)
		}
		fmt.Fprintf(f.out, "Handling connection for %d\n", l.local)
		joined.Go(func() {
			if err := f.join(ctx, conn.(*net.TCPConn), l.remote); err != nil && ctx.Err() == nil {
				fmt.Fprintf(f.errOut, "an error occurred forwarding %d -> %d: %v\n", l.local, l.remote, err)
			}
		})
	}
}

// join copies both ways between a connection and the port, until both have ended or the pod's end
// has failed. An end of either way is passed on alone, and the other way goes on.
func (f *forwarder) join(ctx context.Context, conn *net.TCPConn, port uint16) (err error) {
	defer conn.Close()
	path := strings.Join([]string{server.PathPortForward, f.pod.Namespace, f.pod.Name, string(f.pod.UID)}, "/")
	streams, err := f.client.openStreams(ctx, path, nil, portForwardProtocol)
	if err != nil {
		return err
	}
	defer streams.Close()
	stop := context.AfterFunc(ctx, func() {
		streams.Close()
		conn.Close()
	})
	defer stop()
	result, err := openPortStream(streams, v1.StreamTypeError, port)
	if err != nil {
		return err
	}
	if err := result.Close(); err != nil { // it is for the runtime to write
		return fmt.Errorf("close our end of the stream of errors: %w", err)
	}
	data, err := openPortStream(streams, v1.StreamTypeData, port)
	if err != nil {
		// The runtime may have had its last word already.
		said, _ := io.ReadAll(io.LimitReader(result, 64<<10))
		return cmp.Or(f.refusal(string(said), port), err)
	}
	var copies sync.WaitGroup
	copies.Go(func() {
		// Either end may go at any time; whether that was a failure, the runtime says.
		_, _ = io.Copy(data, conn)
		_ = data.Close()
	})
	received := make(chan struct{})
	copies.Go(func() {
		defer close(received)
		if _, err := io.Copy(conn, data); err != nil {
			_, _ = io.Copy(io.Discard, data) // nobody wants it any more, and what is not read would hold up the runtime's last word
		}
		_ = conn.CloseWrite()
	})
	said, err := io.ReadAll(io.LimitReader(result, 64<<10))
	<-received // all that the pod sent
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		copies.Wait()
	}()
	if err == nil && len(said) == 0 {
		select { // our end may have more to say
		case <-ended:
		case <-streams.CloseChan():
		}
	}
	conn.Close()
	<-ended
	if err != nil {
		return fmt.Errorf("the stream broke off: %w", err)
	}
	return f.refusal(string(said), port)
}

func openPortStream(conn httpstream.Connection, kind string, port uint16) (httpstream.Stream, error) {
	h := http.Header{}
	h.Set(v1.StreamType, kind)
	h.Set(v1.PortHeader, strconv.Itoa(int(port)))
	h.Set(v1.PortForwardRequestIDHeader, "0")
	s, err := conn.CreateStream(h)
	if err != nil {
		return nil, fmt.Errorf("open the stream %s: %w", kind, err)
	}
	return s, nil
}

// refusal is what the runtime says of a connection that it ended, nil if it says nothing.
func (f *forwarder) refusal(said string, port uint16) error {
	switch {
	case said == "":
		return nil
	case strings.Contains(said, "connection refused"):
		return fmt.Errorf("nothing listens on port %d of pod %q: connection refused", port, f.pod.Name)
	}
	return errors.New(oneLine(said))
}
