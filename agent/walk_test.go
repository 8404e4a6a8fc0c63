package agent_test

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"berth/agent/agenttest"
)

// Walks are random: whatever happens to pods, runtime and agent, in whatever order, the rules hold
// at every step; once the world is well again every pod reaches its goal, and a pod that is taken
// away leaves nothing.
//
// Every second one is that of a member of a cluster. BERTH_WALKS and BERTH_WALK_STEPS make more of
// them; BERTH_WALK_SEED repeats one.
func TestWalks(t *testing.T) {
	walks, steps := number(t, "BERTH_WALKS", 20), number(t, "BERTH_WALK_STEPS", 400)
	seeds := make([]uint64, walks)
	for i := range seeds {
		seeds[i] = uint64(i)
	}
	if os.Getenv("BERTH_WALK_SEED") != "" {
		seeds = []uint64{uint64(number(t, "BERTH_WALK_SEED", 0))}
	}
	for _, seed := range seeds {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { walk(t, seed, steps) })
		})
	}
}

func number(t *testing.T, variable string, fallback int) int {
	t.Helper()
	text := os.Getenv(variable)
	if text == "" {
		return fallback
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatalf("%s: %v", variable, err)
	}
	return n
}

func walk(t *testing.T, seed uint64, steps int) {
	w := newWalker(agenttest.New(t), seed)
	if seed%2 == 1 {
		w.Join()
	}
	defer func() {
		if t.Failed() {
			t.Logf("the walk of seed %d:\n%s", seed, strings.Join(w.steps, "\n"))
		}
	}()
	for range steps {
		w.step()
		if w.random.IntN(3) > 0 {
			w.Settle(time.Duration(w.random.IntN(3)) * time.Second)
		}
		if w.check(); t.Failed() {
			return
		}
	}
	w.recover()
	if w.check(); t.Failed() {
		return
	}
	w.wantGoals()
	w.takeAway()
}
