package cri

import (
	"context"
	"errors"
	"sync"
	"time"

	"google.golang.org/grpc"
)

const (
	// callsPerLane is how many calls have one connection. An end of a gRPC connection reads no further while a hundred frames, other than
	// headers and data, wait to be written. If both ends do that, each with a full socket before it, they wait for each other for ever; it takes
	// a few hundred calls at a time.
	callsPerLane = 32
	// laneIdle is how long a connection that was opened for a crowd is kept without a call.
	laneIdle = time.Minute
)

// lanes are the connections to one socket. A call takes the first that has room; when none has, there is one more. None waits for another.
type lanes struct {
	open func(idle time.Duration) (*grpc.ClientConn, error) // of a connection that closes after idle, 0: never

	mu     sync.Mutex
	all    []*lane // guarded by mu
	closed bool    // guarded by mu
}

// lane is one connection.
type lane struct {
	conn  *grpc.ClientConn
	calls int // guarded by lanes.mu
}

func newLanes(open func(idle time.Duration) (*grpc.ClientConn, error)) (*lanes, error) {
	first, err := open(0)
	if err != nil {
		return nil, err
	}
	return &lanes{open: open, all: []*lane{{conn: first}}}, nil
}

// take returns a connection with room for a call, and the function that gives the room back.
func (l *lanes) take() (conn *grpc.ClientConn, leave func(), err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var with *lane
	for _, each := range l.all {
		if each.calls < callsPerLane {
			with = each
			break
		}
	}
	switch {
	case with != nil:
	case l.closed:
		with = l.all[0] // which says so
	default:
		conn, err := l.open(laneIdle)
		if err != nil {
			return nil, nil, err
		}
		with = &lane{conn: conn}
		l.all = append(l.all, with)
	}
	with.calls++
	return with.conn, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		with.calls--
	}, nil
}

// Invoke implements grpc.ClientConnInterface.
func (l *lanes) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	conn, leave, err := l.take()
	if err != nil {
		return err
	}
	defer leave()
	return conn.Invoke(ctx, method, args, reply, opts...)
}

// NewStream implements grpc.ClientConnInterface. Streams, which are few, do not count.
func (l *lanes) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	l.mu.Lock()
	first := l.all[0].conn
	l.mu.Unlock()
	return first.NewStream(ctx, desc, method, opts...)
}

// Close ends the connections; calls in flight fail.
func (l *lanes) Close() error {
	l.mu.Lock()
	all := l.all
	l.closed = true
	l.mu.Unlock()
	var errs []error
	for _, each := range all {
		errs = append(errs, each.conn.Close())
	}
	return errors.Join(errs...)
}
