package server

import "testing"

func TestComputeShare(t *testing.T) {
	for _, c := range []struct {
		n     int
		files uint64
		want  int
	}{
		{1024, 0, 1024},
		{1024, 1 << 62, 1024},
		{1024, manyFiles, 1024},
		{1024, manyFiles - 1, 1023},
		{1024, 1024, 128},
		{1024, 64, minConnections},
		{0, 1024, 0},
	} {
		if got := computeShare(c.n, c.files); got != c.want {
			t.Errorf("%d of %d files: got %d, want %d", c.n, c.files, got, c.want)
		}
	}
}

// All that clients can have open leaves the agent more than half of its files, however many those
// are.
func TestClientsLeaveFiles(t *testing.T) {
	for _, files := range []uint64{1024, 4096, manyFiles, 20000} {
		open := computeShare(maxForwarded, files)
		for _, l := range []limits{localLimits, secureLimits, readOnlyLimits, readOnlyLimits} {
			known := computeShare(l.known, files)
			open += known + computeShare(l.strangers, files)
			open += min(known, l.streams) // what each is joined to
		}
		if uint64(2*open) > files {
			t.Errorf("of %d files clients can have %d", files, open)
		}
	}
}

// Of the origin that has the most the oldest leaves that has said nothing, and if all have spoken
// the oldest.
func TestChooseLeaving(t *testing.T) {
	type c struct {
		origin string
		spoke  bool
	}
	for _, x := range []struct {
		name      string
		strangers []c // the oldest first
		comes     string
		want      int
	}{
		{"one", []c{{"a", false}}, "b", 0},
		{"oldest", []c{{"a", false}, {"b", false}}, "c", 0},
		{"silent before spoken", []c{{"a", true}, {"a", false}, {"a", false}}, "a", 1},
		{"oldest of those that spoke", []c{{"a", true}, {"a", true}}, "a", 0},
		{"the most", []c{{"a", false}, {"b", true}, {"b", true}}, "c", 1},
		{"the newcomer counts", []c{{"a", false}, {"b", true}}, "b", 1},
	} {
		var strangers []*conn
		origins := map[string]int{x.comes: 1}
		for _, s := range x.strangers {
			strangers = append(strangers, &conn{origin: s.origin})
			strangers[len(strangers)-1].spoke.Store(s.spoke)
			origins[s.origin]++
		}
		if got := chooseLeaving(strangers, origins); got != strangers[x.want] {
			t.Errorf("%s: %+v leaves", x.name, got)
		}
	}
}
