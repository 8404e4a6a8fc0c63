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
	s.copy = &copyWriter{path: cfg.Path + copySuffix}
	if info.complete && info.last == s.Revision() {
		s.copy.f, err = os.OpenFile(s.copy.path, os.O_WRONLY|os.O_APPEND, 0)
		s.copy.changes = info.size
	} else {
		if info.exists && !s.recovered && cfg.Warn != nil && !info.complete {
			cfg.Warn(fmt.Errorf("%s was damaged or incomplete, and is written anew; no object is lost", s.copy.path))
		}
		err = s.copy.rewrite(s.db)
	}
	s.copyFailed(err)
	known.Generation, known.Revision = max(known.Generation, 1), s.Revision()
	if err := writeState(cfg.Path+stateSuffix, known); err != nil {
		s.copyFailed(err)
	}
	return nil
}

// copyFailed notes that the copy is not kept, nil: that it is. commit is held, or the store is
// being opened.
func (s *Store) copyFailed(err error) {
	if err != nil {
		_ = s.copy.close() // what failed is tried again with a new one
		s.copyRetry = time.Now().Add(copyRetryAfter)
		err = fmt.Errorf("the copy %s is not kept: %w (free space on its file system, and make it writable)", s.copy.path, err)
	}
	s.mu.Lock()
	s.copying = err
	s.mu.Unlock()
}

// copyRetryAfter is the time after which a copy that could not be written is tried again, by the
// next write.
const copyRetryAfter = 10 * time.Second

// keepCopy brings the copy up to date. commit is held.
func (s *Store) keepCopy(changes []Change) {
	if s.copy == nil || s.copy.f == nil && time.Now().Before(s.copyRetry) {
		return
	}
	var err error
	if s.copy.f != nil {
		err = s.copy.append(changes)
	}
	if err == nil && (s.copy.f == nil || s.copy.isLong()) {
		err = s.noteDamage(guard(func() error { return s.copy.rewrite(s.db) }))
	}
	s.copyFailed(err)
}
