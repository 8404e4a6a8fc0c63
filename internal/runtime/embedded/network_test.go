package embedded

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/internal/checkpoint/checkpointtest"
)

func TestComputeSubnet(t *testing.T) {
	prefix := netip.MustParsePrefix
	taken := func(prefixes ...string) (out []neighbour) {
		for _, p := range prefixes {
			out = append(out, neighbour{prefix(p), "interface eth0"})
		}
		return out
	}
	var none netip.Prefix
	for name, c := range map[string]struct {
		wanted     string
		remembered netip.Prefix
		bridgeUp   bool
		taken      []neighbour
		want       string // the range, or a part of the error
	}{
		"first":                     {"", none, false, taken("192.168.1.0/24"), "10.88.0.0/16"},
		"next":                      {"", none, false, taken("10.88.4.0/24", "10.89.0.0/16"), "10.90.0.0/16"},
		"all of 10":                 {"", none, false, taken("10.0.0.0/8"), "172.20.0.0/16"},
		"default route":             {"", none, false, taken("0.0.0.0/0"), "10.88.0.0/16"},
		"nothing free":              {"", none, false, taken("10.0.0.0/8", "172.16.0.0/12"), "name a free range"},
		"remembered":                {"", prefix("10.95.0.0/16"), false, nil, "10.95.0.0/16"},
		"remembered, taken since":   {"", prefix("10.88.0.0/16"), false, taken("10.88.0.0/24"), "10.89.0.0/16"},
		"remembered, taken, in use": {"", prefix("10.88.0.0/16"), true, taken("10.88.0.0/24"), "10.88.0.0/16"},
		"wanted":                    {"10.200.0.0/24", none, false, nil, "10.200.0.0/24"},
		"wanted before remembered":  {"10.200.0.0/24", prefix("10.88.0.0/16"), false, nil, "10.200.0.0/24"},
		"wanted, another in use":    {"10.200.0.0/24", prefix("10.88.0.0/16"), true, nil, "pods still use 10.88.0.0/16"},
		"wanted, taken":             {"10.200.0.0/24", none, false, taken("10.0.0.0/8"), "it overlaps 10.0.0.0/8 of interface eth0; choose another"},
	} {
		t.Run(name, func(t *testing.T) {
			var inUse netip.Prefix
			if c.bridgeUp {
				inUse = c.remembered
			}
			p, err := computeSubnet(c.wanted, c.remembered, inUse, c.taken)
			got := p.String()
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
	a, b := paths{root: filepath.Join(t.TempDir(), "a")}, paths{root: filepath.Join(t.TempDir(), "b")}
	asked := 0
	choose := func(p paths, wanted string) network {
		t.Helper()
		n, err := ensureNetwork(p, wanted, claims, func() string { asked++; return nftables })
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	first, second := choose(a, ""), choose(b, "")
	if first.Subnet.Overlaps(second.Subnet) {
		t.Errorf("both chose: %s and %s", first.Subnet, second.Subnet)
	}
	if again := choose(a, ""); again != first {
		t.Errorf("chose %+v and then %+v", first, again)
	}
	if asked != 2 {
		t.Errorf("asked %d times for the firewall, want once for each agent", asked)
	}
	if _, err := ensureNetwork(a, second.Subnet.String(), claims, nil); err == nil || !strings.Contains(err.Error(), "another berth") {
		t.Errorf("error %v, want one that names the other agent", err)
	}

	// A removed agent claims nothing, whether it tidied up or not.
	if err := os.RemoveAll(b.root); err != nil {
		t.Fatal(err)
	}
	c := paths{root: filepath.Join(t.TempDir(), "c")}
	if n := choose(c, second.Subnet.String()); n.Subnet != second.Subnet {
		t.Errorf("chose %s, want the range %s that was given up", n.Subnet, second.Subnet)
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
	choose(c, "10.200.0.0/16")
	if err := os.RemoveAll(c.root); err != nil {
		t.Fatal(err)
	}
	c = paths{root: filepath.Join(t.TempDir(), "again")}
	choose(c, second.Subnet.String())
	if diff := cmp.Diff([]string{claimName(first.Subnet), claimName(second.Subnet)}, links()); diff != "" {
		t.Errorf("links (-want +got):\n%s", diff)
	}
	if err := unclaim(claims, c.network()); err != nil {
		t.Fatal(err)
	}
	left, err := claimed(claims, "")
	if err != nil || len(left) != 1 || left[0].prefix != first.Subnet {
		t.Errorf("claims %v, error %v; want only %s", left, err, first.Subnet)
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
		p := paths{root: t.TempDir()}
		go func() {
			n, err := ensureNetwork(p, "", claims, func() string { return nftables })
			choices <- choice{n, err}
		}()
	}
	seen := map[netip.Prefix]bool{}
	for range agents {
		c := <-choices
		if c.err != nil || seen[c.Subnet] {
			t.Errorf("chose %s, error %v; ranges of others %v", c.Subnet, c.err, seen)
		}
		seen[c.Subnet] = true
	}
}

func TestEnsureNetworkCorrupt(t *testing.T) {
	p := paths{root: t.TempDir()}
	if err := os.MkdirAll(p.settings(), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(p.network(), []byte("{"), 0o644); err != nil {
		t.Fatal(err)
	}
	n, err := ensureNetwork(p, "", t.TempDir(), func() string { return iptables })
	if err != nil || !n.Subnet.IsValid() || n.Firewall != iptables {
		t.Errorf("network %+v, error %v; want a new choice", n, err)
	}
	if aside, err := os.ReadFile(p.network() + ".corrupt"); err != nil || string(aside) != "{" {
		t.Errorf("the corrupt file was not set aside: %q, %v", aside, err)
	}
}

// An agent whose disk takes nothing goes on with the network that it has; a new one is not chosen
// without being remembered.
func TestDiskThatTakesNoNetwork(t *testing.T) {
	checkpointtest.Each(t, func(t *testing.T, fail func(string) func()) {
		claims := t.TempDir()
		known, fresh := paths{root: t.TempDir()}, paths{root: t.TempDir()}
		choose := func(p paths) (network, error) {
			return ensureNetwork(p, "", claims, func() string { return iptables })
		}
		before, err := choose(known)
		if err != nil {
			t.Fatal(err)
		}
		defer fail(known.root)()
		if now, err := choose(known); err != nil || now != before {
			t.Errorf("chose %v, %v; had %v", now, err, before)
		}
		mend := fail(fresh.root)
		if _, err := choose(fresh); err == nil || !strings.Contains(err.Error(), "write "+fresh.network()+": ") {
			t.Errorf("error %v", err)
		}
		mend()
		if _, err := choose(fresh); err != nil {
			t.Error(err)
		}
	})
}
