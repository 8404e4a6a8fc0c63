package cni

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// address is an address that a pod is assigned from a range set.
type address struct {
	netip.Addr
	of addressRange
}

func (a address) ipNet() *net.IPNet { return toIPNet(netip.PrefixFrom(a.Addr, a.of.Subnet.Bits())) }

func (a address) gateway() *net.IPNet {
	return toIPNet(netip.PrefixFrom(a.of.Gateway, a.of.Subnet.Bits()))
}

func toIPNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// everywhere returns the destination of a default route.
func (a address) everywhere() *net.IPNet {
	if a.Is4() {
		return toIPNet(netip.PrefixFrom(netip.IPv4Unspecified(), 0))
	}
	return toIPNet(netip.PrefixFrom(netip.IPv6Unspecified(), 0))
}

// vethPrefix is the prefix of the pods' interfaces on the host. NetworkManager ignores such
// interfaces.
const vethPrefix = "veth"

// hostName returns the name of an attachment's interface on the host. It is deterministic, so that
// it needs no stored state, and longer than the reference plugin's names.
func (a attachment) hostName(network string) string {
	sum := sha256.Sum256([]byte(network + "\x00" + a.id + "\x00" + a.ifName))
	return vethPrefix + hex.EncodeToString(sum[:])[:maxInterfaceName-len(vethPrefix)]
}

// ensureBridge returns the bridge with the gateways of the ranges, and creates it if necessary.
func ensureBridge(h *netlink.Handle, c *config) (*netlink.Bridge, error) {
	link, err := h.LinkByName(c.Bridge)
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		if err := makeBridge(h, c); err != nil {
			return nil, err
		}
		link, err = h.LinkByName(c.Bridge)
	}
	if err != nil {
		return nil, fmt.Errorf("bridge %s: %w", c.Bridge, err)
	}
	bridge, ok := link.(*netlink.Bridge)
	if !ok {
		return nil, fail(types.ErrInvalidNetworkConfig, "bridge: %s is an interface of type %s: name another", c.Bridge, link.Type())
	}
	for _, set := range c.Ranges {
		for _, r := range set {
			if err := ensureGateway(h, bridge, address{r.Gateway, r}); err != nil {
				return nil, err
			}
		}
	}
	if bridge.Flags&net.FlagUp == 0 {
		if err := h.LinkSetUp(bridge); err != nil {
			return nil, fmt.Errorf("set bridge %s up: %w", c.Bridge, err)
		}
	}
	return bridge, nil
}

// makeBridge creates the bridge, unless a concurrent call does. An explicit hardware address does
// not change when interfaces are added or removed.
func makeBridge(h *netlink.Handle, c *config) error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU, attrs.HardwareAddr = c.Bridge, c.MTU, randomHardwareAddr()
	if err := h.LinkAdd(&netlink.Bridge{LinkAttrs: attrs}); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("make bridge %s: %w", c.Bridge, err)
	}
	// It only uses configured routes. A kernel without IPv6 has no such setting.
	_ = setSysctl("net/ipv6/conf/"+c.Bridge+"/accept_ra", "0")
	return nil
}

// ensureGateway adds a gateway address of the pods to the bridge.
func ensureGateway(h *netlink.Handle, bridge *netlink.Bridge, gw address) error {
	addr := &netlink.Addr{IPNet: gw.gateway()}
	if gw.Is6() {
		addr.Flags = unix.IFA_F_NODAD // else the first packets of the first pod are lost
	}
	err := h.AddrAdd(bridge, addr)
	if errors.Is(err, unix.EEXIST) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("give bridge %s the address %s: %w", bridge.Name, addr.IPNet, err)
	}
	if !gw.Is4() {
		return nil
	}
	// A foreign IPv4 address would be from a network that the pods' replies never reach.
	all, err := h.AddrList(bridge, netlink.FAMILY_V4)
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return fmt.Errorf("addresses of bridge %s: %w", bridge.Name, err)
	}
	for _, other := range all {
		if !other.Equal(*addr) && !gw.of.Subnet.Contains(toAddr(other.IP)) {
			err := fail(types.ErrInvalidNetworkConfig, "bridge: %s has the address %s, which is not of range %s: name another bridge, or take the address away", bridge.Name, other.IPNet, gw.of.Subnet)
			return errors.Join(err, h.AddrDel(bridge, addr))
		}
	}
	return nil
}

