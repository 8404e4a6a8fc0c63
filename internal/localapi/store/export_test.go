package store

// WithoutSync has the store not wait for the disk, for tests of many writes that lose no power.
func (s *Store) WithoutSync() { s.db.NoSync = true }
