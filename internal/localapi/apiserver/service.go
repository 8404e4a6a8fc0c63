package apiserver

import (
	"bytes"
	"context"
	"io"
	"net/rpc"
	"sync"

	"berth/internal/localapi/store"
)

// service serves the calls of one child. Its exported methods are those of net/rpc.
type service struct {
	store *store.Store
	ctx   context.Context // done when the child has closed the connection
	ready func()          // called once, when the child serves

	once    sync.Once
	mu      sync.Mutex
	last    uint64            // guarded by mu; the newest ID of a watch
	watches map[uint64]*place // guarded by mu
}

// place is the position of a watch.
type place struct {
	ctx    context.Context
	cancel context.CancelFunc
	of     WatchCall
	after  uint64 // used only by the waiting call
	busy   bool   // guarded by service.mu; a call waits
}

// Serve serves the calls of a child until the connection is closed and all calls have returned. It
// calls ready when the child serves.
func Serve(conn io.ReadWriteCloser, s *store.Store, ready func()) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	server := rpc.NewServer()
	if err := server.RegisterName(serviceName, &service{store: s, ctx: ctx, ready: ready, watches: map[uint64]*place{}}); err != nil {
		panic("register the store's calls: " + err.Error()) // their form: cannot depend on input
	}
	server.ServeConn(&ending{ReadWriteCloser: conn, gone: cancel})
}

// Ready is called when the child serves.
func (s *service) Ready(Nothing, *Nothing) error {
	s.once.Do(s.ready)
	return nil
}

// Get is store.Get.
func (s *service) Get(key store.Key, answer *ItemAnswer) error {
	item, err := s.store.Get(key)
	*answer = ItemAnswer{Item: item, Failure: failureOf(err)}
	return nil
}

// List returns the first page of store.List.
func (s *service) List(r store.Range, answer *PageAnswer) error {
	page, size := Page{}, 0
	revision, err := s.store.List(r, func(i store.Item) bool {
		if len(page.Items) > 0 && (len(page.Items) == maxAnswerItems || size+len(i.Value) > maxAnswerBytes) {
			page.More = true
			return false
		}
		i.Value = bytes.Clone(i.Value)
		size += len(i.Value)
		page.Items = append(page.Items, i)
		return true
	})
	page.Revision = revision
	*answer = PageAnswer{Page: page, Failure: failureOf(err)}
	return nil
}

// Count returns the number of objects in a range.
func (s *service) Count(r store.Range, answer *NumberAnswer) error {
	n := uint64(0)
	_, err := s.store.List(r, func(store.Item) bool {
		n++
		return true
	})
	*answer = NumberAnswer{Number: n, Failure: failureOf(err)}
	return nil
}

// Revision is store.Revision.
func (s *service) Revision(_ Nothing, answer *NumberAnswer) error {
	*answer = NumberAnswer{Number: s.store.Revision()}
	return nil
}

// Write is store.Write.
func (s *service) Write(w WriteCall, answer *NumberAnswer) error {
	revision, err := s.store.Write(w.Key, w.Seen, w.Value)
	*answer = NumberAnswer{Number: revision, Failure: failureOf(err)}
	return nil
}

// Watch starts a watch and returns its ID.
func (s *service) Watch(w WatchCall, answer *NumberAnswer) error {
	ctx, cancel := context.WithCancel(s.ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last++
	s.watches[s.last] = &place{ctx: ctx, cancel: cancel, of: w, after: w.After}
	*answer = NumberAnswer{Number: s.last}
	return nil
}

// Next waits for changes of a watch.
func (s *service) Next(id uint64, answer *ChangesAnswer) error {
	p, err := s.take(id)
	var changes []store.Change
	if err == nil {
		changes, err = p.next(s.store)
		s.give(p)
		if p.ctx.Err() != nil {
			changes, err = nil, errNoWatch
		}
	}
	*answer = ChangesAnswer{Changes: changes, Failure: failureOf(err)}
	return nil
}

// take marks the watch as busy.
func (s *service) take(id uint64) (*place, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.watches[id]
	switch {
	case p == nil:
		return nil, errNoWatch
	case p.busy:
		return nil, errBusyWatch
	}
	p.busy = true
	return p, nil
}

func (s *service) give(p *place) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p.busy = false
}

// Stop ends a watch.
func (s *service) Stop(id uint64, _ *Nothing) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.watches[id]; p != nil {
		p.cancel()
		delete(s.watches, id)
	}
	return nil
}

// next waits for changes that match the watch.
func (p *place) next(s *store.Store) ([]store.Change, error) {
	for {
		all, err := s.Since(p.ctx, p.after)
		if err != nil {
			return nil, err
		}
		if found := p.pick(all); len(found) > 0 {
			return found, nil
		}
	}
}

// pick returns matching changes, up to the limits of a response, and advances the position past the
// last one processed.
func (p *place) pick(all []store.Change) []store.Change {
	var found []store.Change
	size := 0
	for _, c := range all {
		if c.Now.Key.Resource == p.of.Resource && (p.of.Namespace == "" || c.Now.Key.Namespace == p.of.Namespace) {
			size += len(c.Now.Value) + len(c.Before.Value)
			if len(found) > 0 && (len(found) == maxAnswerItems || size > maxAnswerBytes) {
				break
			}
			found = append(found, c)
		}
		p.after = c.Now.Revision
	}
	return found
}
