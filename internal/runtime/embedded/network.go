package embedded

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"berth/internal/checkpoint"
	"berth/internal/host/preflight"
)

// network is the configuration of the pod network. It is persisted, because running pods hold
// addresses of the ranges and firewall rules.
type network struct {
	Version int `json:"version"`
	// Subnets are one range, or one per IP family; none until the cluster has assigned one.
	Subnets  []netip.Prefix `json:"subnets,omitempty"`
	Assigned bool           `json:"assigned,omitempty"` // by the cluster
	Bridge   string         `json:"bridge,omitempty"`
	Firewall string         `json:"firewall"` // nftables, iptables or ""
	// Subnet is the range in files written before there could be several.
	Subnet netip.Prefix `json:"subnet,omitzero"`

	inUse    bool           // the bridge exists
	previous []netip.Prefix // the previous ranges, if pods still use them
}

// rangeRequest is the requested pod ranges.
type rangeRequest struct {
	subnets  []netip.Prefix // none: the persisted ones
	assigned bool           // the cluster assigns the ranges: none is chosen here
}

// neighbour is a network that the pod ranges must not overlap.
type neighbour struct {
	prefix netip.Prefix
	owner  string // for the error message
}

// errSubnetTaken matches errors of ranges that are in use.
var errSubnetTaken = errors.New("the range is taken")

// computeSubnets selects the pod ranges. Requested ranges must be free; persisted ranges are reused
// if they are free, or used by our own bridge; otherwise it selects the first free /16 of 10.88 to
// 10.127 and 172.20 to 172.31, unless the cluster assigns ranges.
func computeSubnets(w rangeRequest, before network, taken []neighbour) ([]netip.Prefix, error) {
	if len(w.subnets) > 0 {
		if before.inUse && slices.Equal(w.subnets, before.Subnets) {
			return w.subnets, nil
		}
		for _, p := range w.subnets {
			if n, ok := overlapping(p, taken); ok {
				return nil, fmt.Errorf("pod range %s: %w: it overlaps %s of %s; choose another", p, errSubnetTaken, n.prefix, n.owner)
			}
		}
		return w.subnets, nil
	}
	if w.assigned != before.Assigned {
		before.Subnets = nil
	}
	isTaken := func(p netip.Prefix) bool { _, ok := overlapping(p, taken); return ok }
	if w.assigned || len(before.Subnets) > 0 && (before.inUse || !slices.ContainsFunc(before.Subnets, isTaken)) {
		return before.Subnets, nil
	}
	for _, c := range []struct{ first, from, to byte }{{10, 88, 127}, {172, 20, 31}} {
		for second := c.from; second <= c.to; second++ {
			if p := netip.PrefixFrom(netip.AddrFrom4([4]byte{c.first, second, 0, 0}), 16); !isTaken(p) {
				return []netip.Prefix{p}, nil
			}
		}
	}
	return nil, fmt.Errorf("%w: all of 10.88.0.0/16 to 10.127.0.0/16 and 172.20.0.0/16 to 172.31.0.0/16; name a free range for the pods", errSubnetTaken)
}

func overlapping(p netip.Prefix, taken []neighbour) (neighbour, bool) {
	for _, n := range taken {
		// A default route overlaps everything and is ignored.
		if n.prefix.Bits() > 0 && n.prefix.Overlaps(p) {
			return n, true
		}
	}
	return neighbour{}, false
}

// claimsDir holds one link per range that an agent of this host claimed, NETWORK-BITS → the agent's
// network file: a bridge is created with the first pod only, and until then no interface shows that
// its range is in use. The directory is locked while a range is chosen.
const claimsDir = "/run/berth-subnets"

