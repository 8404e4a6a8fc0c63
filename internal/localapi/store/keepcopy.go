package store

import (
	"fmt"
	"os"
	"time"

	bolt "go.etcd.io/bbolt"
)

// openCopy begins to keep the copy. A copy that cannot be written is reported by Health.
func (s *Store) openCopy(cfg Config, info copyInfo) (err error) {
	known, _ := readState(cfg.Path + stateSuffix) // what is wrong with it was reported
	s.recovery = known.Recovery
	if now := s.Revision(); now < known.Revision { // another file was put in its place
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
		cfg.Warn(fmt.Errorf("%s was damaged or incomplete, and is written anew; no object is lost", s.copy.path))
	}
	if err != nil {
		s.copyFailed(err)
	}
	s.beginCopy()
	return nil
}

// beginCopy writes the copy if there is none that is kept, and the state if it could not be
// written. commit is held.
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

// copyFailed notes that the copy is not kept, and has it tried again; nil: that it is. commit is
// held.
func (s *Store) copyFailed(err error) {
	if err != nil {
		_ = s.copy.close() // what failed is tried again with a new one
		s.retryLater()
		err = fmt.Errorf("the copy %s is not kept: %w (free space on its file system, and make it writable)", s.copy.path, err)
	}
	s.mu.Lock()
	s.copying = err
	s.mu.Unlock()
}

// failed notes what a transaction failed with, and has another one tried; nil: that it did not
// fail. commit is held.
func (s *Store) failed(err error) {
	if err != nil {
		s.retryLater()
	}
	s.mu.Lock()
	s.failure = err
	s.mu.Unlock()
}

// retryAfter is the time after which what could not be written is tried again. It waits for no
// write, as there may be none for long, and Health would go on telling of a disk that is well.
const retryAfter = 10 * time.Second

// retryLater has a retry come. commit is held.
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

// rewriteMeta changes nothing. What failed may be in the file nevertheless, with a revision that
// the history has not.
func rewriteMeta(tx *bolt.Tx) error {
	revision, err := number(tx.Bucket(metaBucket), revisionKey)
	if err != nil {
		return err
	}
	return putMeta(tx, revision)
}

// endRetries ends what goes on in the background. commit is held.
func (s *Store) endRetries() {
	s.closed = true
	if s.retry != nil {
		s.retry.Stop()
	}
}

// keepCopy brings the copy up to date. commit is held.
func (s *Store) keepCopy(changes []Change) {
	if s.copy == nil || s.copy.f == nil { // the next copy has them
		return
	}
	err := s.copy.append(changes)
	if err == nil && s.copy.isLong() {
		err = s.noteDamage(guard(func() error { return s.copy.rewrite(s.db) }))
	}
	s.copyFailed(err)
}
