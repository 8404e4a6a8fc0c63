package store

import (
	"context"
	"slices"
	"sync"
)

// history is the last changes, in the order of their revisions, without a gap.
type history struct {
	most, mostBytes int

	mu      sync.Mutex
	changes []Change      // guarded by mu; elements are never changed
	dropped int           // guarded by mu; elements before changes, which its array may still hold
	bytes   int           // guarded by mu; of the values of changes
	floor   uint64        // guarded by mu; changes after it are there
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

// add takes the changes of one transaction.
func (h *history) add(changes []Change) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.changes = append(h.changes, changes...)
	for i := range changes {
		h.bytes += changes[i].size()
	}
	gone := 0
	for old := len(h.changes) - len(changes); gone < old && (len(h.changes)-gone > h.most || h.bytes > h.mostBytes); gone++ {
		h.floor = h.changes[gone].Now.Revision
		h.bytes -= h.changes[gone].size()
	}
	h.changes = h.changes[gone:]
	// A reader may have what is dropped, so it is not cleared: now and then there is a new array.
	if h.dropped += gone; h.dropped > len(h.changes) {
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

// after returns the changes after a revision, and what is closed when there are more.
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

// Since waits until there are changes after the revision and returns them, in their order; all of
// them, whatever their resource. It returns ErrCompacted when the history does not reach back to
// the revision, and the context's error when that is done. After a revision that is not there yet,
// it waits for one that is greater.
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

// undo returns, by encoded key, the objects of a range as they were at a revision, of those that
// have changed after it and up to another. An object that was not there has no value.
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
		if _, ok := was[k]; !ok { // the first change has what was there before all
			was[k] = c.Before
		}
	}
	return was, nil
}
