package cni

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// uplink is the host's interface to others.
const uplink = "uplink0"

// differences are what a probe sees otherwise than with the reference plugins, and why.
var differences = map[string]string{
	"pod b to the host port":          "replies of a go to b directly, through the bridge, and b has asked another address: they are masqueraded",
	"host to [::1]:8080":              "nothing leads from ::1 to a pod: the connection is refused, and does not hang",
	"pod a, sysctl ipv6 ndisc_notify": "neighbours hear of IPv6 addresses, too, that have moved, as of those of IPv4",
}

// What is seen from a pod, from the host and from elsewhere is what it is with the reference
// plugins.
func TestSideBySide(t *testing.T) {
	want := probe(t, reference(range4, range6))
	got := probe(t, ours(range4, range6))
	for _, name := range slices.Sorted(maps.Keys(want)) {
		if _, differs := differences[name]; differs == (got[name] == want[name]) {
			t.Errorf("%s:\n  it is          %s\n  the reference  %s", name, got[name], want[name])
		}
	}
	for name := range got {
		if _, ok := want[name]; !ok {
			t.Errorf("%s: %s; the reference has none", name, got[name])
		}
	}
	for name, must := range map[string]string{
		"pod a to outside":              "192.0.2.1",
		"pod a to outside, IPv6":        "fd00:2::1",
		"outside to the host port":      "192.0.2.2",
		"pod b to the host port":        "10.88.0.1",
		"pod a to its own host port":    "10.88.0.1",
		"host to 127.0.0.1:8080":        "10.88.0.1",
		"pod b to pod a":                "10.88.0.3",
		"outside to the port of 127/8":  noAnswer,
		"host to 127.0.0.1:8053 of UDP": "10.88.0.1",
	} {
		if got[name] != must {
			t.Errorf("%s: %s, want %s", name, got[name], must)
		}
	}
}

// lab is a host with two pods, and another machine.
type lab struct {
	*host
	outside netns.NsHandle
	a, b    *testPod
	seen    map[string]string
}

// probe returns what is seen, by what looks where.
func probe(t *testing.T, plugins func(*host, map[string]any) []map[string]any) map[string]string {
	t.Helper()
	l := &lab{host: newHost(t, plugins), seen: map[string]string{}}
	l.outside = newNamespace(t, "")
	l.do(func() {
		veth := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: uplink}, PeerName: "eth0", PeerNamespace: netlink.NsFd(int(l.outside))}
		if err := netlink.LinkAdd(veth); err != nil {
			t.Fatal(err)
		}
		l.address(uplink, "192.0.2.1/24", "fd00:2::1/64")
	})
	within(t, l.outside, func() { l.address("eth0", "192.0.2.2/24", "fd00:2::2/64") })
	l.a, l.b = l.pod("a", all), l.pod("b", map[string]any{})
	for _, p := range []*testPod{l.a, l.b} {
		within(t, p.ns, func() { // as a runtime does
			if err := netlink.LinkSetUp(lo); err != nil {
				t.Fatal(err)
			}
		})
		p.must("ADD")
	}
	l.awaitAddresses()
	l.serve(l.a.ns, "tcp", ":80")
	l.serve(l.a.ns, "udp4", ":53")
	l.serve(l.ns, "tcp", ":7000")
	l.serve(l.outside, "tcp", ":7000")
	l.look()
	l.describe("pod a", l.a.ns, "eth0")
	l.describe("pod b", l.b.ns, "eth0")
	l.do(func() { l.describeHost() })
	return l.seen
}

// awaitAddresses waits until the kernel knows of all addresses that nobody else has them: the
// reference plugins do not wait for the bridge's.
func (l *lab) awaitAddresses() {
	l.t.Helper()
	tentative := func() (found string) {
		for _, ns := range []netns.NsHandle{l.ns, l.a.ns, l.b.ns} {
			within(l.t, ns, func() {
				all, err := netlink.AddrList(nil, netlink.FAMILY_V6)
				if err != nil {
					l.t.Fatal(err)
				}
				for _, a := range all {
					if a.Flags&unix.IFA_F_TENTATIVE != 0 {
						found = a.String()
					}
				}
			})
		}
		return found
	}
	for end := time.After(20 * time.Second); ; {
		last := tentative()
		if last == "" {
			return
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-end:
			l.t.Fatalf("address %s stays tentative", last)
		}
	}
}

func (l *lab) address(link string, addresses ...string) {
	found, err := netlink.LinkByName(link)
	if err != nil {
		l.t.Fatal(err)
	}
	for _, a := range addresses {
		parsed, err := netlink.ParseAddr(a)
		if err != nil {
			l.t.Fatal(err)
		}
		parsed.Flags = unix.IFA_F_NODAD
		if err := netlink.AddrAdd(found, parsed); err != nil {
			l.t.Fatal(err)
		}
	}
	if err := netlink.LinkSetUp(found); err != nil {
		l.t.Fatal(err)
	}
}

