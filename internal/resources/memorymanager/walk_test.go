package memorymanager

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"

	"berth/internal/pod"
	"berth/internal/pod/lifecycle"
	"berth/internal/resources/topologymanager"
)

var types = []v1.ResourceName{v1.ResourceMemory, large}

// TestHintsAreAllThatFit compares hints with a search through all sets of nodes, on machines where
// some pods are.
func TestHintsAreAllThatFit(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	seen := map[string]int{}
	for _, nodes := range []int{1, 2, 4, 8} {
		for range 100 {
			m := newManager(t, static(nodes, ""))
			for i := range random.IntN(2 * nodes) {
				_ = admit(m, podOf(pod.UID(fmt.Sprint(i)), "app: "+amounts(random, nodes)), hint("no")) // may not fit
			}
			p := podOf("new", "app: "+amounts(random, nodes))
			want := map[topologymanager.Hint]bool{}
			c := &p.Spec.Containers[0]
			least := 0
			for mask := topologymanager.Nodes(1); mask < 1<<nodes; mask++ {
				if could(m, mask, requestOf(c)) && (least == 0 || mask.Count() < least) {
					least = mask.Count()
				}
			}
			for mask := topologymanager.Nodes(1); mask < 1<<nodes; mask++ {
				if can(m, mask, requestOf(c)) {
					want[topologymanager.Hint{Nodes: mask, Preferred: mask.Count() == least}] = true
				}
			}
			for name, list := range m.Hints(p, c) {
				got := map[topologymanager.Hint]bool{}
				for _, h := range list {
					got[h] = true
				}
				if diff := cmp.Diff(want, got); diff != "" || len(got) != len(list) {
					t.Fatalf("%s of %s on %s: %s", name, requestOf(c), shown(m, podOf("0", "app: "), podOf("1", "app: ")), diff)
				}
			}
			if got := m.Hints(p, c); len(got) != len(requestOf(c)) || cmp.Diff(got, m.PodHints(p)) != "" {
				t.Fatalf("hints are of %d types, want %d; of the pod %v", len(got), len(requestOf(c)), m.PodHints(p))
			}
			// What is allocated without a hint is the best of them.
			best, found := topologymanager.Hint{}, false
			for h := range want {
				if !found || h.Nodes.Narrower(best.Nodes) {
					best, found = h, true
				}
			}
			err := admit(m, p, hint("no"))
			if (err == nil) != found || topologymanager.NodesOf(m.Nodes("new", "app")...) != best.Nodes {
				t.Fatalf("allocated on %v, want %v; %v", m.Nodes("new", "app"), best, err)
			}
			switch {
			case !found:
				seen["nowhere"]++
			case best.Preferred:
				seen["preferred"]++
			default:
				seen["not preferred"]++
			}
		}
	}
	for _, kind := range []string{"nowhere", "preferred", "not preferred"} {
		if seen[kind] < 8 {
			t.Errorf("%s was seen %d times only", kind, seen[kind])
		}
	}
}

func amounts(random *rand.Rand, nodes int) string {
	out := fmt.Sprintf("memory=%dMi", 512*(1+random.IntN(20*min(nodes, 3))))
	if random.IntN(3) == 0 {
		out += fmt.Sprintf(" hugepages-1Gi=%dGi", 1+random.IntN(3))
	}
	return out
}

// blocks yields all blocks that containers have.
func (m *Manager) blocks(yield func(pod.UID, Block)) {
	for uid, containers := range m.assigned {
		for _, list := range containers {
			for _, b := range list {
				yield(uid, b)
			}
		}
	}
}

// could reports whether an empty machine has as much on the nodes.
func could(m *Manager, on topologymanager.Nodes, want request) bool {
	for name, size := range want {
		sum := uint64(0)
		for _, b := range m.Allocatable() {
			if b.Type == name && on.Has(b.NUMAAffinity[0]) {
				sum += b.Size
			}
		}
		if sum < size {
			return false
		}
	}
	return true
}

// can reports whether the machine has as much on the nodes now: nothing lies on other nodes, too,
// or on a part of them, and what lies there leaves enough.
func can(m *Manager, on topologymanager.Nodes, want request) bool {
	with, ok := request{}, true
	with.add(want)
	m.blocks(func(_ pod.UID, b Block) {
		switch {
		case b.nodes() == on:
			with[b.Type] += b.Size
		case b.nodes()&on != 0:
			ok = false
		}
	})
	for name := range with {
		if want[name] == 0 {
			delete(with, name)
		}
	}
	return ok && could(m, on, with)
}

