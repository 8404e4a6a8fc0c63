package agent

import (
	"context"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth/internal/observe/status"
	"berth/internal/record/journal"
)

// An agent becomes idle after its start, and again after each burst of changes; while it is idle
// nothing happens twice.
func TestFollowIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var times atomic.Int64
		log := slog.New(slog.DiscardHandler)
		statuses := status.NewManager(log, journal.New(log))
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- followIdle(ctx, statuses, func() { times.Add(1) }) }()
		want := func(n int64, after time.Duration) {
			t.Helper()
			time.Sleep(after)
			synctest.Wait()
			if got := times.Load(); got != n {
				t.Errorf("became idle %d times, want %d", got, n)
			}
		}
		want(0, idleAfter-time.Second)
		want(1, 2*time.Second)
		want(1, time.Hour)
		for i := range 3 {
			p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web", UID: "1"}}
			statuses.Set(p, v1.PodStatus{Phase: v1.PodRunning, Message: string(rune('a' + i))})
			want(1, idleAfter-time.Second)
		}
		want(2, 2*time.Second)
		cancel()
		<-ended
	})
}
