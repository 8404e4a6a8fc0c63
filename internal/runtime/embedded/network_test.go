package embedded

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/internal/checkpoint/checkpointtest"
	"berth/internal/host/preflight"
)

func TestComputeSubnets(t *testing.T) {
	prefixes := func(texts ...string) (out []netip.Prefix) {
		for _, s := range texts {
			out = append(out, netip.MustParsePrefix(s))
		}
		return out
	}
	taken := func(texts ...string) (out []neighbour) {
		for _, p := range prefixes(texts...) {
			out = append(out, neighbour{p, "interface eth0"})
		}
		return out
	}
	wanted := func(texts ...string) rangeRequest { return rangeRequest{subnets: prefixes(texts...)} }
	had := func(texts ...string) network { return network{Subnets: prefixes(texts...)} }
	assigned := func(texts ...string) rangeRequest { return rangeRequest{prefixes(texts...), true} }
	gave := func(texts ...string) network { return network{Subnets: prefixes(texts...), Assigned: true} }
	const inUse = true
	for name, c := range map[string]struct {
		rangeRequest rangeRequest
		before       network
		inUse        bool
		taken        []neighbour
		want         string // the ranges, or a part of the error
	}{
		"first":                     {rangeRequest{}, network{}, false, taken("192.168.1.0/24"), "10.88.0.0/16"},
		"next":                      {rangeRequest{}, network{}, false, taken("10.88.4.0/24", "10.89.0.0/16"), "10.90.0.0/16"},
		"all of 10":                 {rangeRequest{}, network{}, false, taken("10.0.0.0/8"), "172.20.0.0/16"},
		"default route":             {rangeRequest{}, network{}, false, taken("0.0.0.0/0"), "10.88.0.0/16"},
		"nothing free":              {rangeRequest{}, network{}, false, taken("10.0.0.0/8", "172.16.0.0/12"), "name a free range"},
		"remembered":                {rangeRequest{}, had("10.95.0.0/16"), false, nil, "10.95.0.0/16"},
		"remembered, taken since":   {rangeRequest{}, had("10.88.0.0/16"), false, taken("10.88.0.0/24"), "10.89.0.0/16"},
		"remembered, taken, in use": {rangeRequest{}, had("10.88.0.0/16"), inUse, taken("10.88.0.0/24"), "10.88.0.0/16"},
		"remembered of a cluster":   {rangeRequest{}, gave("10.244.0.0/24"), false, nil, "10.88.0.0/16"},
		"wanted":                    {wanted("10.200.0.0/24"), network{}, false, nil, "10.200.0.0/24"},
		"wanted, of both families":  {wanted("10.200.0.0/24", "fd00::/64"), network{}, false, nil, "10.200.0.0/24,fd00::/64"},
		"wanted before remembered":  {wanted("10.200.0.0/24"), had("10.88.0.0/16"), false, nil, "10.200.0.0/24"},
		"wanted, another in use":    {wanted("10.200.0.0/24"), had("10.88.0.0/16"), inUse, nil, "10.200.0.0/24"},
		"wanted, taken":             {wanted("10.200.0.0/24"), network{}, false, taken("10.0.0.0/8"), "it overlaps 10.0.0.0/8 of interface eth0; choose another"},
		"wanted, the second taken":  {wanted("10.200.0.0/24", "fd00::/64"), network{}, false, taken("fd00::/48"), "pod range fd00::/64: the range is taken"},
		"assigned":                  {assigned("10.244.1.0/24"), network{}, false, nil, "10.244.1.0/24"},
		"assigned and in use":       {assigned("10.244.1.0/24"), gave("10.244.1.0/24"), inUse, taken("10.244.1.0/24"), "10.244.1.0/24"},
		"assigned, taken":           {assigned("10.244.1.0/24"), gave("10.244.2.0/24"), inUse, taken("10.244.1.0/24"), "the range is taken"},
		"nothing assigned yet":      {assigned(), network{}, false, nil, ""},
		"assigned before":           {assigned(), gave("10.244.1.0/24"), false, nil, "10.244.1.0/24"},
		"chosen before":             {assigned(), had("10.88.0.0/16"), inUse, nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			c.before.inUse = c.inUse
			out, err := computeSubnets(c.rangeRequest, c.before, c.taken)
			got := network{Subnets: out}.ranges()
			if err != nil {
				got = err.Error()
			}
			if got != c.want && (err == nil || !strings.Contains(got, c.want)) {
				t.Errorf("got %s, want %s", got, c.want)
			}
		})
	}
}

