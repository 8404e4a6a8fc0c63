package store

import (
	"fmt"
	"os"
	"time"

	bolt "go.etcd.io/bbolt"
)

// openCopy starts to maintain the copy. Health reports a copy that cannot be written.
func (s *Store) openCopy(cfg Config, info copyInfo) (err error) {
	known, _ := readState(cfg.Path + stateSuffix) // its error was reported before
	s.recovery = known.Recovery
	if now := s.Revision(); now < known.Revision { // the file was replaced by another one
		if err := s.update(func(tx *bolt.Tx) error { return putMeta(tx, known.Revision+restoredAhead) }); err != nil {
			return err
		}
		s.history = newHistory(cfg, known.Revision+restoredAhead)
	}
	known.Generation, known.Revision = max(known.Generation, 1), s.Revision()
	s.commit.Lock()
	defer s.commit.Unlock()
	s.copy, s.unwritten = &copyWriter{path: cfg.Path + copySuffix}, &known
	if info.complete && info.last == s.Revision() {
		s.copy.f, err = os.OpenFile(s.copy.path, os.O_WRONLY|os.O_APPEND, 0)
		s.copy.changes = info.size
	} else if info.exists && !s.recovered && cfg.Warn != nil && !info.complete {
		cfg.Warn(fmt.Errorf("%s was damaged or incomplete, and is rewritten; no object is lost", s.copy.path))
	}
	if err != nil {
		s.copyFailed(err)
	}
	s.beginCopy()
	return nil
}

// beginCopy writes the copy if there is no current one, and the state if it is still to be written.
// commit is held.
func (s *Store) beginCopy() {
	if s.copy.f == nil {
		s.copyFailed(s.noteDamage(guard(func() error { return s.copy.rewrite(s.db) })))
	}
	if s.unwritten == nil {
		return
	}
	err := writeState(s.path+stateSuffix, *s.unwritten)
	if err == nil {
		s.unwritten = nil
	} else {
		s.retryLater()
		err = fmt.Errorf("the revision of the objects is not kept: %w", err)
	}
	s.mu.Lock()
	s.keeping = err
	s.mu.Unlock()
}

// copyFailed records that the copy could not be written and schedules a retry; nil records success.
// commit is held.
func (s *Store) copyFailed(err error) {
	if err != nil {
		_ = s.copy.close() // a new copy is written instead
		s.retryLater()
		err = fmt.Errorf("the copy %s is not kept: %w (free space on its file system, and make it writable)", s.copy.path, err)
	}
	s.mu.Lock()
	s.copying = err
	s.mu.Unlock()
}

// failed records a transaction's error and schedules a retry; nil records success. commit is held.
func (s *Store) failed(err error) {
	if err != nil {
		s.retryLater()
	}
	s.mu.Lock()
	s.failure = err
	s.mu.Unlock()
}

// retryAfter is the delay before a failed write is retried. The retry does not wait for the next
// write, which may be long in coming, so that Health recovers with the disk.
const retryAfter = 10 * time.Second

// retryLater schedules a retry. commit is held.
func (s *Store) retryLater() {
	if s.retry == nil {
		s.retry = time.AfterFunc(retryAfter, s.tryAgain)
	}
}

func (s *Store) tryAgain() {
	s.commit.Lock()
	defer s.commit.Unlock()
	if s.closed || s.Damage() != nil {
		return
	}
	s.retry = nil
	s.mu.Lock()
	failure := s.failure
	s.mu.Unlock()
	if failure != nil {
		s.failed(s.update(rewriteMeta))
	}
	if s.copy != nil && s.Damage() == nil {
		s.beginCopy()
	}
}

// rewriteMeta changes nothing. A failed transaction may be in the file nevertheless, with a
// revision that the history does not have.
func rewriteMeta(tx *bolt.Tx) error {
	revision, err := number(tx.Bucket(metaBucket), revisionKey)
	if err != nil {
		return err
	}
	return putMeta(tx, revision)
}

// endRetries stops the retries. commit is held.
func (s *Store) endRetries() {
	s.closed = true
	if s.retry != nil {
		s.retry.Stop()
	}
}

// keepCopy appends the changes to the copy. commit is held.
func (s *Store) keepCopy(changes []Change) {
	if s.copy == nil || s.copy.f == nil { // the next copy will have them
		return
	}
	err := s.copy.append(changes)
	if err == nil && s.copy.isLong() {
		err = s.noteDamage(guard(func() error { return s.copy.rewrite(s.db) }))
	}
	s.copyFailed(err)
}
