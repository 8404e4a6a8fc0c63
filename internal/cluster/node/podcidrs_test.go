package node

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// The runtime is told each new range once, again if it does not take it, and nothing while there is
// none.
func TestPodCIDRs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex // of the three
		var now, told []string
		var fails error
		set := func(change func()) {
			mu.Lock()
			defer mu.Unlock()
			change()
		}
		var log bytes.Buffer
		c := NewPodCIDRs(
			func() []string {
				mu.Lock()
				defer mu.Unlock()
				return now
			},
			func(_ context.Context, cidrs []string) error {
				mu.Lock()
				defer mu.Unlock()
				told = append(told, strings.Join(cidrs, ","))
				return fails
			},
			slog.New(slog.NewTextHandler(&log, nil)),
		)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- c.Run(ctx) }()
		expect := func(step, want string) {
			t.Helper()
			c.Wake()
			synctest.Wait()
			set(func() {
				if got := strings.Join(told, " "); got != want {
					t.Errorf("%s: told %q, want %q", step, got, want)
				}
			})
		}
		synctest.Wait()
		expect("no range yet", "")
		set(func() { now = []string{"10.244.1.0/24", "fd00:1::/64"} })
		expect("a range of each family", "10.244.1.0/24,fd00:1::/64")
		expect("unchanged", "10.244.1.0/24,fd00:1::/64")
		set(func() { now = nil })
		expect("taken back", "10.244.1.0/24,fd00:1::/64")
		set(func() { now, fails = []string{"10.244.2.0/24"}, errors.New("not now") })
		expect("refused", "10.244.1.0/24,fd00:1::/64 10.244.2.0/24")
		time.Sleep(podCIDRRetry)
		expect("refused again", "10.244.1.0/24,fd00:1::/64 10.244.2.0/24 10.244.2.0/24 10.244.2.0/24")
		if n := strings.Count(log.String(), "not now"); n != 1 {
			t.Errorf("the failure was told %d times:\n%s", n, &log)
		}
		set(func() { fails = nil })
		time.Sleep(podCIDRRetry)
		synctest.Wait()
		set(func() { told = nil })
		time.Sleep(time.Hour)
		expect("taken", "")
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("Run: %v", err)
		}
	})
}
