package cri

import (
	"context"
	"errors"
	"sync"
	"time"

	"google.golang.org/grpc"
)

const (
	// callsPerConn is the number of concurrent calls per connection. A gRPC peer stops reading
	// while a hundred frames other than headers and data wait to be written. If both peers do so
	// with full sockets, they deadlock; that takes a few hundred concurrent calls.
	callsPerConn = 32
	// poolIdle is the idle time after which an additional connection closes.
	poolIdle = time.Minute
)

// connPool pools the connections to one socket. A call uses the first one with capacity; if there
// is none, another connection is opened. Calls do not queue.
type connPool struct {
	open func(idle time.Duration) (*grpc.ClientConn, error) // opens a connection that closes after idle, 0: never

	mu     sync.Mutex
	all    []*pooledConn // guarded by mu
	closed bool          // guarded by mu
}

type pooledConn struct {
	conn  *grpc.ClientConn
	calls int // guarded by connPool.mu
}

func newConnPool(open func(idle time.Duration) (*grpc.ClientConn, error)) (*connPool, error) {
	first, err := open(0)
	if err != nil {
		return nil, err
	}
	return &connPool{open: open, all: []*pooledConn{{conn: first}}}, nil
}

// acquire returns a connection with capacity for a call, and the function that releases it.
func (p *connPool) acquire() (conn *grpc.ClientConn, release func(), err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var with *pooledConn
	for _, each := range p.all {
		if each.calls < callsPerConn {
			with = each
			break
		}
	}
	switch {
	case with != nil:
	case p.closed:
		with = p.all[0] // its calls fail as closed
	default:
		conn, err := p.open(poolIdle)
		if err != nil {
			return nil, nil, err
		}
		with = &pooledConn{conn: conn}
		p.all = append(p.all, with)
	}
	with.calls++
	return with.conn, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		with.calls--
	}, nil
}

// Invoke implements grpc.ClientConnInterface.
func (p *connPool) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	conn, release, err := p.acquire()
	if err != nil {
		return err
	}
	defer release()
	return conn.Invoke(ctx, method, args, reply, opts...)
}

// NewStream implements grpc.ClientConnInterface. Streams are few and not counted.
func (p *connPool) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	p.mu.Lock()
	first := p.all[0].conn
	p.mu.Unlock()
	return first.NewStream(ctx, desc, method, opts...)
}

// Close closes the connections; active calls fail.
func (p *connPool) Close() error {
	p.mu.Lock()
	all := p.all
	p.closed = true
	p.mu.Unlock()
	var errs []error
	for _, each := range all {
		errs = append(errs, each.conn.Close())
	}
	return errors.Join(errs...)
}
