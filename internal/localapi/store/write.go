package store

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"

	bolt "go.etcd.io/bbolt"
)

// pending is a write that waits for its transaction.
type pending struct {
	key   Key
	k     string // key, encoded
	seen  uint64
	value []byte

	done     bool // with revision and err; guarded by Store.commit
	revision uint64
	err      error
}

// mostTogether is the maximum number of writes in a transaction.
const mostTogether = 256

// Write changes one object and returns the revision of the change, which is synced then. seen is
// the revision that the caller has read, 0 to create the object; on a mismatch the error is
// ErrConflict or ErrNotFound. A nil value removes the object. The caller must not modify value
// afterwards.
func (s *Store) Write(key Key, seen uint64, value []byte) (revision uint64, err error) {
	k, err := key.encode()
	if err == nil && len(value) > MaxValue {
		err = fmt.Errorf("%w: it has %d bytes, and may have %d", ErrTooLarge, len(value), MaxValue)
	}
	if err == nil && seen == 0 && value == nil {
		err = ErrNotFound
	}
	if err != nil {
		return 0, fmt.Errorf("write %s: %w", key, err)
	}
	p := &pending{key: key, k: k, seen: seen, value: value}
	s.mu.Lock()
	s.waiting = append(s.waiting, p)
	s.mu.Unlock()

	// The first writer commits for all that wait by then.
	s.commit.Lock()
	for !p.done {
		s.commitTogether(s.takeWaiting())
	}
	s.commit.Unlock()
	if p.err != nil {
		return 0, fmt.Errorf("write %s: %w", key, p.err)
	}
	return p.revision, nil
}

func (s *Store) takeWaiting() []*pending {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := min(len(s.waiting), mostTogether)
	taken := s.waiting[:n:n]
	s.waiting = s.waiting[n:]
	if len(s.waiting) == 0 {
		s.waiting = nil
	}
	return taken
}

// commitTogether commits writes in one transaction, in order. commit is held.
func (s *Store) commitTogether(writes []*pending) {
	var changes []Change
	err := s.update(func(tx *bolt.Tx) error {
		room := s.maxFile - tx.Size() + int64(s.db.Stats().FreeAlloc)
		meta := tx.Bucket(metaBucket)
		revision, err := number(meta, revisionKey)
		if err != nil {
			return err
		}
		for _, p := range writes {
			change, err := p.check(tx.Bucket(objectsBucket), room)
			if err != nil {
				p.err = err
				continue
			}
			revision++
			change.Now.Revision, p.revision = revision, revision
			if err := p.put(tx.Bucket(objectsBucket)); err != nil {
				return err
			}
			room -= int64(len(p.value))
			changes = append(changes, change)
		}
		if len(changes) == 0 {
			return errNothing
		}
		return meta.Put(revisionKey, binary.BigEndian.AppendUint64(nil, revision))
	})
	if err == nil {
		s.keepCopy(changes)
	}
	for _, p := range writes {
		p.done = true
		if p.err == nil {
			p.err = err
		}
	}
	if errors.Is(err, errNothing) {
		return
	}
	s.failed(err)
	if err == nil {
		s.history.add(changes)
	}
}

// errNothing rolls back a transaction without changes, so that nothing is written. Each of its
// writes has its own error.
var errNothing = errors.New("no change")

// check returns the change that a write makes, without its revision, or why it is rejected. room is
// the free space in bytes.
func (p *pending) check(objects *bolt.Bucket, room int64) (Change, error) {
	c := Change{Now: Item{Key: p.key, Value: p.value}, Before: Item{Key: p.key}}
	stored := objects.Get([]byte(p.k))
	if stored != nil {
		before, err := decodeItem(p.key, stored)
		if err != nil {
			return c, err
		}
		before.Value = bytes.Clone(before.Value)
		c.Before = before
	}
	switch {
	case stored == nil && p.seen != 0:
		return c, ErrNotFound
	case c.Before.Revision != p.seen:
		return c, ErrConflict
	case p.value != nil && int64(len(p.value)) > room:
		return c, ErrFull
	}
	return c, nil
}

func (p *pending) put(objects *bolt.Bucket) error {
	if p.value == nil {
		return objects.Delete([]byte(p.k))
	}
	stored := make([]byte, 8, 8+len(p.value))
	binary.BigEndian.PutUint64(stored, p.revision)
	return objects.Put([]byte(p.k), append(stored, p.value...))
}
