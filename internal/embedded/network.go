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
)

// network is what was chosen for the pods' network. It is remembered, because pods hold addresses of the range and rules of the
// firewall for as long as they live.
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

// computeSubnet chooses the pods' range. A range that was asked for must be free; one that was remembered is kept while it is free
// or in use by our own bridge; else the first free /16 of 10.88 to 10.127 and 172.20 to 172.31 is taken.
func computeSubnet(wanted string, remembered netip.Prefix, bridgeUp bool, taken []neighbour) (netip.Prefix, error) {
	if wanted != "" {
		p, err := parseSubnet(wanted)
		if err != nil {
			return netip.Prefix{}, err
		}
		if bridgeUp && remembered.IsValid() && remembered != p {
			return netip.Prefix{}, fmt.Errorf("pod range %s: pods still use %s; stop them first (berth stop --all)", p, remembered)
		}
		if n, ok := overlapping(p, taken); ok {
			return netip.Prefix{}, fmt.Errorf("pod range %s: %w: it overlaps %s of %s; choose another", p, errSubnetTaken, n.prefix, n.owner)
		}
		return p, nil
	}
	if remembered.IsValid() {
		if _, ok := overlapping(remembered, taken); !ok || bridgeUp {
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

// claimsDir holds one link per range that an agent of this host claimed, NETWORK-BITS → the agent's network file: a bridge is made
// with the first pod only, and until then the interfaces do not show that its range is taken. A link to a missing file claims nothing.
const claimsDir = "/run/berth-subnets"

// ensureNetwork returns the network of the pods, as remembered or newly chosen, and records the choice.
func ensureNetwork(p paths, wanted, claims string, firewall func() string) (network, error) {
	var n network
	if err := readJSON(p.network(), &n); err != nil && !errors.Is(err, fs.ErrNotExist) {
		// Set aside for whoever wants to know what was in it; the choice can be made again.
		if err := os.Rename(p.network(), p.network()+".corrupt"); err != nil {
			return network{}, err
		}
		n = network{}
	}
	ifaces, bridgeUp, err := interfaces(p.bridge())
	if err != nil {
		return network{}, err
	}
	for {
		others, err := claimed(claims, p.network())
		if err != nil {
			return network{}, err
		}
		subnet, err := computeSubnet(wanted, n.Subnet, bridgeUp, append(others, ifaces...))
		if err != nil {
			return network{}, err
		}
		next := network{Version: 1, Subnet: subnet, Firewall: n.Firewall}
		if next.Firewall == "" {
			next.Firewall = firewall()
		}
		if next != n {
			if err := writeJSON(p.network(), next); err != nil {
				return network{}, err
			}
			n = next
		}
		lost, err := claim(claims, subnet, p.network())
		if err != nil || !lost {
			return n, err
		}
	}
}

// claim records that the range is ours; lost means that another agent was faster.
func claim(claims string, subnet netip.Prefix, owner string) (lost bool, err error) {
	if err := os.MkdirAll(claims, 0o755); err != nil {
		return false, err
	}
	name := filepath.Join(claims, strings.ReplaceAll(subnet.String(), "/", "-"))
	if target, err := os.Readlink(name); err == nil && target != owner {
		if _, err := os.Stat(name); err == nil {
			return true, nil
		}
		if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return false, err
		}
	}
	if err := os.Symlink(owner, name); err != nil && !errors.Is(err, fs.ErrExist) {
		return false, err
	}
	target, err := os.Readlink(name)
	return target != owner, err
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

// claimed lists the ranges that other agents of this host claimed.
func claimed(claims, owner string) ([]neighbour, error) {
	entries, err := os.ReadDir(claims)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var out []neighbour
	for _, e := range entries {
		i := strings.LastIndexByte(e.Name(), '-')
		target, err := os.Readlink(filepath.Join(claims, e.Name()))
		if err != nil || i < 0 || target == owner {
			continue
		}
		prefix, perr := netip.ParsePrefix(e.Name()[:i] + "/" + e.Name()[i+1:])
		// The link may be stale, or older than a change of that agent's mind.
		var theirs network
		if perr == nil && readJSON(target, &theirs) == nil && theirs.Subnet == prefix {
			out = append(out, neighbour{prefix, "another berth, whose network is in " + target})
		}
	}
	return out, nil
}

// interfaces lists the networks of the host's interfaces other than our bridge, and whether that bridge is there.
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

// writeFile replaces a file in one step, making its folder if need be. A file that has the content already is left alone.
func writeFile(name string, content []byte) error {
	if old, err := os.ReadFile(name); err == nil && string(old) == string(content) {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	next := name + ".next"
	if err := os.WriteFile(next, content, 0o600); err != nil {
		return err
	}
	return os.Rename(next, name)
}
