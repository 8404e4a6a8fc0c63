package store

import (
	"errors"

	bolt "go.etcd.io/bbolt"
)

// WithoutSync has the store not wait for the disk, for tests of many writes that lose no power.
func (s *Store) WithoutSync() { s.db.NoSync = true }

// FailAfterCommit is a transaction whose last sync fails: its revision is in the file, though it is
// told that it failed.
func (s *Store) FailAfterCommit() (revision uint64, err error) {
	s.commit.Lock()
	defer s.commit.Unlock()
	revision = s.Revision() + 1
	err = s.db.Update(func(tx *bolt.Tx) error { return putMeta(tx, revision) })
	s.failed(errors.New("sync failed"))
	return revision, err
}
