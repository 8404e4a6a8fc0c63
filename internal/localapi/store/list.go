package store

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	bolt "go.etcd.io/bbolt"
)

// List calls yield with the objects of a range, in key order, until it returns false, and returns
// the revision shown. A value is valid only during the call, since it is memory of the file. The
// error is ErrCompacted if the history does not reach back to the range's revision, and ErrFuture
// if no change has that revision yet.
//
// yield must not write: a writer that grows the file waits for all lists. For the same reason a
// caller that sends a list to a client that may be slow collects a page first.
func (s *Store) List(r Range, yield func(Item) bool) (revision uint64, err error) {
	err = s.view(func(tx *bolt.Tx) error {
		newest, err := number(tx.Bucket(metaBucket), revisionKey)
		if err != nil {
			return err
		}
		revision = cmp.Or(r.Revision, newest)
		var was map[string]Item
		switch {
		case revision > newest:
			return fmt.Errorf("%w: %d, the newest is %d", ErrFuture, revision, newest)
		case revision < newest:
			// The history may lag behind the transaction.
			s.history.await(newest)
			if was, err = s.history.undo(r, newest); err != nil {
				return err
			}
		}
		return merge(tx.Bucket(objectsBucket).Cursor(), r, was, called(yield))
	})
	if err != nil {
		return 0, fmt.Errorf("list %s: %w", r.Resource, err)
	}
	return revision, nil
}

// await returns when the history has the revision, which the file has already.
func (h *history) await(revision uint64) {
	for {
		h.mu.Lock()
		last, more := h.last, h.more
		h.mu.Unlock()
		if last >= revision {
			return
		}
		<-more
	}
}

// merge yields the objects of the file and the previous versions, which take precedence.
func merge(c *bolt.Cursor, r Range, was map[string]Item, yield func(Item) bool) error {
	prefix, first := r.prefix()
	old := slices.DeleteFunc(slices.Sorted(maps.Keys(was)), func(k string) bool { return k < first })
	give := func(i Item) bool { return i.Value == nil || yield(i) }
	for k, stored := c.Seek([]byte(first)); k != nil && strings.HasPrefix(string(k), prefix); k, stored = c.Next() {
		for ; len(old) > 0 && old[0] < string(k); old = old[1:] {
			if !give(was[old[0]]) {
				return nil
			}
		}
		if len(old) > 0 && old[0] == string(k) {
			continue // yielded by the next iteration, or after the loop
		}
		key, err := decodeKey(string(k))
		if err != nil {
			return err
		}
		item, err := decodeItem(key, stored)
		if err != nil {
			return err
		}
		if !yield(item) {
			return nil
		}
	}
	for _, k := range old {
		if !give(was[k]) {
			return nil
		}
	}
	return nil
}