// Agents that choose one after the other, before any has a bridge, choose different ranges and stay
// with them.
func TestEnsureNetwork(t *testing.T) {
	claims := t.TempDir()
	a, b := newPaths(filepath.Join(t.TempDir(), "a"), ""), newPaths(filepath.Join(t.TempDir(), "b"), "")
	asked := 0
	none := []netip.Prefix(nil)
	choose := func(p paths, wanted []netip.Prefix) network {
		t.Helper()
		n, err := ensureNetwork(p, rangeRequest{subnets: wanted}, claims, func() string { asked++; return preflight.Nftables })
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	first, second := choose(a, none), choose(b, none)
	if first.Subnets[0].Overlaps(second.Subnets[0]) {
		t.Errorf("both chose: %s and %s", first.ranges(), second.ranges())
	}
	if again := choose(a, none); !reflect.DeepEqual(again, first) {
		t.Errorf("chose %+v and then %+v", first, again)
	}
	if asked != 2 {
		t.Errorf("asked %d times for the firewall, want once for each agent", asked)
	}
	if _, err := ensureNetwork(a, rangeRequest{subnets: second.Subnets}, claims, nil); err == nil || !strings.Contains(err.Error(), "another berth") {
		t.Errorf("error %v, want one that names the other agent", err)
	}

	// A removed agent claims nothing, whether it tidied up or not.
	if err := os.RemoveAll(b.root); err != nil {
		t.Fatal(err)
	}
	c := newPaths(filepath.Join(t.TempDir(), "c"), "")
	if n := choose(c, second.Subnets); n.ranges() != second.ranges() {
		t.Errorf("chose %s, want the range %s that was given up", n.ranges(), second.ranges())
	}
	links := func() (out []string) {
		t.Helper()
		entries, err := os.ReadDir(claims)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			out = append(out, e.Name())
		}
		return out
	}

	// One that changes its mind claims the new range alone, and one that is gone leaves no link
	// behind.
	choose(c, []netip.Prefix{netip.MustParsePrefix("10.200.0.0/16"), netip.MustParsePrefix("fd00:200::/64")})
	if links := links(); !slices.Contains(links, "fd00:200::-64") || !slices.Contains(links, "10.200.0.0-16") {
		t.Errorf("links %v, want one for each range", links)
	}
	if err := os.RemoveAll(c.root); err != nil {
		t.Fatal(err)
	}
	c = newPaths(filepath.Join(t.TempDir(), "again"), "")
	choose(c, second.Subnets)
	if diff := cmp.Diff([]string{claimName(first.Subnets[0]), claimName(second.Subnets[0])}, links()); diff != "" {
		t.Errorf("links (-want +got):\n%s", diff)
	}
	if err := unclaim(claims, c.network.file); err != nil {
		t.Fatal(err)
	}
	left, err := claimed(claims, "")
	if err != nil || len(left) != 1 || left[0].prefix != first.Subnets[0] {
		t.Errorf("claims %v, error %v; want only %s", left, err, first.ranges())
	}
}

// Agents that choose at the same time choose different ranges.
func TestEnsureNetworkAtOnce(t *testing.T) {
	const agents = 8
	claims := filepath.Join(t.TempDir(), "claims")
	type choice struct {
		network
		err error
	}
	choices := make(chan choice, agents)
	for range agents {
		p := newPaths(t.TempDir(), "")
		go func() {
			n, err := ensureNetwork(p, rangeRequest{}, claims, func() string { return preflight.Nftables })
			choices <- choice{n, err}
		}()
	}
	seen := map[string]bool{}
	for range agents {
		c := <-choices
		if c.err != nil || seen[c.ranges()] {
			t.Errorf("chose %s, error %v; ranges of others %v", c.ranges(), c.err, seen)
		}
		seen[c.ranges()] = true
	}
}

