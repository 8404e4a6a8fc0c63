//go:build e2e

package e2e

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// An agent that is killed while its runtime makes sandboxes leaves nothing that the runtime does
// not know: neither shims nor states of runc, bundles, mounts, network namespaces, addresses or
// rules. The call is cut off with the agent, and what the runtime then tidies it does not tidy
// well.
func TestLifeAgentKilledWhileSandboxesAreMade(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.start().kill() // with which the runtime is there
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	for round := range 30 {
		names := []string{fmt.Sprintf("a%d", round), fmt.Sprintf("b%d", round)}
		for _, name := range names {
			n.write(name+".yaml", manifest(name, "serve"))
		}
		begun := func() []string { return glob(n.place.Run + "/containerd/io.containerd.grpc.v1.cri/netns/*") }
		before := begun()
		a := n.launch()
		until(t, "a sandbox to be begun", func() bool {
			return slices.ContainsFunc(begun(), func(name string) bool { return !slices.Contains(before, name) })
		})
		select {
		case <-time.After(time.Duration(random.Int64N(int64(300 * time.Millisecond)))):
		case <-n.ctx.Done():
		}
		a.kill()
		for _, name := range names {
			n.remove(name + ".yaml")
		}
	}
	n.write("stays.yaml", manifest("stays", "serve"))
	n.start()
	n.awaitReady("stays")
	n.awaitNoOrphans("after 30 agents")
	// The pods that came last may have run: the agent ends them, and then removes what the runtime
	// knows of them.
	until(t, "the runtime to have one sandbox with one container", func() bool {
		has, err := n.possessions()
		return err == nil && len(has.sandboxes) == 1 && len(has.containers) == 1
	})
}
