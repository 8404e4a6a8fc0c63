package offlinecache

import (
	"context"
	"sync"
)

// follow calls seen with each version from the server. While the cache is serving, seen is called
// with the result of fromCache until the server's first version. It blocks until ctx is done.
func follow[T any](ctx context.Context, c *Cache, fromCache func() (T, bool), server func(context.Context, func(T)), seen func(T)) {
	select {
	case <-c.disabled: // the cache has stopped serving for good
		server(ctx, seen)
		return
	default:
	}
	f := follower[T]{server: server, newest: make(chan T, 1)}
	f.start(ctx)
	defer f.stop()
	serving, disabled, servedStale := c.serving, c.disabled, false
	defer func() {
		if servedStale {
			c.addStale(-1)
		}
	}()
	seenServer := false
	for {
		select {
		case <-ctx.Done():
			return
		case o := <-f.newest:
			seenServer, serving = true, nil
			seen(o)
			if servedStale {
				servedStale = false
				c.addStale(-1)
			}
		case <-serving:
			serving = nil
			if o, ok := fromCache(); ok && !seenServer && c.isServing() {
				c.addStale(1)
				servedStale = true
				seen(o)
			}
		case <-disabled:
			disabled, serving = nil, nil
			if !seenServer && c.hasServed() { // the server's follower may be in back-off: restart it
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
