package store

import (
	"context"
	"slices"
	"sync"
)

// history is the recent changes, in the order of their revisions, without gaps.
type history struct {
	most, mostBytes int

	mu      sync.Mutex
	changes []Change      // guarded by mu; elements are never changed
	dropped int           // guarded by mu; dropped elements that the array of changes may still hold
	bytes   int           // guarded by mu; of the values of changes
	floor   uint64        // guarded by mu; all changes after it are in changes
	last    uint64        // guarded by mu; the newest revision
	more    chan struct{} // guarded by mu; closed by the next change
}

func newHistory(cfg Config, revision uint64) *history {
	h := &history{most: cfg.MaxHistory, mostBytes: cfg.MaxHistoryBytes, floor: revision, last: revision, more: make(chan struct{})}
	if h.most == 0 {
		h.most = 4096
	}
	if h.mostBytes == 0 {
		h.mostBytes = 2 << 20
	}
	return h
}

func (c *Change) size() int { return len(c.Now.Value) + len(c.Before.Value) }

// add appends the changes of one transaction.
func (h *history) add(changes []Change) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.changes = append(h.changes, changes...)
	for i := range changes {
		h.bytes += changes[i].size()
	}
	expired := 0
	for old := len(h.changes) - len(changes); expired < old && (len(h.changes)-expired > h.most || h.bytes > h.mostBytes); expired++ {
		h.floor = h.changes[expired].Now.Revision
		h.bytes -= h.changes[expired].size()
	}
	h.changes = h.changes[expired:]
	// A reader may hold dropped elements, so they are not cleared: the array is replaced
	// occasionally.
	if h.dropped += expired; h.dropped > len(h.changes) {
		h.changes, h.dropped = slices.Clone(h.changes), 0
	}
	h.last = h.changes[len(h.changes)-1].Now.Revision
	close(h.more)
	h.more = make(chan struct{})
}

func (h *history) newest() uint64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.last
}

// after returns the changes after a revision, and a channel that is closed when there are more.
func (h *history) after(revision uint64) (changes []Change, more <-chan struct{}, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if revision < h.floor {
		return nil, nil, ErrCompacted
	}
	i, _ := slices.BinarySearchFunc(h.changes, revision, func(c Change, r uint64) int {
		if c.Now.Revision <= r {
			return -1
		}
		return 1
	})
	return h.changes[i:len(h.changes):len(h.changes)], h.more, nil
}

// Since waits for changes after the revision and returns all of them, of any resource, in order. It
// returns ErrCompacted if the history does not reach back to the revision, and the context's error
// when that is done. For a future revision, it waits for a greater one.
func (s *Store) Since(ctx context.Context, revision uint64) ([]Change, error) {
	for {
		changes, more, err := s.history.after(revision)
		if err != nil || len(changes) > 0 {
			return changes, err
		}
		select {
		case <-more:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// undo returns, by encoded key, those objects of a range that have changed after r.Revision and up
// to another revision, as they were at r.Revision. An object that did not exist has no value.
func (h *history) undo(r Range, upTo uint64) (map[string]Item, error) {
	changes, _, err := h.after(r.Revision)
	if err != nil {
		return nil, err
	}
	was := map[string]Item{}
	for _, c := range changes {
		if c.Now.Revision > upTo {
			break
		}
		if c.Now.Key.Resource != r.Resource || r.Namespace != "" && c.Now.Key.Namespace != r.Namespace {
			continue
		}
		k, err := c.Now.Key.encode()
		if err != nil {
			return nil, err
		}
		if _, ok := was[k]; !ok { // the first change has the original value
			was[k] = c.Before
		}
	}
	return was, nil
}
