package prober

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth/internal/runtime/action"
)

// describeCounts writes counts as "pod/container kind: successful failed unknown late, seconds,
// buckets".
func describeCounts(counts []Count) (out []string) {
	for _, c := range counts {
		out = append(out, fmt.Sprintf("%s/%s %s: %d %d %d %d, %v, %v", c.Pod.Name, c.Container, c.Kind, c.Successful, c.Failed, c.Unknown, c.Late, c.Seconds, c.Buckets))
	}
	return out
}

func TestCounts(t *testing.T) {
	takes := func(d time.Duration, o action.Outcome) func(context.Context) action.Result {
		return func(ctx context.Context) action.Result {
			select {
			case <-time.After(d):
			case <-ctx.Done():
			}
			return action.Result{Outcome: o}
		}
	}
	bubble(t, "by result and duration, over incarnations", func(t *testing.T, n *node) {
		n.set("l", takes(200*time.Millisecond, action.Success))
		n.set("r", takes(20*time.Second, action.Failure)) // longer than all bounds
		p := webPod(probeOf("l"), probeOf("r", onFailures(10)), nil)
		n.Sync(p, runs("a"))
		after(25 * time.Second)
		n.set("l", takes(time.Millisecond, action.Failure))
		after(4 * time.Second)
		n.set("r", takes(0, action.Unknown)) // one is under way, and counts for nothing, since the container is another then
		n.Sync(p, runs("b"))
		after(5 * time.Second)
		want := []string{
			"web/c Liveness: 3 1 0 0, 0.601, [1 1 1 1 1 4 4 4 4 4 4]",
			"web/c Readiness: 0 1 1 0, 20, [1 1 1 1 1 1 1 1 1 1 1]",
		}
		if diff := cmp.Diff(want, describeCounts(n.Counts())); diff != "" {
			t.Errorf("counts (-want +got):\n%s", diff)
		}
		n.Remove("u")
		if got := n.Counts(); len(got) != 0 {
			t.Errorf("counts of a pod that is gone: %q", describeCounts(got))
		}
	})
}
