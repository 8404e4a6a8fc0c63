package images

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth/internal/pod"
)

// A pod with many images does not keep one with few waiting, and the order of arrival counts
// otherwise.
func TestTurnsAreFair(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns := newPullQueue(2)
		var mu sync.Mutex
		var order []string // guarded by mu
		acquire := func(uid pod.UID, image int) {
			go func() {
				if err := turns.acquire(t.Context(), claim{uid: uid, ahead: new(atomic.Bool)}); err != nil {
					t.Error(err)
				}
				mu.Lock()
				order = append(order, fmt.Sprint(uid, image))
				mu.Unlock()
				time.Sleep(time.Second)
				turns.release(uid)
			}()
			synctest.Wait()
		}
		for i := range 4 {
			acquire("a", i)
		}
		acquire("b", 0)
		acquire("c", 0)
		acquire("b", 1)
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
		turns := newPullQueue(2)
		for _, uid := range []pod.UID{"a", "b"} {
			if err := turns.acquire(t.Context(), claim{uid: uid, ahead: new(atomic.Bool)}); err != nil {
				t.Fatal(err)
			}
		}
		got := make(chan pod.UID, 2)
		for _, uid := range []pod.UID{"a", "b"} {
			go func() {
				if turns.acquire(t.Context(), claim{uid: uid, ahead: new(atomic.Bool)}) == nil {
					got <- uid
				}
			}()
			synctest.Wait()
		}
		slow := &waiter{claim: claim{uid: "c", registry: "slow", ahead: new(atomic.Bool)}}
		turns.mu.Lock()
		turns.slow["slow"] = time.Now()
		turns.waiting = append([]*waiter{slow}, turns.waiting...)
		turns.mu.Unlock()
		if positions, limit := turns.positions(); positions[slow.ahead] != 3 || len(positions) != 3 || limit != 2 {
			t.Errorf("a pull from a slow registry waits at place %d of %d, limit %d", positions[slow.ahead], len(positions), limit)
		}
		turns.mu.Lock()
		turns.waiting = turns.waiting[1:]
		turns.mu.Unlock()
		turns.release("b")
		if uid := <-got; uid != "b" {
			t.Errorf("%s is next, want b", uid)
		}
		turns.release("a")
		<-got
	})
}

func TestTurnGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns := newPullQueue(1)
		if err := turns.acquire(t.Context(), claim{uid: "a", ahead: new(atomic.Bool)}); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- turns.acquire(ctx, claim{uid: "b", ahead: new(atomic.Bool)}) }()
		synctest.Wait()
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("got %v, want cancellation", err)
		}
		turns.release("a")
		if err := turns.acquire(t.Context(), claim{uid: "c", ahead: new(atomic.Bool)}); err != nil || len(turns.waiting) != 0 {
			t.Errorf("%v, waiting %d", err, len(turns.waiting))
		}
	})
}

// A registry whose pulls are slow to fail holds up those from others once, not as often as there
// are pods that want something of it.
func TestTurnsOfSlowRegistries(t *testing.T) {
	failed := errors.New("no progress")
	tests := map[string]struct {
		took time.Duration // of the last pull from the bad registry, and how it ended
		err  error
		then error // how a quick pull ended after that
		want string
	}{
		"slow to fail":    {took: 5 * time.Minute, err: failed, then: failed, want: "good bad bad"},
		"quick to fail":   {took: time.Second, err: failed, then: failed, want: "bad bad good"},
		"slow and good":   {took: 5 * time.Minute, then: failed, want: "bad bad good"},
		"good again":      {took: 5 * time.Minute, err: failed, want: "bad bad good"},
		"failed long ago": {took: 5 * time.Minute, err: failed, want: "bad bad good"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				turns := newPullQueue(1)
				turns.recordResult("bad", tt.took, time.Now(), tt.err)
				if name == "failed long ago" {
					time.Sleep(slowExpiry + time.Second)
					turns.recordResult("good", time.Second, time.Now(), nil)
				} else {
					turns.recordResult("bad", time.Second, time.Now(), tt.then)
				}
				if err := turns.acquire(t.Context(), claim{uid: "first", registry: "good", ahead: new(atomic.Bool)}); err != nil {
					t.Fatal(err)
				}
				order := make(chan string, 3)
				for i, registry := range []string{"bad", "bad", "good"} {
					go func() {
						c := claim{uid: pod.UID(fmt.Sprint(i)), registry: registry, ahead: new(atomic.Bool)}
						if err := turns.acquire(t.Context(), c); err != nil {
							t.Error(err)
						}
						order <- registry
						turns.release(c.uid)
					}()
					synctest.Wait()
				}
				turns.release("first")
				if got := strings.Join([]string{<-order, <-order, <-order}, " "); got != tt.want {
					t.Errorf("turns of %s, want %s", got, tt.want)
				}
			})
		})
	}
}
