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

	"berth/internal/journal"
	"berth/internal/status"
)

// An agent comes to rest after its start, and again after each burst of changes; at rest nothing happens twice.
func TestFollowRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var rests atomic.Int64
		log := slog.New(slog.DiscardHandler)
		a := &Agent{ground: ground{base: base{cfg: Config{AtRest: func() { rests.Add(1) }}}, truths: truths{status: status.NewManager(log, journal.New(log))}}}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- a.followRest(ctx) }()
		want := func(n int64, after time.Duration) {
			t.Helper()
			time.Sleep(after)
			synctest.Wait()
			if got := rests.Load(); got != n {
				t.Errorf("came to rest %d times, want %d", got, n)
			}
		}
		want(0, restAfter-time.Second)
		want(1, 2*time.Second)
		want(1, time.Hour)
		for i := range 3 {
			p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web", UID: "1"}}
			a.status.Set(p, v1.PodStatus{Phase: v1.PodRunning, Message: string(rune('a' + i))})
			want(1, restAfter-time.Second)
		}
		want(2, 2*time.Second)
		cancel()
		<-ended
	})
}
