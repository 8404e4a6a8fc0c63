package offlinecache

import (
	"context"
	"sync"
)

// follow calls seen with each version from the server. While the cache is serving, seen is called
// with the result of lent until the server's first version. It blocks until ctx is done.
func follow[T any](ctx context.Context, k *Keeper, lent func() (T, bool), server func(context.Context, func(T)), seen func(T)) {
	select {
	case <-k.over: // the cache has stopped serving for good
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
			if !shown && k.hasLent() { // the server's follower may be in back-off: restart it
				f.stop()
				f.start(ctx)
			}
		}
	}
}

// follower runs the server's follower and holds its newest version.
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
			case <-f.newest: // unread and older
			default:
			}
			f.newest <- o // does not block: no other goroutine sends
		})
	})
}

func (f *follower[T]) stop() {
	f.cancel()
	f.running.Wait()
}
