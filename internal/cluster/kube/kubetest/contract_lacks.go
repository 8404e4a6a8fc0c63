package kubetest

import (
	"fmt"
	"runtime"
	"sync"
	"testing"
)

// hold runs a clause. It must pass; one that the target lacks must fail.
func (cl clause) hold(c *contract) {
	c.Helper()
	reason, lacks := c.Lacks[cl.name]
	if !lacks {
		cl.run(c)
		return
	}
	r := &recorder{TB: c.TB}
	c.TB, c.patience = r, littlePatience
	done := make(chan struct{})
	go func() { // its own goroutine, which Fatal can exit
		defer close(done)
		defer func() {
			if p := recover(); p != nil {
				r.Errorf("panic: %v", p)
			}
		}()
		cl.run(c)
	}()
	<-done
	if first, failed := r.first(); failed {
		r.TB.Logf("lacks it, as is known (%s): %s", reason, first)
	} else {
		r.TB.Errorf("the target lacks this clause (%s), and yet it holds: take it off the list", reason)
	}
}

// recorder records the failures of a test that is expected to fail.
type recorder struct {
	testing.TB
	mu       sync.Mutex
	failures []string
}

func (r *recorder) first() (string, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.failures) == 0 {
		return "", false
	}
	return r.failures[0], true
}

func (r *recorder) add(text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failures = append(r.failures, text)
}

// Error records a failure.
func (r *recorder) Error(args ...any) { r.add(fmt.Sprint(args...)) }

// Errorf records a failure.
func (r *recorder) Errorf(format string, args ...any) { r.add(fmt.Sprintf(format, args...)) }

// Fatal records a failure and exits the goroutine.
func (r *recorder) Fatal(args ...any) {
	r.Error(args...)
	runtime.Goexit()
}

// Fatalf records a failure and exits the goroutine.
func (r *recorder) Fatalf(format string, args ...any) {
	r.Errorf(format, args...)
	runtime.Goexit()
}
