package cni

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
)

func TestRangesAreCompleted(t *testing.T) {
	for text, want := range map[string]string{
		`{"subnet": "10.88.0.0/16"}`:                           "10.88.0.1 10.88.255.254 10.88.0.1",
		`{"subnet": "10.88.0.0/24", "gateway": "10.88.0.254"}`: "10.88.0.1 10.88.0.254 10.88.0.254",
		`{"subnet": "10.88.0.0/24", "rangeStart": "10.88.0.9", "rangeEnd": "10.88.0.12", "gateway": "10.88.0.254"}`: "10.88.0.9 10.88.0.12 10.88.0.254",
		`{"subnet": "fd00:88::/64"}`: "fd00:88::1 fd00:88::ffff:ffff:ffff:ffff fd00:88::1",
	} {
		c, err := parseConfig([]byte(`{"cniVersion": "1.1.0", "name": "net", "bridge": "cni0", "ranges": [[` + text + `]]}`))
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		r := c.Ranges[0][0]
		if got := strings.Join([]string{r.Start.String(), r.End.String(), r.Gateway.String()}, " "); got != want {
			t.Errorf("%s: %s, want %s", text, got, want)
		}
	}
}

// A walk sees each address once, beginning after the last that was given, over several ranges.
func TestWalk(t *testing.T) {
	set := rangeSet{
		{Subnet: netip.MustParsePrefix("10.0.0.0/24"), Start: netip.MustParseAddr("10.0.0.2"), End: netip.MustParseAddr("10.0.0.3")},
		{Subnet: netip.MustParsePrefix("10.0.1.0/24"), Start: netip.MustParseAddr("10.0.1.7"), End: netip.MustParseAddr("10.0.1.8")},
	}
	if err := set.complete(); err != nil {
		t.Fatal(err)
	}
	for last, want := range map[string]string{
		"":         "10.0.0.2 10.0.0.3 10.0.1.7 10.0.1.8",
		"10.9.9.9": "10.0.0.2 10.0.0.3 10.0.1.7 10.0.1.8", // of a range before
		"10.0.0.2": "10.0.0.3 10.0.1.7 10.0.1.8 10.0.0.2",
		"10.0.1.8": "10.0.0.2 10.0.0.3 10.0.1.7 10.0.1.8",
	} {
		from, _ := netip.ParseAddr(last)
		var got []string
		for at := newWalk(set, from); at.next(); {
			got = append(got, at.address.String())
		}
		if !slices.Equal(got, strings.Fields(want)) {
			t.Errorf("after %q: %v, want %s", last, got, want)
		}
	}
}

// An attachment's names are of the kernel's length, its own, and the same each time.
func TestNames(t *testing.T) {
	seen := map[string]attachment{}
	for _, network := range []string{"a", "b"} {
		for _, id := range []string{strings.Repeat("0", 64), strings.Repeat("0", 63) + "1"} {
			for _, ifName := range []string{"eth0", "eth1"} {
				a := attachment{id, ifName}
				name := a.hostName(network)
				if len(name) != maxInterfaceName || name != a.hostName(network) {
					t.Errorf("%s has %d letters, want %d, and is another at each call", name, len(name), maxInterfaceName)
				}
				if _, double := seen[name]; double {
					t.Errorf("%v and %v have the name %s", seen[name], a, name)
				}
				seen[name] = a
			}
		}
	}
}
