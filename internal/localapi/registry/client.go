package registry

import (
	"context"
	"fmt"
	"io"
	"net/rpc"

	"berth/internal/localapi/store"
)

// Client is the child's way to the store. Errors of package store are told apart by errors.Is. It
// is safe for concurrent use.
type Client struct {
	rpc  *rpc.Client
	done chan struct{}
}

// NewClient calls the store over a connection, which it closes in the end.
func NewClient(conn io.ReadWriteCloser) *Client {
	c := &Client{done: make(chan struct{})}
	c.rpc = rpc.NewClient(&ending{ReadWriteCloser: conn, gone: func() { close(c.done) }})
	return c
}

// Done is closed when the agent's end of the connection is gone, or Close was called.
func (c *Client) Done() <-chan struct{} { return c.done }

// Close ends the connection, and with it every call and watch.
func (c *Client) Close() error { return c.rpc.Close() }

// call makes a call and returns when it is answered or the context is done. A write that nobody
// waits for any more may still be made.
func (c *Client) call(ctx context.Context, method string, args, answer any) error {
	call := c.rpc.Go(serviceName+"."+method, args, answer, make(chan *rpc.Call, 1))
	select {
	case <-call.Done:
		if call.Error != nil {
			return fmt.Errorf("call the agent's store: %w", call.Error)
		}
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Ready says that the child serves.
func (c *Client) Ready(ctx context.Context) error {
	return c.call(ctx, "Ready", Nothing{}, &Nothing{})
}

// Get returns one object, or store.ErrNotFound.
func (c *Client) Get(ctx context.Context, key store.Key) (store.Item, error) {
	var answer ItemAnswer
	if err := c.call(ctx, "Get", key, &answer); err != nil {
		return store.Item{}, err
	}
	return answer.Item, answer.Failure.err()
}

// List returns the first objects of a range.
func (c *Client) List(ctx context.Context, r store.Range) (Page, error) {
	var answer PageAnswer
	if err := c.call(ctx, "List", r, &answer); err != nil {
		return Page{}, err
	}
	return answer.Page, answer.Failure.err()
}

// Count is how many objects a range has.
func (c *Client) Count(ctx context.Context, r store.Range) (int64, error) {
	n, err := c.number(ctx, "Count", r)
	return int64(n), err
}

// Revision is that of the last change of any object.
func (c *Client) Revision(ctx context.Context) (uint64, error) {
	return c.number(ctx, "Revision", Nothing{})
}

// Write changes one object and returns the revision of the change, as store.Write does.
func (c *Client) Write(ctx context.Context, key store.Key, seen uint64, value []byte) (uint64, error) {
	return c.number(ctx, "Write", WriteCall{Key: key, Seen: seen, Value: value})
}

func (c *Client) number(ctx context.Context, method string, args any) (uint64, error) {
	var answer NumberAnswer
	if err := c.call(ctx, method, args, &answer); err != nil {
		return 0, err
	}
	return answer.Number, answer.Failure.err()
}

// Watch is a place in the history of the store, on the agent's side.
type Watch struct {
	client *Client
	id     uint64
}

// Watch begins a watch. Stop ends it.
func (c *Client) Watch(ctx context.Context, w WatchCall) (*Watch, error) {
	id, err := c.number(ctx, "Watch", w)
	if err != nil {
		return nil, err
	}
	return &Watch{client: c, id: id}, nil
}

// Next waits for changes and returns them, in their order. The error is store.ErrCompacted if the
// history does not reach back to where the watch is. One may wait at a time.
func (w *Watch) Next(ctx context.Context) ([]store.Change, error) {
	var answer ChangesAnswer
	if err := w.client.call(ctx, "Next", w.id, &answer); err != nil {
		return nil, err
	}
	return answer.Changes, answer.Failure.err()
}

// Stop ends the watch and whoever waits for it, without waiting itself.
func (w *Watch) Stop() {
	w.client.rpc.Go(serviceName+".Stop", w.id, &Nothing{}, make(chan *rpc.Call, 1))
}
