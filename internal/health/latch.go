package health

import (
	"errors"
	"maps"
	"slices"
	"sync"
	"time"
)

// failure is an error with the time of its start.
type failure struct {
	error
	since time.Time
}

// Since returns when the failure began.
func (f failure) Since() time.Time { return f.since }

// Unwrap returns the wrapped error.
func (f failure) Unwrap() error { return f.error }

// Since returns err with its start time. The text is unchanged. A nil error stays nil.
func Since(err error, began time.Time) error {
	if err == nil {
		return nil
	}
	return failure{err, began}
}

// sinceOf returns the start of the failure, zero if unknown.
func sinceOf(err error) time.Time {
	if f, ok := errors.AsType[interface {
		error
		Since() time.Time
	}](err); ok {
		return f.Since()
	}
	return time.Time{}
}

// Latch stores the result of the last try, and since when tries fail. The zero value is healthy. It
// is safe for concurrent use.
type Latch struct {
	mu  sync.Mutex
	err error // guarded by mu; a failure, or nil
}

// Set stores the result of a try and returns the previous one. Consecutive failures have the time
// of the first.
func (l *Latch) Set(err error) (before error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	before = l.err
	l.err = follow(before, err)
	return before
}

// Err returns the error of the last try, nil if it succeeded.
func (l *Latch) Err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

// follow returns err with the time since which tries fail.
func follow(before, err error) error {
	if err == nil {
		return nil
	}
	if began := sinceOf(before); !began.IsZero() {
		return Since(err, began)
	}
	return Since(err, time.Now())
}

// Latches are latches by name, such as one per written file. The zero value is healthy. It is safe
// for concurrent use.
type Latches struct {
	mu     sync.Mutex
	failed map[string]error // guarded by mu; failures only
}

// Set stores the result of a try of name. Set a removed name to nil.
func (l *Latches) Set(name string, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err == nil {
		delete(l.failed, name)
		return
	}
	if l.failed == nil {
		l.failed = map[string]error{}
	}
	l.failed[name] = follow(l.failed[name], err)
}

// Err returns the failures of all names, ordered by name, and nil if there is none.
func (l *Latches) Err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(l.failed)) {
		errs = append(errs, l.failed[name])
	}
	return errors.Join(errs...)
}
