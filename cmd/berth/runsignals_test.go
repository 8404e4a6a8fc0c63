package main

import (
	"os"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// A signal that is sent twice in one breath, as timeout(1) does, is one signal; a second one that
// somebody means is another.
func TestAwaitSecond(t *testing.T) {
	for _, tc := range []struct {
		name  string
		after []time.Duration // when further signals come, after the first
		want  bool
	}{
		{"twice in one breath", []time.Duration{0, time.Millisecond}, false},
		{"again", []time.Duration{time.Second}, true},
		{"twice in one breath, and again", []time.Duration{0, 2 * time.Second}, true},
		{"once", nil, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				signals, done, got := make(chan os.Signal, 4), make(chan struct{}), make(chan bool, 1)
				go func() { got <- awaitSecond(signals, done) }()
				for _, d := range tc.after {
					time.AfterFunc(d, func() { signals <- syscall.SIGTERM })
				}
				time.AfterFunc(time.Minute, func() { close(done) })
				if second := <-got; second != tc.want {
					t.Errorf("a second signal: %v, want %v", second, tc.want)
				}
			})
		})
	}
}
