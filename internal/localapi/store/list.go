package store

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	bolt "go.etcd.io/bbolt"
)

// List calls yield with the objects of a range, in the order of their keys, until it returns
// false, and returns the revision that they show. A value may be read during the call alone: it
// lies in the file. The error is ErrCompacted if the history does not reach back to the revision of
// the range, and ErrFuture if that is not there yet.
//
// yield must not write: a writer who needs a larger file waits for all lists. For that reason, too,
// whoever sends a list to somebody who may be slow collects a page of it first.
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
			// What the transaction shows may not be in the history yet.
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

// await returns when the history has the revision, which is in the file already.
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

// merge goes over the objects of the file and those that were there, which count where there are
// both.
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
			continue // given next, or at the end
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
