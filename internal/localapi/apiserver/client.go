package apiserver

import (
	"context"
	"fmt"
	"io"
	"net/rpc"

	"berth/internal/localapi/store"
)

// Client is the child's client of the store. Its errors match those of package store by errors.Is.
// It is safe for concurrent use.
type Client struct {
	rpc  *rpc.Client
	done chan struct{}
}

// NewClient returns a client over a connection, which Close closes.
func NewClient(conn io.ReadWriteCloser) *Client {
	c := &Client{done: make(chan struct{})}
	c.rpc = rpc.NewClient(&ending{ReadWriteCloser: conn, gone: func() { close(c.done) }})
	return c
}

// Done returns a channel that is closed when the agent has closed the connection, or Close was
// called.
func (c *Client) Done() <-chan struct{} { return c.done }

// Close closes the connection, and with it every call and watch.
func (c *Client) Close() error { return c.rpc.Close() }

// call makes a call and returns on its response or when the context is done. In the latter case a
// write may still be executed.
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

// Ready reports to the agent that the child serves.
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

// List returns the first page of a range.
func (c *Client) List(ctx context.Context, r store.Range) (Page, error) {
	var answer PageAnswer
	if err := c.call(ctx, "List", r, &answer); err != nil {
		return Page{}, err
	}
	return answer.Page, answer.Failure.err()
}

// Count returns the number of objects in a range.
func (c *Client) Count(ctx context.Context, r store.Range) (int64, error) {
	n, err := c.number(ctx, "Count", r)
	return int64(n), err
}

// Revision returns the revision of the last change of any object.
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

// Watch is a watch of the store. The agent stores its position in the history.
type Watch struct {
	client *Client
	id     uint64
}

// Watch starts a watch, until Stop.
func (c *Client) Watch(ctx context.Context, w WatchCall) (*Watch, error) {
	id, err := c.number(ctx, "Watch", w)
	if err != nil {
		return nil, err
	}
	return &Watch{client: c, id: id}, nil
}

// Next waits for changes and returns them in order. The error is store.ErrCompacted if the history
// does not reach back to the position of the watch. Only one call may wait at a time.
func (w *Watch) Next(ctx context.Context) ([]store.Change, error) {
	var answer ChangesAnswer
	if err := w.client.call(ctx, "Next", w.id, &answer); err != nil {
		return nil, err
	}
	return answer.Changes, answer.Failure.err()
}

// Stop ends the watch and a waiting Next, without waiting itself.
func (w *Watch) Stop() {
	w.client.rpc.Go(serviceName+".Stop", w.id, &Nothing{}, make(chan *rpc.Call, 1))
}