func toAddr(ip net.IP) netip.Addr {
	a, _ := netip.AddrFromSlice(ip)
	return a.Unmap()
}

// ensureForwarding enables forwarding between interfaces for the families of the addresses.
func ensureForwarding(addresses []address) error {
	for _, a := range addresses {
		name := "net/ipv6/conf/all/forwarding"
		if a.Is4() {
			name = "net/ipv4/ip_forward"
		}
		if err := setSysctl(name, "1"); err != nil {
			return fmt.Errorf("turn on forwarding: %w", err)
		}
	}
	return nil
}

// setSysctl sets a sysctl in this thread's network namespace if it differs.
func setSysctl(name, value string) error {
	file := "/proc/sys/" + name
	old, err := os.ReadFile(file)
	if err != nil || strings.TrimSpace(string(old)) == value {
		return err
	}
	return os.WriteFile(file, []byte(value), 0)
}

// connect creates the pod's interface with its other end in the bridge. It returns both ends.
func connect(h *netlink.Handle, bridge *netlink.Bridge, c *config, p *pod) (host, inner netlink.Link, err error) {
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU, attrs.Flags = p.attachment.hostName(c.Name), c.MTU, net.FlagUp
	veth := &netlink.Veth{LinkAttrs: attrs, PeerName: p.attachment.ifName, PeerNamespace: netlink.NsFd(int(p.ns))}
	if err := h.LinkAdd(veth); err != nil {
		if errors.Is(err, unix.EEXIST) {
			return nil, nil, fail(types.ErrInvalidEnvironmentVariables, "interface %s of %s exists: DEL it first", p.attachment.ifName, p.attachment.id)
		}
		return nil, nil, fmt.Errorf("make interface %s: %w", p.attachment.ifName, err)
	}
	step("veth")
	if host, err = h.LinkByName(attrs.Name); err != nil {
		return nil, nil, fmt.Errorf("interface %s: %w", attrs.Name, err)
	}
	if err := h.LinkSetMaster(host, bridge); err != nil {
		return nil, nil, fmt.Errorf("put %s into bridge %s: %w", attrs.Name, bridge.Name, err)
	}
	// A pod can reach itself through its own host port.
	if err := h.LinkSetHairpin(host, true); err != nil {
		return nil, nil, fmt.Errorf("hairpin mode of %s: %w", attrs.Name, err)
	}
	if inner, err = p.LinkByName(p.attachment.ifName); err != nil {
		return nil, nil, fmt.Errorf("interface %s of the pod: %w", p.attachment.ifName, err)
	}
	return host, inner, nil
}

// pod is the network namespace of an attachment, opened from the host's.
type pod struct {
	attachment attachment
	*netlink.Handle
	path string
	ns   netns.NsHandle
}

// openPod opens the network namespace of a pod.
func openPod(a attachment, path string) (*pod, error) {
	ns, err := netns.GetFromPath(path)
	if err != nil {
		return nil, fail(types.ErrInvalidNetNS, "network namespace %s: %v", path, err)
	}
	h, err := netlink.NewHandleAt(ns, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, errors.Join(fail(types.ErrInvalidNetNS, "network namespace %s: %v", path, err), ns.Close())
	}
	return &pod{a, h, path, ns}, nil
}

func (p *pod) close() {
	p.Handle.Close()
	_ = p.ns.Close()
}

// within calls do in a thread in the pod's namespace.
func (p *pod) within(do func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	host, err := netns.Get()
	if err != nil {
		return err
	}
	defer host.Close()
	if err := netns.Set(p.ns); err != nil {
		return err
	}
	err = do()
	if err := netns.Set(host); err != nil {
		panic(err) // later calls must run in the host's namespace
	}
	return err
}

