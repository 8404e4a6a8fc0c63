package store

import (
	"errors"
	"fmt"
	"runtime/debug"

	bolt "go.etcd.io/bbolt"

	"berth/internal/checkpoint"
)

// ErrDamaged is the class of errors of a file that is corrupt.
var ErrDamaged = errors.New("the file is damaged")

// Damage returns why the file is unusable, nil if it is usable. Open recovers it after Close.
func (s *Store) Damage() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.damage
}

// Damaged returns a channel that is closed when Damage returns an error.
func (s *Store) Damaged() <-chan struct{} { return s.damaged }

// guard calls f, which reads the memory-mapped file. It returns panics of f on a corrupt file, and
// memory faults of pages that the file no longer backs, as errors.
func guard(f func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if r := recover(); r != nil {
			if c, ok := r.(callback); ok {
				panic(c.cause)
			}
			err = fmt.Errorf("%w: %v", ErrDamaged, r)
		}
	}()
	return f()
}

// callback is a panic of a caller's function.
type callback struct{ cause any }

// called marks panics of a caller's function.
func called(f func(Item) bool) func(Item) bool {
	return func(i Item) bool {
		fine := false
		defer func() {
			if !fine {
				panic(callback{recover()})
			}
		}()
		more := f(i)
		fine = true
		return more
	}
}

func (s *Store) view(f func(*bolt.Tx) error) error {
	if err := s.Damage(); err != nil {
		return err
	}
	return s.noteDamage(guard(func() error { return s.db.View(f) }))
}

// update runs a write transaction. commit is held.
func (s *Store) update(f func(*bolt.Tx) error) error {
	if err := s.Damage(); err != nil {
		return err
	}
	if err := checkpoint.Allow(s.path, 1); err != nil {
		return err
	}
	return s.noteDamage(guard(func() error { return s.db.Update(f) }))
}

// noteDamage records an error of class ErrDamaged.
func (s *Store) noteDamage(err error) error {
	if !errors.Is(err, ErrDamaged) {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.damage == nil {
		s.damage = fmt.Errorf("%s: %w", s.path, err)
		close(s.damaged)
	}
	return s.damage
}