// ensureNetwork returns the pod network, as persisted or newly chosen, and persists it.
func ensureNetwork(p paths, w rangeRequest, claims string, firewall func() string) (network, error) {
	before, err := readNetwork(p.network.file)
	if err == nil {
		err = before.check()
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		// Set aside for inspection; the choice can be repeated.
		if _, err := checkpoint.SetAside(p.network.file); err != nil {
			return network{}, err
		}
		before = network{}
	}
	if !slices.Contains(p.network.bridges, before.Bridge) && !isUp(before.Bridge) {
		before.Bridge = "" // of another root directory, or damaged
	}
	n := network{Version: 2, Assigned: w.assigned, Bridge: cmp.Or(before.Bridge, p.network.bridge), Firewall: before.Firewall}
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
	taken, err := neighbours(p, claims, n.Bridge, w)
	if err != nil {
		return network{}, err
	}
	before.inUse = isUp(n.Bridge)
	if before.inUse && !before.Assigned {
		before.Subnets = rangesInUse(before.Subnets, rangesOn(n.Bridge))
	}
	if n.Subnets, err = computeSubnets(w, before, taken); err != nil {
		return network{}, err
	}
	changed := !slices.Equal(n.Subnets, before.Subnets)
	if err := removeIdleBridges(p, func(name string) bool { return changed || name != n.Bridge }); err != nil {
		return network{}, err
	}
	if changed && isUp(n.Bridge) {
		// The persisted network may have no range: on a node that waits for the cluster to assign
		// one.
		n.previous = rangesOn(n.Bridge)
		if n.Bridge, err = computeBridge(n, p.network.bridges, isUp); err != nil {
			return network{}, err
		}
	}
	if err := writeJSON(p.network.file, n); err != nil {
		return network{}, err
	}
	return n, claim(claims, n.Subnets, p.network.file)
}

// check detects values that were never written: the file is damaged.
func (n network) check() error {
	if !slices.Contains([]string{"", preflight.Nftables, preflight.Iptables}, n.Firewall) {
		return fmt.Errorf("firewall %q is neither %s nor %s", n.Firewall, preflight.Nftables, preflight.Iptables)
	}
	return nil
}

// rangesInUse returns the persisted ranges or, if they are lost or damaged, the bridge's ranges,
// one per IP family: running pods have addresses of them. A bridge has at most one IPv4 range, so
// that another one than the persisted range indicates damage; its IPv6 range is only added with the
// next pod.
func rangesInUse(persisted, bridge []netip.Prefix) []netip.Prefix {
	is4 := func(p netip.Prefix) bool { return p.Addr().Is4() }
	damaged := len(persisted) == 0
	for _, p := range persisted {
		damaged = damaged || is4(p) && slices.ContainsFunc(bridge, is4) && !slices.Contains(bridge, p)
	}
	if !damaged || len(bridge) == 0 {
		return persisted
	}
	var out []netip.Prefix
	for _, p := range bridge {
		if !slices.ContainsFunc(out, func(q netip.Prefix) bool { return is4(p) == is4(q) }) {
			out = append(out, p)
		}
	}
	return out
}

// computeBridge returns the bridge of a network whose ranges differ from those of running pods,
// which keep their addresses. A bridge supports a second IPv6 range, but not a second IPv4 range.
func computeBridge(n network, names []string, isUp func(string) bool) (string, error) {
	another := false
	for _, p := range n.Subnets {
		another = another || slices.ContainsFunc(n.previous, func(q netip.Prefix) bool { return p != q && p.Addr().Is4() && q.Addr().Is4() })
	}
	for _, p := range n.Subnets {
		for _, q := range n.previous {
			if p.Overlaps(q) && (p != q || another) {
				return "", fmt.Errorf("pod range %s: it overlaps %s, of which pods that run have addresses: restart them first (berth stop --all)", p, q)
			}
		}
	}
	if !another {
		return n.Bridge, nil
	}
	i := slices.IndexFunc(names, func(name string) bool { return !isUp(name) })
	if i < 0 {
		return "", fmt.Errorf("pod range %s: pods of %d ranges before it still run: restart them first (berth stop --all)", n.ranges(), len(names))
	}
	return names[i], nil
}

// ranges joins the ranges with commas.
func (n network) ranges() string {
	var out []string
	for _, p := range n.Subnets {
		out = append(out, p.String())
	}
	return strings.Join(out, ",")
}