// serve has a server in a namespace that tells each who asks what address it sees.
func (l *lab) serve(ns netns.NsHandle, network, address string) {
	l.t.Helper()
	within(l.t, ns, func() {
		if strings.HasPrefix(network, "udp") {
			conn, err := net.ListenPacket(network, address)
			if err != nil {
				l.t.Error(err)
				return
			}
			l.t.Cleanup(func() { _ = conn.Close() })
			go func() {
				for b := make([]byte, 1); ; {
					_, from, err := conn.ReadFrom(b)
					if err != nil {
						return
					}
					_, _ = conn.WriteTo([]byte(from.(*net.UDPAddr).IP.String()), from)
				}
			}()
			return
		}
		listener, err := net.Listen(network, address)
		if err != nil {
			l.t.Error(err)
			return
		}
		l.t.Cleanup(func() { _ = listener.Close() })
		go func() {
			for {
				conn, err := listener.Accept()
				if err != nil {
					return
				}
				_, _ = io.WriteString(conn, conn.RemoteAddr().(*net.TCPAddr).IP.String())
				_ = conn.Close()
			}
		}()
	})
}

const noAnswer, refused = "no answer", "refused"

// ask returns which address a server sees of who asks from a namespace.
func (l *lab) ask(name string, ns netns.NsHandle, network, address string) {
	l.t.Helper()
	const patience = 2 * time.Second
	within(l.t, ns, func() {
		answer := func() string {
			conn, err := net.DialTimeout(network, address, patience)
			if err != nil {
				return failure(err)
			}
			defer conn.Close()
			_ = conn.SetDeadline(time.Now().Add(patience))
			if network == "udp" {
				_, _ = conn.Write([]byte("?"))
			}
			b := make([]byte, 64)
			n, err := conn.Read(b)
			if err != nil {
				return failure(err)
			}
			return string(b[:n])
		}
		l.seen[name] = answer()
	})
}

func failure(err error) string {
	switch timeout := net.Error(nil); {
	case errors.Is(err, unix.ECONNREFUSED):
		return refused
	case errors.As(err, &timeout) && timeout.Timeout():
		return noAnswer
	default:
		return err.Error()
	}
}

// look tries who reaches whom, and as whom.
func (l *lab) look() {
	for _, v6 := range []bool{false, true} {
		hosts, gateway, outside, more := "192.0.2.1", "10.88.0.1", "192.0.2.2", ""
		if v6 {
			hosts, gateway, outside, more = "fd00:2::1", "fd00:88::1", "fd00:2::2", ", IPv6"
		}
		at := func(host, port string) string { return net.JoinHostPort(host, port) }
		l.ask("pod a to its gateway"+more, l.a.ns, "tcp", at(gateway, "7000"))
		l.ask("pod a to outside"+more, l.a.ns, "tcp", at(outside, "7000"))
		l.ask("pod b to pod a"+more, l.b.ns, "tcp", at(l.a.ip(v6).String(), "80"))
		l.ask("host to pod a"+more, l.ns, "tcp", at(l.a.ip(v6).String(), "80"))
		l.ask("host to the host port"+more, l.ns, "tcp", at(hosts, "8080"))
		l.ask("outside to the host port"+more, l.outside, "tcp", at(hosts, "8080"))
		l.ask("outside to a port that is none"+more, l.outside, "tcp", at(hosts, "8081"))
		l.ask("pod a to its own host port"+more, l.a.ns, "tcp", at(hosts, "8080"))
		if !v6 {
			l.ask("pod b to the host port", l.b.ns, "tcp", at(hosts, "8080"))
			l.ask("outside to the port of 127/8", l.outside, "udp", at(hosts, "8053"))
			if l.seen["outside to the port of 127/8"] == refused {
				l.seen["outside to the port of 127/8"] = noAnswer
			}
		}
	}
	l.ask("host to 127.0.0.1:8080", l.ns, "tcp", "127.0.0.1:8080")
	l.ask("host to [::1]:8080", l.ns, "tcp", "[::1]:8080")
	l.ask("host to 127.0.0.1:8053 of UDP", l.ns, "udp", "127.0.0.1:8053")
}

// describe notes what an interface and the routes in a namespace are.
func (l *lab) describe(who string, ns netns.NsHandle, name string) {
	within(l.t, ns, func() {
		links, err := netlink.LinkList()
		if err != nil {
			l.t.Error(err)
		}
		for _, link := range links {
			if link.Type() != "veth" {
				continue // the runtime sees to lo; some kernels have more in each namespace
			}
			l.seen[who+", link "+link.Attrs().Name] = fmt.Sprint(link.Type(), link.Attrs().MTU, link.Attrs().Flags, link.Attrs().OperState)
			addresses, err := netlink.AddrList(link, netlink.FAMILY_ALL)
			if err != nil {
				l.t.Error(err)
			}
			var all []string
			for _, a := range addresses {
				if !a.IP.IsLinkLocalUnicast() {
					all = append(all, fmt.Sprint(a.IPNet, a.Scope, a.Broadcast, a.Flags&unix.IFA_F_TENTATIVE, a.ValidLft))
				}
			}
			l.seen[who+", addresses of "+link.Attrs().Name] = strings.Join(all, " ")
		}
		for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
			routes, err := netlink.RouteList(nil, family)
			if err != nil {
				l.t.Error(err)
			}
			var all []string
			for _, r := range routes {
				all = append(all, fmt.Sprint(r.Dst, r.Gw, r.Src, r.Protocol, r.Scope, r.Priority, r.Table, r.Type))
			}
			slices.Sort(all)
			l.seen[fmt.Sprint(who, ", routes of ", family)] = strings.Join(all, "; ")
		}
		for _, s := range []string{"ipv4 arp_notify", "ipv6 ndisc_notify", "ipv6 accept_dad", "ipv6 keep_addr_on_down", "ipv6 disable_ipv6"} {
			family, setting, _ := strings.Cut(s, " ")
			if who == "pod a" {
				l.seen[who+", sysctl "+s] = sysctl("net/" + family + "/conf/" + name + "/" + setting)
			}
		}
	})
}

