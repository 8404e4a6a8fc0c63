package cpumanager

import (
	"math/rand/v2"
	"testing"

	"k8s.io/utils/cpuset"

	"berth/internal/resources/machine"
	"berth/internal/resources/topologymanager"
)

func TestHints(t *testing.T) {
	twoSockets := box{2, 1, 1, 2, 2} // nodes 0-1 of four CPUs
	tests := []struct {
		name       string
		box        box
		free, held string
		cpus       int
		on         string
		want       string
	}{
		{name: "one node", box: laptop, free: "1-7", cpus: 3, want: "0!"},
		{name: "one node, too much", box: laptop, free: "1-7", cpus: 8, want: "impossible"},
		{name: "fits everywhere", box: server, free: "0-15", cpus: 4, want: "0! 1! 2! 3! 01 02 03 12 13 23 012 013 023 123 0123"},
		{name: "reserved CPUs count for what is preferred", box: server, free: "1-15", cpus: 4, want: "1! 2! 3! 01 02 03 12 13 23 012 013 023 123 0123"},
		{name: "no node alone is free enough", box: twoSockets, free: "1-2,4-5", cpus: 3, want: "01"},
		{name: "needs two nodes", box: server, free: "0-15", cpus: 5, want: "01! 02! 03! 12! 13! 23! 012 013 023 123 0123"},
		{name: "needs all", box: server, free: "0-15", cpus: 16, want: "0123!"},
		{name: "needs more than there is", box: server, free: "0-15", cpus: 17, want: "impossible"},
		{name: "nothing is free", box: twoSockets, cpus: 1, want: "impossible"},
		{name: "must be with what it reuses", box: twoSockets, free: "0-3,6-7", held: "4-5", cpus: 4, want: "1! 01"},
		{name: "reuses CPUs of both nodes", box: twoSockets, free: "1-2", held: "3,4", cpus: 2, want: "01"},
		{name: "has them", box: server, held: "4-5", cpus: 2, want: "1! 01 12 13 012 013 123 0123"},
		{name: "sockets", box: server, free: "1-15", cpus: 4, on: alignBySocket, want: "1! 2! 3! 01! 02 03 12 13 23! 012 013 023 123 0123"},
		{name: "sockets, needs a whole one", box: server, free: "0-15", cpus: 8, on: alignBySocket, want: "01! 02 03 12 13 23! 012 013 023 123 0123"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			l := must(newLayout(test.box.machine()))
			got := hintsText(topologymanager.Hints{"cpu": computeHints(l, options{test.on: true}, demand{test.cpus, set(test.held), set(test.free)})})
			if got != test.want {
				t.Errorf("hints\n%s; want\n%s", got, test.want)
			}
		})
	}
}

// Nodes keep their numbers where there are holes between them, and a node without CPUs is none.
func TestHintsWithHoles(t *testing.T) {
	m := box{2, 1, 1, 2, 1}.machine()
	for i := range m.CPUs {
		m.CPUs[i].Node = 2 + 5*m.CPUs[i].Node
	}
	m.Nodes = []machine.Node{{ID: 0}, {ID: 2}, {ID: 7}}
	l := must(newLayout(m))
	if got, want := hintsText(topologymanager.Hints{"cpu": computeHints(l, nil, demand{1, set(""), set("0-3")})}), "2! 7! 27"; got != want {
		t.Errorf("hints %s; want %s", got, want)
	}
}

// What is chosen has the right size, is free, and lies near the hint as far as that has CPUs.
func TestChoose(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for range 3000 {
		b := box{1 + r.IntN(2), 1 + r.IntN(2), 1, 1 + r.IntN(3), 1 + r.IntN(2)}
		l := must(newLayout(b.machine()))
		d := demand{cpus: 1 + r.IntN(l.online.Size()), held: cpuset.New(), free: cpuset.New()}
		for _, id := range l.online.List() {
			switch r.IntN(4) {
			case 0:
				d.held = d.held.Union(cpuset.New(id))
			case 1, 2:
				d.free = d.free.Union(cpuset.New(id))
			}
		}
		near := topologymanager.Hint{Nodes: topologymanager.Nodes(r.IntN(1 << len(l.nodes)))}
		usable := d.free.Union(d.held)
		got, err := choose(l, nil, d, near)
		if d.cpus > usable.Size() {
			if err == nil {
				t.Fatalf("of %s, %d were taken: %s", usable, d.cpus, got)
			}
			continue
		}
		if err != nil || got.Size() != d.cpus || !got.IsSubsetOf(usable) {
			t.Fatalf("of %s, %d near %b: %s, %v", usable, d.cpus, near.Nodes, got, err)
		}
		local := usable.Intersection(l.ofNodes(near.Nodes))
		if near.Nodes != 0 && got.Intersection(local).Size() != min(d.cpus, local.Size()) {
			t.Fatalf("of %s, %d near %b: %s, although %s are there", usable, d.cpus, near.Nodes, got, local)
		}
	}
}

// With align-by-socket all CPUs of the socket are near.
func TestChooseBySocket(t *testing.T) {
	l := must(newLayout(server.machine()))
	d := demand{6, set(""), set("0-1,8-15")}
	for on, want := range map[string]string{"": "8-11,0-1", alignBySocket: "8-13"} {
		got, err := choose(l, options{on: true}, d, topologymanager.Hint{Nodes: 1 << 2})
		if err != nil || !got.Equals(set(want)) {
			t.Errorf("%q: %s, %v; want %s", on, got, err, want)
		}
	}
}
