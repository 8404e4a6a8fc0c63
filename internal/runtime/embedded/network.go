package embedded

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"berth/internal/checkpoint"
)

// network is what was chosen for the pods' network. It is remembered, because pods hold addresses
// of the range and rules of the firewall for as long as they live.
type network struct {
	Version  int          `json:"version"`
	Subnet   netip.Prefix `json:"subnet"`
	Firewall string       `json:"firewall"` // nftables, iptables or ""
}

// neighbour is a network that the pods' range must not overlap.
type neighbour struct {
	prefix netip.Prefix
	owner  string // for the error message
}

// errSubnetTaken is the class of a range that cannot be had.
var errSubnetTaken = errors.New("the range is taken")

// computeSubnet chooses the pods' range. A range that was asked for must be free; one that was
// remembered is kept while it is free or in use by our own bridge; else the first free /16 of 10.88
// to 10.127 and 172.20 to 172.31 is taken.
//
// inUse is the range of our own bridge, the zero value if there is none.
func computeSubnet(wanted string, remembered, inUse netip.Prefix, taken []neighbour) (netip.Prefix, error) {
	if wanted != "" {
		p, err := parseSubnet(wanted)
		if err != nil {
			return netip.Prefix{}, err
		}
		if inUse.IsValid() && inUse != p {
			return netip.Prefix{}, fmt.Errorf("pod range %s: pods still use %s; stop them first (berth stop --all)", p, inUse)
		}
		if n, ok := overlapping(p, taken); ok {
			return netip.Prefix{}, fmt.Errorf("pod range %s: %w: it overlaps %s of %s; choose another", p, errSubnetTaken, n.prefix, n.owner)
		}
		return p, nil
	}
	if remembered.IsValid() {
		if _, ok := overlapping(remembered, taken); !ok || inUse.IsValid() {
			return remembered, nil
		}
	}
	for _, c := range []struct{ first, from, to byte }{{10, 88, 127}, {172, 20, 31}} {
		for second := c.from; second <= c.to; second++ {
			p := netip.PrefixFrom(netip.AddrFrom4([4]byte{c.first, second, 0, 0}), 16)
			if _, ok := overlapping(p, taken); !ok {
				return p, nil
			}
		}
	}
	return netip.Prefix{}, fmt.Errorf("%w: all of 10.88.0.0/16 to 10.127.0.0/16 and 172.20.0.0/16 to 172.31.0.0/16; name a free range for the pods", errSubnetTaken)
}

func overlapping(p netip.Prefix, taken []neighbour) (neighbour, bool) {
	for _, n := range taken {
		// A default route covers everything and means nothing.
		if n.prefix.Bits() > 0 && n.prefix.Overlaps(p) {
			return n, true
		}
	}
	return neighbour{}, false
}

// claimsDir holds one link per range that an agent of this host claimed, NETWORK-BITS → the agent's
// network file: a bridge is made with the first pod only, and until then the interfaces do not show
// that its range is taken. The folder is locked while a range is chosen.
const claimsDir = "/run/berth-subnets"

// ensureNetwork returns the network of the pods, as remembered or newly chosen, and records the
// choice.
func ensureNetwork(p paths, wanted, claims string, firewall func() string) (network, error) {
	var n network
	if err := readJSON(p.network(), &n); err != nil && !errors.Is(err, fs.ErrNotExist) {
		// Set aside for whoever wants to know what was in it; the choice can be made again.
		if _, err := checkpoint.SetAside(p.network()); err != nil {
			return network{}, err
		}
		n = network{}
	}
	if n.Firewall == "" {
		n.Firewall = firewall()
	}
	if err := os.MkdirAll(claims, 0o755); err != nil {
		return network{}, err
	}
	lock, err := lockFolder(claims)
	if err != nil {
		return network{}, err
	}
	defer lock.Close()
	taken, bridgeUp, err := interfaces(p.bridge())
	if err != nil {
		return network{}, err
	}
	others, err := claimed(claims, p.network())
	if err != nil {
		return network{}, err
	}
	var inUse netip.Prefix
	if bridgeUp {
		inUse = n.Subnet
	}
	if n.Subnet, err = computeSubnet(wanted, n.Subnet, inUse, append(others, taken...)); err != nil {
		return network{}, err
	}
	n.Version = 1
	if err := writeJSON(p.network(), n); err != nil {
		return network{}, err
	}
	return n, claim(claims, n.Subnet, p.network())
}

// claim records that the range is owner's, and no other.
func claim(claims string, subnet netip.Prefix, owner string) error {
	if err := unclaim(claims, owner); err != nil {
		return err
	}
	return os.Symlink(owner, filepath.Join(claims, claimName(subnet)))
}

// unclaim gives the ranges back that owner claimed.
func unclaim(claims, owner string) error {
	entries, err := os.ReadDir(claims)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	var errs []error
	for _, e := range entries {
		name := filepath.Join(claims, e.Name())
		if target, err := os.Readlink(name); err == nil && target == owner {
			errs = append(errs, os.Remove(name))
		}
	}
	return errors.Join(errs...)
}

// claimed lists the ranges that other agents of this host claimed, and removes links of agents that
// are gone or have another range by now.
func claimed(claims, owner string) ([]neighbour, error) {
	entries, err := os.ReadDir(claims)
	if err != nil {
		return nil, err
	}
	var out []neighbour
	for _, e := range entries {
		name := filepath.Join(claims, e.Name())
		target, err := os.Readlink(name)
		if err != nil || target == owner {
			continue
		}
		var theirs network
		if readJSON(target, &theirs) == nil && claimName(theirs.Subnet) == e.Name() {
			out = append(out, neighbour{theirs.Subnet, "another berth, whose network is in " + target})
		} else if err := os.Remove(name); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// claimName is the name of the link that claims a range.
func claimName(subnet netip.Prefix) string { return strings.ReplaceAll(subnet.String(), "/", "-") }

// interfaces lists the networks of the host's interfaces other than our bridge, and whether that
// bridge is there.
func interfaces(bridge string) (taken []neighbour, bridgeUp bool, err error) {
	all, err := net.Interfaces()
	if err != nil {
		return nil, false, fmt.Errorf("list network interfaces: %w", err)
	}
	for _, i := range all {
		if i.Name == bridge {
			bridgeUp = true
			continue
		}
		addrs, err := i.Addrs()
		if err != nil {
			// The interface went away since it was listed.
			continue
		}
		for _, a := range addrs {
			if p, err := netip.ParsePrefix(a.String()); err == nil {
				taken = append(taken, neighbour{p.Masked(), "interface " + i.Name})
			}
		}
	}
	return taken, bridgeUp, nil
}

func readJSON(name string, into any) error {
	b, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(b, into); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

func writeJSON(name string, v any) error {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	return writeFile(name, append(b, '\n'))
}

// writeFile replaces a file in one step, making its folder if need be. A file that has the content
// already is left alone.
func writeFile(name string, content []byte) error {
	if old, err := os.ReadFile(name); err == nil && string(old) == string(content) {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	return checkpoint.Write(name, 0o600, content)
}
