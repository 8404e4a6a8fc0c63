package server

import "testing"

// What one origin has inside leaves room for the others, until there is none at all.
func TestSharedGate(t *testing.T) {
	g := newSharedLimiter(3, 2)
	for i, c := range []struct {
		leave  bool
		origin string
		want   bool
	}{
		{false, "a", true},
		{false, "a", true},
		{false, "a", false},
		{false, "b", true},
		{false, "b", false},
		{false, "c", false},
		{true, "a", true},
		{false, "c", true},
		{false, "a", false},
		{true, "c", true},
		{true, "a", true},
		{true, "b", true},
	} {
		if c.leave {
			g.leave(c.origin)
		} else if got := g.enter(c.origin); got != c.want {
			t.Errorf("step %d, %s enters: got %t", i, c.origin, got)
		}
	}
	if g.all != 0 || len(g.inProgress) != 0 {
		t.Errorf("all have left: %d, %v", g.all, g.inProgress)
	}
}
