package offlinecache

import (
	"context"
	"sync"
)

// follow has the server followed by its function, and seen called with what it shows. While what
// was kept is lent, seen is called with what lent returns until the server shows something. It
// blocks until ctx is done.
func follow[T any](ctx context.Context, k *Keeper, lent func() (T, bool), server func(context.Context, func(T)), seen func(T)) {
	select {
	case <-k.over: // from now on there is nothing to choose from
		server(ctx, seen)
		return
	default:
	}
	f := follower[T]{server: server, newest: make(chan T, 1)}
	f.start(ctx)
	defer f.stop()
	lending, over, borrowed := k.lending, k.over, false
	defer func() {
		if borrowed {
			k.borrow(-1)
		}
	}()
	shown := false
	for {
		select {
		case <-ctx.Done():
			return
		case o := <-f.newest:
			shown, lending = true, nil
			seen(o)
			if borrowed {
				borrowed = false
				k.borrow(-1)
			}
		case <-lending:
			lending = nil
			if o, ok := lent(); ok && !shown && k.isLending() {
				k.borrow(1)
				borrowed = true
				seen(o)
			}
		case <-over:
			over, lending = nil, nil
			if !shown && k.hasLent() { // it may wait for a while until it asks a server again that was away
				f.stop()
				f.start(ctx)
			}
		}
	}
}

// follower runs what follows the server, and has the newest that it showed.
type follower[T any] struct {
	server  func(context.Context, func(T))
	newest  chan T // capacity 1
	cancel  context.CancelFunc
	running sync.WaitGroup
}

func (f *follower[T]) start(ctx context.Context) {
	ctx, f.cancel = context.WithCancel(ctx)
	f.running.Go(func() {
		f.server(ctx, func(o T) {
			select {
			case <-f.newest: // nobody has taken it, and it is older
			default:
			}
			f.newest <- o // which has room: nobody else puts anything there
		})
	})
}

func (f *follower[T]) stop() {
	f.cancel()
	f.running.Wait()
}