// TestWalk has pods come and go, and the agent start again, and checks after each step that nothing
// was given twice, or lost.
func TestWalk(t *testing.T) {
	for _, nodes := range []int{1, 2, 4, 8} {
		admitted, refused := 0, 0
		for seed := range uint64(2) {
			random := rand.New(rand.NewPCG(seed, uint64(nodes)))
			file := stateFile(t)
			m := newManager(t, static(nodes, file))
			pods := map[pod.UID]*v1.Pod{}
			created := map[pod.UID]bool{} // pods whose init containers have given back what they had
			for step := range 250 {
				switch random.IntN(6) {
				case 0, 1, 2:
					p := randomPod(random, pod.UID(fmt.Sprint("p", step)), nodes)
					if admitNear(random, m, p) != nil {
						refused++
						m.Release(p.UID)
						break
					}
					admitted++
					pods[p.UID] = p
				case 3:
					for uid := range pods {
						m.Release(uid)
						delete(pods, uid)
						break
					}
				case 4:
					for uid, p := range pods {
						if err := m.Creating(p, p.Spec.Containers[0].Name); err != nil {
							t.Fatal(err)
						}
						created[uid] = true
						break
					}
				case 5:
					before := m.assigned
					m = newManager(t, static(nodes, file))
					if diff := cmp.Diff(before, m.assigned); diff != "" {
						t.Fatalf("step %d: not the same after a restart: %s", step, diff)
					}
					keep := map[pod.UID]bool{}
					for uid, p := range pods {
						if random.IntN(8) == 0 {
							delete(pods, uid)
							continue
						}
						keep[uid] = true
						if err := admitNear(random, m, p); err != nil {
							t.Fatalf("step %d: %s is refused after a restart: %v", step, uid, err)
						}
					}
					m.Retain(keep)
				}
				check(t, m, pods, created)
				if s := read(t, file); cmp.Diff(s.Entries, m.assigned) != "" || cmp.Diff(s.MachineState, m.nodes) != "" {
					t.Fatalf("step %d: the file has %v and %v\nwant %v and %v", step, s.Entries, s.MachineState, m.assigned, m.nodes)
				}
			}
		}
		if admitted < 30 || refused < 30 {
			t.Errorf("%d nodes: %d pods were admitted and %d refused: the walk tests little", nodes, admitted, refused)
		}
	}
}

func randomPod(random *rand.Rand, uid pod.UID, nodes int) *v1.Pod {
	var texts []string
	for i := range random.IntN(3) {
		kind := []string{"init", "side"}[random.IntN(2)]
		texts = append(texts, fmt.Sprintf("%s%d: memory=%dMi", kind, i, 512*(1+random.IntN(8))))
	}
	for i := range 1 + random.IntN(2) {
		texts = append(texts, fmt.Sprintf("app%d: %s", i, amounts(random, nodes)))
	}
	return podOf(uid, texts...)
}

// admitNear allocates as a topology manager might have it: near one of the hints, near nodes that
// others like, or anywhere.
func admitNear(random *rand.Rand, m *Manager, p *v1.Pod) error {
	for c := range pod.Containers(&p.Spec) {
		near := hint("no")
		switch random.IntN(3) {
		case 0:
			if list := m.Hints(p, c)[v1.ResourceMemory]; len(list) > 0 {
				near = list[random.IntN(len(list))]
			}
		case 1:
			near.Nodes = topologymanager.NodesOf(random.IntN(len(m.empty)))
		}
		if err := m.Allocate(p, c, near); err != nil {
			return err
		}
	}
	return nil
}

func check(t *testing.T, m *Manager, pods map[pod.UID]*v1.Pod, created map[pod.UID]bool) {
	t.Helper()
	sums := map[topologymanager.Nodes]request{}
	m.blocks(func(uid pod.UID, b Block) {
		if pods[uid] == nil {
			t.Fatalf("%s is gone and has %v", uid, b)
		}
		if sums[b.nodes()] == nil {
			sums[b.nodes()] = request{}
		}
		sums[b.nodes()][b.Type] += b.Size
	})
	for on, sum := range sums {
		if !could(m, on, sum) {
			t.Fatalf("%s: %s were given", on, sum)
		}
		for other := range sums {
			if other != on && other&on != 0 {
				t.Fatalf("both on %s and on %s something was given", on, other)
			}
		}
		// The tables say the same.
		for _, name := range types {
			if got := m.nodes.sums(on.List(), name); got.Reserved != sum[name] {
				t.Fatalf("%s: the tables have %d of %s, and blocks %d", on, got.Reserved, name, sum[name])
			}
		}
	}
	for uid, p := range pods {
		for c := range pod.Containers(&p.Spec) {
			plain := strings.HasPrefix(c.Name, "init") && !lifecycle.IsSidecar(c)
			blocks := m.Memory(uid, c.Name)
			if plain && created[uid] {
				if blocks != nil {
					t.Fatalf("%s/%s has ended and has %v", uid, c.Name, blocks)
				}
				continue
			}
			has := request{}
			for _, b := range blocks {
				has[b.Type] += b.Size
				if b.nodes() != blocks[0].nodes() {
					t.Fatalf("%s/%s lies on different nodes: %v", uid, c.Name, blocks)
				}
			}
			if plain { // it has what those after it on the same nodes have, because they do not run yet
				later := false
				for other := range pod.Containers(&p.Spec) {
					for _, b := range m.Memory(uid, other.Name) {
						if later && b.nodes() == blocks[0].nodes() {
							has[b.Type] += b.Size
						}
					}
					later = later || other.Name == c.Name
				}
			}
			for name, size := range requestOf(c) {
				if has[name] < size || !plain && has[name] != size {
					t.Fatalf("%s/%s has %s of %s", uid, c.Name, has, requestOf(c))
				}
			}
			if !slices.Equal(m.Nodes(uid, c.Name), blocks[0].NUMAAffinity) {
				t.Fatalf("%s/%s is to run on %v", uid, c.Name, m.Nodes(uid, c.Name))
			}
		}
	}
}
