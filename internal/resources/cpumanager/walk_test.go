package cpumanager

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/cpuset"

	"berth/internal/pod"
	"berth/internal/pod/lifecycle"
	"berth/internal/resources/topologymanager"
)

// TestWalk lets pods come and go, and agents start again, at random: no CPU belongs to two, none is
// lost, and the file is what is in memory.
func TestWalk(t *testing.T) {
	boxes := []box{small, laptop, server, {1, 1, 2, 2, 2}, {2, 1, 1, 3, 1}, {2, 1, 1, 2, 2}}
	ways := [][]string{nil, {fullPhysicalCPUs}, {strictReservation}, {strictReservation, fullPhysicalCPUs}, {alignBySocket}}
	for i, b := range boxes {
		for j, on := range ways {
			t.Run(fmt.Sprintf("%v %v", b, on), func(t *testing.T) {
				w := &walk{T: t, r: rand.New(rand.NewPCG(uint64(i), uint64(j))), pods: map[pod.UID]*v1.Pod{}, cfg: configOf(t, b, on...)}
				w.m = load(t, w.cfg)
				for range 80 {
					w.step()
					w.check()
				}
				if w.given < 10 || w.refused < 2 {
					t.Errorf("the walk gave CPUs %d times, and refused them %d times", w.given, w.refused)
				}
			})
		}
	}
}

type walk struct {
	*testing.T
	r    *rand.Rand
	cfg  Config
	m    *CPUManager
	pods map[pod.UID]*v1.Pod // those that were admitted
	last int

	given, refused int
}

func (w *walk) step() {
	uids := slices.Sorted(maps.Keys(w.pods))
	switch n := w.r.IntN(10); {
	case n < 5:
		w.arrive()
	case n < 8 && len(uids) > 0:
		uid := uids[w.r.IntN(len(uids))]
		w.m.Release(uid)
		delete(w.pods, uid)
	case n == 8:
		before := w.m.store.current()
		w.m = load(w.T, w.cfg)
		if !reflect.DeepEqual(texts(before), texts(w.m.store.current())) {
			w.Fatalf("a new agent has %v; want %v", texts(w.m.store.current()), texts(before))
		}
		for _, p := range w.pods {
			if _, err := admit(w.m, p); err != nil {
				w.Fatalf("pod %s is refused after a restart: %v", p.UID, err)
			}
		}
	case n == 9:
		keep := map[pod.UID]bool{}
		for _, uid := range uids {
			if w.r.IntN(4) > 0 {
				keep[uid] = true
			} else {
				delete(w.pods, uid)
			}
		}
		w.m.Retain(keep)
	}
}

// arrive admits a pod with hints, as the topology manager does: of the pod, or of each container.
func (w *walk) arrive() {
	w.last++
	var asks []ask
	for i := range 1 + w.r.IntN(4) {
		kind := []string{"", "", "init", "sidecar"}[w.r.IntN(4)]
		cpu := fmt.Sprint((1 + w.r.IntN(3)) * w.m.policy.options.take(w.m.policy.layout.threads).GroupSize)
		if w.r.IntN(5) == 0 {
			cpu = "700m"
		}
		asks = append(asks, ask{fmt.Sprint("c", i), cpu, kind})
	}
	p := podOf(fmt.Sprint("p", w.last), asks...)
	whole := w.r.IntN(2) == 0
	near, possible := w.one(w.m.PodHints(p))
	if whole && !possible {
		w.refused++
		return
	}
	for c := range pod.Containers(&p.Spec) {
		if !whole {
			near, possible = w.one(w.m.Hints(p, c))
		}
		err := w.m.Allocate(p, c, near)
		if (err == nil) != possible {
			w.Fatalf("hint %+v, possible %v: container %s of %v: %v; pools %v", near, possible, c.Name, asks, err, texts(w.m.store.current()))
		}
		if err != nil {
			w.refused++
			w.m.Release(p.UID)
			return
		}
		w.checkNear(p.UID, c.Name, near)
	}
	w.pods[p.UID] = p
}

