package prober

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// wantStates checks how the probes stand, in the form "kind last inARow/needed next".
func (n *node) wantStates(when string, want ...string) {
	n.t.Helper()
	synctest.Wait()
	var got []string
	for _, s := range n.States("u") {
		next := "-"
		if !s.Next.IsZero() {
			next = s.Next.Sub(n.answers.began).String()
		}
		got = append(got, fmt.Sprintf("%s %s %d/%d %s", s.Kind, s.Last, s.InARow, s.Needed, next))
	}
	if d := cmp.Diff(want, got); d != "" {
		n.t.Errorf("%s (-want +got):\n%s", when, d)
	}
}

func TestStates(t *testing.T) {
	bubble(t, "how probes stand", func(t *testing.T, n *node) {
		n.wantStates("of a pod that is not known")
		p := webPod(probeOf("l", onFailures(2)), probeOf("r"), probeOf("s"))
		n.set("s", hangs(500*time.Millisecond))
		n.Sync(p, runs("a"))
		n.wantStates("while the startup probe is under way", "liveness unknown 0/2 -", "readiness unknown 0/3 -", "startup unknown 0/3 -")
		after(time.Second)
		n.wantStates("after a failure", "liveness unknown 0/2 -", "readiness unknown 0/3 -", "startup failure 1/3 10s")
		n.succeeds("s")
		n.fails("l")
		after(10 * time.Second)
		n.wantStates("started", "liveness failure 1/2 20s", "readiness success 1/1 20s", "startup success 1/1 -")
		after(10 * time.Second)
		n.wantStates("to be killed", "liveness failure 2/2 -", "readiness success 2/1 30s", "startup success 1/1 -")
		n.Sync(p, runs("b"))
		n.wantStates("the next incarnation", "liveness failure 1/2 31s", "readiness success 1/1 31s", "startup success 1/1 -")
	})
}