func sysctl(name string) string {
	b, err := os.ReadFile("/proc/sys/" + name)
	if err != nil {
		return err.Error()
	}
	return strings.TrimSpace(string(b))
}

// describeHost notes what bridge, ports of the bridge and limits of bandwidth are.
func (l *lab) describeHost() {
	for _, s := range []string{"net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding", "net/ipv4/conf/cni0/route_localnet", "net/ipv6/conf/cni0/accept_ra"} {
		l.seen["host, sysctl "+s] = sysctl(s)
	}
	links, err := netlink.LinkList()
	if err != nil {
		l.t.Error(err)
	}
	for _, link := range links {
		name, attrs := link.Attrs().Name, link.Attrs()
		switch {
		case name == "cni0":
			addresses, err := netlink.AddrList(link, netlink.FAMILY_ALL)
			if err != nil {
				l.t.Error(err)
			}
			var all []string
			for _, a := range addresses {
				if !a.IP.IsLinkLocalUnicast() {
					all = append(all, a.IPNet.String())
				}
			}
			l.seen["host, bridge"] = fmt.Sprint(attrs.MTU, attrs.Flags, attrs.OperState, attrs.Promisc, all)
			continue
		case link.Type() == "veth" && name != uplink:
			info, err := netlink.LinkGetProtinfo(link)
			if err != nil {
				l.t.Error(err)
			}
			name = "port of " + l.owner(attrs.HardwareAddr.String())
			l.seen["host, "+name] = fmt.Sprint(attrs.MTU, attrs.Flags, attrs.OperState, info.String())
		case link.Type() == "ifb":
			name = "ifb"
			l.seen["host, "+name] = fmt.Sprint(attrs.MTU, attrs.Flags, attrs.Name)
		default:
			continue
		}
		qdiscs, err := netlink.QdiscList(link)
		if err != nil {
			l.t.Error(err)
		}
		var all []string
		for _, q := range qdiscs {
			text := q.Type()
			if tbf, ok := q.(*netlink.Tbf); ok {
				text = fmt.Sprint(text, tbf.Rate, tbf.Limit, tbf.Buffer)
			}
			all = append(all, text)
		}
		filters, err := netlink.FilterList(link, netlink.MakeHandle(0xffff, 0))
		if err != nil && len(all) > 1 {
			l.t.Error(err)
		}
		l.seen["host, limits of "+name] = fmt.Sprint(all, len(filters))
	}
}

// owner is the pod whose interface has its end on the host with this address.
func (l *lab) owner(mac string) string {
	for _, p := range []*testPod{l.a, l.b} {
		for _, i := range p.result.Interfaces {
			if i.Mac == mac {
				return p.id
			}
		}
	}
	return "nobody"
}

// Pods that the reference plugins have made, whose network was this before, are taken down by our
// plugin, and the other way round.
func TestChangeOfPlugins(t *testing.T) {
	bothWays(t, reference(range4, range6), testChangeOfPlugins)
}

func testChangeOfPlugins(t *testing.T, h *host) {
	a := h.pod("a", all)
	a.must("ADD")
	h.plugins = func(h *host, runtimeConfig map[string]any) []map[string]any {
		plugins := ours(range4, range6)(h, runtimeConfig)
		plugins[0]["cniVersion"] = "0.4.0" // results were others then
		return plugins
	}
	b := h.pod("b", map[string]any{})
	b.must("ADD")
	if a.ip(false).Equal(b.ip(false)) || a.ip(true).Equal(b.ip(true)) {
		t.Errorf("both have %s and %s", a.ip(false), a.ip(true))
	}
	a.must("DEL")
	for _, left := range h.traces() {
		if strings.HasSuffix(left, " "+a.ip(false).String()) || strings.Contains(left, "id: a") || strings.Contains(left, `"a"`) || strings.Contains(left, "bwp") {
			t.Errorf("left of the reference plugins: %s", left)
		}
	}
	a.result = nil
	a.must("DEL")
	h.plugins = reference(range4, range6)
	b.must("DEL")
	if left := h.traces(); len(left) > 0 {
		t.Errorf("left of our plugin: %v", left)
	}
}