// one returns any of the hints, and whether there is one.
func (w *walk) one(h topologymanager.Hints) (topologymanager.Hint, bool) {
	hints := h[v1.ResourceCPU]
	switch {
	case hints == nil:
		return topologymanager.Hint{}, true
	case len(hints) == 0:
		return topologymanager.Hint{}, false
	}
	return hints[w.r.IntN(len(hints))], true
}

// checkNear makes sure that the container has what a hint promised.
func (w *walk) checkNear(uid pod.UID, name string, near topologymanager.Hint) {
	cpus := w.m.Exclusive(uid, name)
	if cpus.IsEmpty() {
		return
	}
	w.given++
	local := w.m.policy.layout.ofNodes(near.Nodes)
	if w.m.policy.options[alignBySocket] {
		local = w.m.policy.layout.ofSockets(near.Nodes)
	}
	if near.Nodes != 0 && !cpus.IsSubsetOf(local) {
		w.Fatalf("container %s of pod %s has %s, and was to be near %b", name, uid, cpus, near.Nodes)
	}
	if w.m.policy.options[fullPhysicalCPUs] && !w.m.policy.layout.wholeCores(cpus).Equals(cpus) {
		w.Fatalf("container %s of pod %s has %s, which are not whole cores", name, uid, cpus)
	}
}

func (w *walk) check() {
	now := w.m.store.current()
	owner := map[int]string{}
	claim := func(who string, cpus cpuset.CPUSet) {
		for _, cpu := range cpus.List() {
			if other, ok := owner[cpu]; ok {
				w.Fatalf("CPU %d belongs to %s and %s; pools %v", cpu, other, who, texts(now))
			}
			owner[cpu] = who
		}
	}
	claim("all", now.shared)
	if w.m.policy.options[strictReservation] {
		claim("the host", w.m.policy.reserved)
	} else if !w.m.policy.reserved.IsSubsetOf(now.shared) {
		w.Fatalf("reserved CPUs are not shared: %v", texts(now))
	}
	for uid := range now.owned {
		p := w.pods[uid]
		if p == nil {
			w.Fatalf("pod %s is gone and has %v", uid, texts(now))
		}
		claim(string(uid), union(now.owned[uid]))
		w.checkPod(p)
	}
	if len(owner) != w.m.policy.layout.online.Size() {
		w.Fatalf("CPUs are lost: %v", texts(now))
	}
	content, err := os.ReadFile(w.cfg.StateFile)
	if want := must(encode(Static, now)); err != nil || string(content) != string(want) {
		w.Fatalf("the file is %s, %v; want %s", content, err, want)
	}
}

// checkPod makes sure that containers of a pod that run side by side have CPUs of their own.
func (w *walk) checkPod(p *v1.Pod) {
	beside := cpuset.New()
	for c := range pod.Containers(&p.Spec) {
		cpus := w.m.Exclusive(p.UID, c.Name)
		if want := exclusiveCPUs(p, c, Gates{}); cpus.Size() != want {
			w.Fatalf("container %s of pod %s has %s; want %d", c.Name, p.UID, cpus, want)
		}
		if both := beside.Intersection(cpus); !both.IsEmpty() {
			w.Fatalf("container %s of pod %s has %s, of which one beside it has %s", c.Name, p.UID, cpus, both)
		}
		if lifecycle.IsSidecar(c) || pod.FindContainer(&v1.PodSpec{Containers: p.Spec.Containers}, c.Name) != nil {
			beside = beside.Union(cpus)
		}
	}
}

// texts are pools in a form that compares.
func texts(p pools) map[string]string {
	out := map[string]string{"shared": p.shared.String()}
	for uid, containers := range p.owned {
		for name, cpus := range containers {
			out[strings.Join([]string{string(uid), name}, "/")] = cpus.String()
		}
	}
	return out
}
