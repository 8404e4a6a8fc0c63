package images

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth/internal/pod"
)

// A pod with many images does not keep one with few waiting, and the order of arrival counts otherwise.
func TestTurnsAreFair(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns := newTurns(2)
		var mu sync.Mutex
		var order []string // guarded by mu
		take := func(uid pod.UID, image int) {
			go func() {
				if err := turns.take(t.Context(), uid, new(atomic.Bool)); err != nil {
					t.Error(err)
				}
				mu.Lock()
				order = append(order, fmt.Sprint(uid, image))
				mu.Unlock()
				time.Sleep(time.Second)
				turns.give(uid)
			}()
			synctest.Wait()
		}
		for i := range 4 {
			take("a", i)
		}
		take("b", 0)
		take("c", 0)
		take("b", 1)
		time.Sleep(time.Minute)
		synctest.Wait()
		// Both turns of a end at the same moment, and so do those after them.
		if diff := cmp.Diff([]string{"a0", "a1"}, order[:2]); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		rank := map[string]int{}
		for i, o := range order {
			rank[o] = i
		}
		for _, first := range []string{"b0", "c0"} {
			if rank[first] > 3 {
				t.Errorf("order %v: %s waits behind those of a pod that has had its turn", order, first)
			}
		}
		if len(order) != 7 || len(turns.running)+len(turns.last) != 0 || turns.free != 2 {
			t.Errorf("order %v; left running %v, free %d", order, turns.running, turns.free)
		}
	})
}

// A pod that has a pull running waits for one that has none, though that one's last turn was later.
func TestTurnsCountRunningPulls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns := newTurns(2)
		for _, uid := range []pod.UID{"a", "b"} {
			if err := turns.take(t.Context(), uid, new(atomic.Bool)); err != nil {
				t.Fatal(err)
			}
		}
		got := make(chan pod.UID, 2)
		for _, uid := range []pod.UID{"a", "b"} {
			go func() {
				if turns.take(t.Context(), uid, new(atomic.Bool)) == nil {
					got <- uid
				}
			}()
			synctest.Wait()
		}
		turns.give("b")
		if uid := <-got; uid != "b" {
			t.Errorf("%s is next, want b", uid)
		}
		turns.give("a")
		<-got
	})
}

func TestTurnGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns := newTurns(1)
		if err := turns.take(t.Context(), "a", new(atomic.Bool)); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- turns.take(ctx, "b", new(atomic.Bool)) }()
		synctest.Wait()
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("got %v, want cancellation", err)
		}
		turns.give("a")
		if err := turns.take(t.Context(), "c", new(atomic.Bool)); err != nil || len(turns.waiting) != 0 {
			t.Errorf("%v, waiting %d", err, len(turns.waiting))
		}
	})
}
