package connlimit

import "testing"

func TestOrigin(t *testing.T) {
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
		if got := Origin(remote); got != want {
			t.Errorf("%q: got %q, want %q", remote, got, want)
		}
	}
}

// Of the origin that has the most, the oldest connection is replaced that has sent nothing, and if
// all have sent data the oldest.
func TestChooseUnadmitted(t *testing.T) {
	type c struct {
		origin any
		spoke  bool
	}
	for _, x := range []struct {
		name  string
		open  []c // the oldest first
		comes any
		want  int
	}{
		{"one", []c{{"a", false}}, "b", 0},
		{"oldest", []c{{"a", false}, {"b", false}}, "c", 0},
		{"silent before spoken", []c{{"a", true}, {"a", false}, {"a", false}}, "a", 1},
		{"oldest of those that spoke", []c{{"a", true}, {"a", true}}, "a", 0},
		{"the most", []c{{"a", false}, {"b", true}, {"b", true}}, "c", 1},
		{"the newcomer counts", []c{{"a", false}, {"b", true}}, "b", 1},
		{"all alike", []c{{1, false}, {2, false}, {3, false}}, 4, 0},
		{"the most of several", []c{{1, false}, {2, false}, {2, false}, {3, false}}, 4, 1},
		{"the newcomer counts, too", []c{{1, false}, {2, false}, {3, false}}, 3, 2},
		{"equal ones: the oldest", []c{{1, false}, {2, false}, {2, false}, {1, false}}, 3, 0},
	} {
		var open []*conn
		origins := map[any]int{x.comes: 1}
		for _, s := range x.open {
			open = append(open, &conn{origin: s.origin})
			open[len(open)-1].spoke.Store(s.spoke)
			origins[s.origin]++
		}
		if got := chooseUnadmitted(open, origins); got != open[x.want] {
			t.Errorf("%s: %+v is replaced", x.name, got)
		}
	}
}