func TestEnsureNetworkCorrupt(t *testing.T) {
	p := newPaths(t.TempDir(), "")
	if err := os.MkdirAll(p.settings, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(p.network.file, []byte("{"), 0o644); err != nil {
		t.Fatal(err)
	}
	n, err := ensureNetwork(p, rangeRequest{}, t.TempDir(), func() string { return preflight.Iptables })
	if err != nil || len(n.Subnets) != 1 || n.Firewall != preflight.Iptables {
		t.Errorf("network %+v, error %v; want a new choice", n, err)
	}
	if aside, err := os.ReadFile(p.network.file + ".corrupt"); err != nil || string(aside) != "{" {
		t.Errorf("the corrupt file was not set aside: %q, %v", aside, err)
	}
}

// A folder in the place of the claim of a range keeps nobody from the range.
func TestEnsureNetworkWithAFolderInPlaceOfItsClaim(t *testing.T) {
	p, claims := newPaths(t.TempDir(), ""), t.TempDir()
	choose := func() (network, error) {
		return ensureNetwork(p, rangeRequest{}, claims, func() string { return preflight.Iptables })
	}
	before, err := choose()
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(claims, claimName(before.Subnets[0]))
	if err := errors.Join(os.Remove(file), os.MkdirAll(file+"/more", 0o755)); err != nil {
		t.Fatal(err)
	}
	after, err := choose()
	if err != nil || !slices.Equal(after.Subnets, before.Subnets) {
		t.Errorf("network %+v, error %v; want that of before: %+v", after, err, before)
	}
	if owner, err := os.Readlink(file); err != nil || owner != p.network.file {
		t.Errorf("the claim is of %q, error %v", owner, err)
	}
}

// An agent whose disk takes nothing goes on with the network that it has; a new one is not chosen
// without being remembered.
func TestDiskThatTakesNoNetwork(t *testing.T) {
	checkpointtest.Each(t, func(t *testing.T, fail func(string) func()) {
		claims := t.TempDir()
		known, fresh := newPaths(t.TempDir(), ""), newPaths(t.TempDir(), "")
		choose := func(p paths) (network, error) {
			return ensureNetwork(p, rangeRequest{}, claims, func() string { return preflight.Iptables })
		}
		before, err := choose(known)
		if err != nil {
			t.Fatal(err)
		}
		defer fail(known.root)()
		if now, err := choose(known); err != nil || !reflect.DeepEqual(now, before) {
			t.Errorf("chose %v, %v; had %v", now, err, before)
		}
		mend := fail(fresh.root)
		if _, err := choose(fresh); err == nil || !strings.Contains(err.Error(), "write "+fresh.network.file+": ") {
			t.Errorf("error %v", err)
		}
		mend()
		if _, err := choose(fresh); err != nil {
			t.Error(err)
		}
	})
}

// The range that was chosen before there could be several is kept.
func TestNetworkOfBefore(t *testing.T) {
	p := newPaths(t.TempDir(), "")
	if err := os.MkdirAll(p.settings, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(p.network.file, []byte(`{"version": 1, "subnet": "10.123.0.0/16", "firewall": "nftables"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	n, err := ensureNetwork(p, rangeRequest{}, t.TempDir(), nil)
	if err != nil || n.ranges() != "10.123.0.0/16" || n.Bridge != p.network.bridge {
		t.Errorf("network %+v, error %v", n, err)
	}
	b, err := os.ReadFile(p.network.file)
	if err != nil || strings.Contains(string(b), `"subnet"`) {
		t.Errorf("wrote %s, error %v", b, err)
	}
}

// Another range of IPv4 needs another bridge while pods are in the one before; ranges that overlap
// theirs cannot be had.
func TestComputeBridge(t *testing.T) {
	prefixes := func(texts string) (out []netip.Prefix) {
		for _, s := range strings.Fields(texts) {
			out = append(out, netip.MustParsePrefix(s))
		}
		return out
	}
	for name, c := range map[string]struct {
		before, next string
		up           []string
		want         string // the bridge, or a part of the error
	}{
		"another range":            {"10.1.0.0/24", "10.2.0.0/24", []string{"b"}, "b-2"},
		"back again":               {"10.1.0.0/24", "10.2.0.0/24", []string{"b", "b-2"}, "b-3"},
		"none is free":             {"10.1.0.0/24", "10.2.0.0/24", []string{"b", "b-2", "b-3"}, "pods of 3 ranges before it still run"},
		"IPv6 besides":             {"10.1.0.0/24", "10.1.0.0/24 fd00::/64", []string{"b"}, "b"},
		"no IPv6 any more":         {"10.1.0.0/24 fd00::/64", "10.1.0.0/24", []string{"b"}, "b"},
		"another of IPv6":          {"10.1.0.0/24 fd00::/64", "10.1.0.0/24 fd01::/64", []string{"b"}, "b"},
		"a part of the one before": {"10.1.0.0/16", "10.1.7.0/24", []string{"b"}, "it overlaps 10.1.0.0/16, of which pods that run have addresses"},
		"a wider one of IPv6":      {"fd00::/64", "fd00::/48", []string{"b"}, "it overlaps fd00::/64"},
		"IPv4 changes, IPv6 stays": {"10.1.0.0/24 fd00::/64", "10.2.0.0/24 fd00::/64", []string{"b"}, "it overlaps fd00::/64"},
	} {
		t.Run(name, func(t *testing.T) {
			n := network{Bridge: "b", Subnets: prefixes(c.next), previous: prefixes(c.before)}
			got, err := computeBridge(n, []string{"b", "b-2", "b-3"}, func(name string) bool { return slices.Contains(c.up, name) })
			if err != nil {
				got = err.Error()
			}
			if got != c.want && (err == nil || !strings.Contains(got, c.want)) {
				t.Errorf("got %s, want %s", got, c.want)
			}
		})
	}
}

// A range that nobody remembers is still that of the pods that run: an interface that is up says
// which it is. The loopback stands for their bridge.
func TestNetworkThatIsUpAndForgotten(t *testing.T) {
	p := newPaths(t.TempDir(), "")
	if err := writeJSON(p.network.file, network{Version: 2, Assigned: true, Bridge: "lo", Firewall: preflight.Nftables}); err != nil {
		t.Fatal(err)
	}
	w := rangeRequest{subnets: []netip.Prefix{netip.MustParsePrefix("10.201.0.0/24")}, assigned: true}
	n, err := ensureNetwork(p, w, t.TempDir(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if n.Bridge != p.network.bridge || !slices.Contains(n.previous, netip.MustParsePrefix("127.0.0.0/8")) {
		t.Errorf("the bridge is %s, and %v is left; want another bridge than lo, and its range", n.Bridge, n.previous)
	}
}

// What a flipped bit makes of the file is no choice of a firewall.
func TestNetworkIsChecked(t *testing.T) {
	for firewall, fine := range map[string]bool{"": true, preflight.Nftables: true, preflight.Iptables: true, "nftablds": false} {
		if err := (network{Firewall: firewall}).check(); (err == nil) != fine {
			t.Errorf("firewall %q: %v", firewall, err)
		}
	}
}

// A bridge of another root directory, or of a flipped bit, is not made; the range stays.
func TestBridgeOfAnotherRoot(t *testing.T) {
	p := newPaths(t.TempDir(), "")
	subnets := []netip.Prefix{netip.MustParsePrefix("10.201.7.0/24")}
	if err := writeJSON(p.network.file, network{Version: 2, Subnets: subnets, Bridge: "berth0000nine", Firewall: preflight.Nftables}); err != nil {
		t.Fatal(err)
	}
	n, err := ensureNetwork(p, rangeRequest{}, t.TempDir(), nil)
	if err != nil || n.Bridge != p.network.bridge || !slices.Equal(n.Subnets, subnets) {
		t.Errorf("the bridge is %s, the ranges are %v, %v; want %s, %v", n.Bridge, n.Subnets, err, p.network.bridge, subnets)
	}
}

// Ranges that the file has lost, or that a flipped bit has changed, are those of the bridge with
// the pods that run.
func TestRangesInUse(t *testing.T) {
	for _, c := range []struct{ remembered, bridge, want string }{
		{"10.88.0.0/16", "10.88.0.0/16", "10.88.0.0/16"},
		{"10.88.0.0/16", "", "10.88.0.0/16"}, // no pod runs
		{"", "10.88.0.0/16", "10.88.0.0/16"},
		{"10.88.0.0/17", "10.88.0.0/16", "10.88.0.0/16"},
		{"10.89.0.0/16", "10.88.0.0/16 fd00::/64", "10.88.0.0/16 fd00::/64"},
		{"10.88.0.0/16", "10.88.0.0/16 fd00::/64", "10.88.0.0/16"},           // IPv6 of a configuration before
		{"10.88.0.0/16 fd01::/64", "10.88.0.0/16", "10.88.0.0/16 fd01::/64"}, // the next pod gets both
		{"10.88.0.0/16", "fd00::/64", "10.88.0.0/16"},
		{"fd01::/64", "fd00::/64", "fd01::/64"},
		{"", "10.88.0.0/16 fd00::/64 fd02::/64", "10.88.0.0/16 fd00::/64"},
		{"", "", ""},
	} {
		var ranges [3][]netip.Prefix
		for i, text := range []string{c.remembered, c.bridge, c.want} {
			for _, p := range strings.Fields(text) {
				ranges[i] = append(ranges[i], netip.MustParsePrefix(p))
			}
		}
		if got := rangesInUse(ranges[0], ranges[1]); !slices.Equal(got, ranges[2]) {
			t.Errorf("remembered %q, on the bridge %q: %v, want %q", c.remembered, c.bridge, got, c.want)
		}
	}
}