// readNetwork reads the persisted network.
func readNetwork(file string) (network, error) {
	var n network
	err := readJSON(file, &n)
	if n.Subnet.IsValid() {
		n.Subnets, n.Subnet = []netip.Prefix{n.Subnet}, netip.Prefix{}
	}
	return n, err
}

// neighbours lists networks that the pod ranges must not overlap: those of other interfaces than
// the bridge, and the claims of other agents.
//
// Ranges that a cluster assigns may lie inside of an interface's wider network: the bridge's route
// is more specific.
func neighbours(p paths, claims, bridge string, w rangeRequest) ([]neighbour, error) {
	taken, err := interfaces(bridge)
	if err != nil {
		return nil, err
	}
	if w.assigned {
		taken = slices.DeleteFunc(taken, func(n neighbour) bool {
			return slices.ContainsFunc(w.subnets, func(p netip.Prefix) bool { return n.prefix.Bits() < p.Bits() && n.prefix.Overlaps(p) })
		})
	}
	others, err := claimed(claims, p.network.file)
	return append(others, taken...), err
}

// removeIdleBridges removes the agent's bridges without pods that match which.
func removeIdleBridges(p paths, which func(name string) bool) error {
	var errs []error
	for _, name := range p.network.bridges {
		if which(name) && bridgePorts(name) == 0 {
			errs = append(errs, removeBridge(name))
		}
	}
	return errors.Join(errs...)
}

// claim makes owner the holder of exactly these ranges. An existing file in the place of a claim is
// removed: no other agent has the range.
func claim(claims string, subnets []netip.Prefix, owner string) error {
	errs := []error{unclaim(claims, owner)}
	for _, p := range subnets {
		file := filepath.Join(claims, claimName(p))
		errs = append(errs, os.RemoveAll(file), os.Symlink(owner, file))
	}
	return errors.Join(errs...)
}

// unclaim releases all ranges of owner.
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

// claimed lists the ranges of other agents on this host, and removes links of agents that were
// removed or have another range.
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
		theirs, err := readNetwork(target)
		i := slices.IndexFunc(theirs.Subnets, func(p netip.Prefix) bool { return claimName(p) == e.Name() })
		if err == nil && i >= 0 {
			out = append(out, neighbour{theirs.Subnets[i], "another berth, whose network is in " + target})
		} else if err := os.Remove(name); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func claimName(subnet netip.Prefix) string { return strings.ReplaceAll(subnet.String(), "/", "-") }

// interfaces lists the networks of the host's interfaces other than the bridge.
func interfaces(bridge string) (taken []neighbour, err error) {
	all, err := net.Interfaces()
	if err != nil {
		return nil, fmt.Errorf("list network interfaces: %w", err)
	}
	for _, i := range all {
		if i.Name == bridge {
			continue
		}
		for _, p := range prefixesOf(&i) {
			taken = append(taken, neighbour{p, "interface " + i.Name})
		}
	}
	return taken, nil
}

// rangesOn returns the pod ranges of a bridge; none if it does not exist.
func rangesOn(bridge string) []netip.Prefix {
	i, err := net.InterfaceByName(bridge)
	if err != nil {
		return nil
	}
	return slices.DeleteFunc(prefixesOf(i), func(p netip.Prefix) bool { return p.Addr().IsLinkLocalUnicast() })
}

// prefixesOf returns the networks of an interface; none if it was removed since it was listed.
func prefixesOf(i *net.Interface) (out []netip.Prefix) {
	addrs, _ := i.Addrs() // fails only if it was removed
	for _, a := range addrs {
		if p, err := netip.ParsePrefix(a.String()); err == nil {
			out = append(out, p.Masked())
		}
	}
	return out
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

// writeFile replaces a file atomically, and creates its directory if necessary. A file with the
// same content is not rewritten.
func writeFile(name string, content []byte) error {
	if old, err := os.ReadFile(name); err == nil && string(old) == string(content) {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	return checkpoint.Write(name, 0o600, content)
}
