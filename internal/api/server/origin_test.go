package server

import "testing"

func TestComputeOrigin(t *testing.T) {
	for remote, want := range map[string]string{
		"10.0.0.1:1":               "10.0.0.1",
		"10.0.0.1:65535":           "10.0.0.1",
		"[::ffff:10.0.0.1]:1":      "10.0.0.1",
		"[2001:db8::1]:1":          "2001:db8::/64",
		"[2001:db8::ffff:0:0:2]:1": "2001:db8::/64",
		"[2001:db8:0:1::1]:1":      "2001:db8:0:1::/64",
		"[fe80::1%eth0]:1":         "fe80::/64",
		"[::1]:1":                  "::/64",
		"@":                        "@",
		"":                         "",
		"pipe":                     "pipe",
	} {
		if got := computeOrigin(remote); got != want {
			t.Errorf("%q: got %q, want %q", remote, got, want)
		}
	}
}

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
	if g.all != 0 || len(g.inside) != 0 {
		t.Errorf("all have left: %d, %v", g.all, g.inside)
	}
}