// configure adds addresses and routes to the pod's interface, and sets it and lo up.
func (p *pod) configure(inner netlink.Link, addresses []address) error {
	if err := p.within(func() error { return p.setSysctls(addresses) }); err != nil {
		return fmt.Errorf("settings of %s: %w", p.attachment.ifName, err)
	}
	for _, a := range addresses {
		addr := &netlink.Addr{IPNet: a.ipNet()}
		if a.Is6() {
			addr.Flags = unix.IFA_F_NODAD // leased addresses are unique and usable at once
		}
		if err := p.AddrAdd(inner, addr); err != nil {
			return fmt.Errorf("give %s the address %s: %w", p.attachment.ifName, a, err)
		}
	}
	if err := p.LinkSetUp(inner); err != nil {
		return fmt.Errorf("set %s up: %w", p.attachment.ifName, err)
	}
	for _, a := range addresses {
		route := &netlink.Route{LinkIndex: inner.Attrs().Index, Dst: a.everywhere(), Gw: a.of.Gateway.AsSlice()}
		if err := p.RouteAdd(route); err != nil {
			return fmt.Errorf("default route by %s: %w", a.of.Gateway, err)
		}
	}
	lo := &netlink.Device{LinkAttrs: netlink.LinkAttrs{Name: "lo", Index: 1}} // always the first
	if err := p.LinkSetUp(lo); err != nil {
		return fmt.Errorf("set lo up: %w", err)
	}
	return nil
}

// setSysctls makes the kernel announce the pod's addresses when the interface is set up, so that
// neighbours drop stale entries.
func (p *pod) setSysctls(addresses []address) error {
	at := func(family, name string) string { return "net/" + family + "/conf/" + p.attachment.ifName + "/" + name }
	_ = setSysctl(at("ipv4", "arp_notify"), "1")
	for _, a := range addresses {
		if a.Is4() {
			continue
		}
		_ = setSysctl(at("ipv6", "ndisc_notify"), "1")
		_ = setSysctl(at("ipv6", "accept_dad"), "0") // of the link-local address
		_ = setSysctl(at("ipv6", "keep_addr_on_down"), "1")
		for _, name := range []string{at("ipv6", "disable_ipv6"), "net/ipv6/conf/lo/disable_ipv6"} {
			if err := setSysctl(name, "0"); err != nil {
				return err
			}
		}
	}
	return nil
}

// upTimeout is the maximum time until a bridge port forwards packets.
const upTimeout = 3 * time.Second

// awaitUp returns the host end of an interface once the bridge forwards its packets.
func awaitUp(h *netlink.Handle, host netlink.Link) (netlink.Link, error) {
	for pause, end := time.Millisecond, time.Now().Add(upTimeout); ; pause *= 2 {
		link, err := h.LinkByIndex(host.Attrs().Index)
		if err != nil {
			return nil, fmt.Errorf("interface %s: %w", host.Attrs().Name, err)
		}
		if link.Attrs().OperState == netlink.OperUp {
			return link, nil
		}
		if time.Now().After(end) {
			return nil, fmt.Errorf("interface %s is %s in its bridge, not up", host.Attrs().Name, link.Attrs().OperState)
		}
		time.Sleep(pause)
	}
}

// disconnect removes both ends of an attachment's interface, and the interface that limits it.
func (a attachment) disconnect(h *netlink.Handle, network string) error {
	for _, name := range []string{a.ifbName(network), a.hostName(network)} {
		link, err := h.LinkByName(name)
		if errors.As(err, &netlink.LinkNotFoundError{}) {
			continue
		}
		if err == nil {
			err = h.LinkDel(link)
		}
		if err != nil && !errors.Is(err, unix.ENODEV) { // removed with the pod's namespace
			return fmt.Errorf("remove interface %s: %w", name, err)
		}
		step("link " + name[:3])
	}
	return nil
}

// interfaces lists the interfaces of a result, the pod's own last.
func interfaces(bridge, host, inner netlink.Link, p *pod) []*current.Interface {
	return []*current.Interface{
		{Name: bridge.Attrs().Name, Mac: bridge.Attrs().HardwareAddr.String()},
		{Name: host.Attrs().Name, Mac: host.Attrs().HardwareAddr.String()},
		{Name: inner.Attrs().Name, Mac: inner.Attrs().HardwareAddr.String(), Sandbox: p.path},
	}
}
