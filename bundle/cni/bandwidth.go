package cni

import (
	"crypto/rand"
	"crypto/sha512"
	"encoding/hex"
	"fmt"
	"math"
	"net"

	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// latency is the maximum queueing delay of a packet, in seconds.
const latency = 0.025

// ifbName returns the name of the interface that limits what a pod sends. It is the name that the
// reference plugin uses, so that interfaces of both are removed alike.
func (a attachment) ifbName(network string) string {
	sum := sha512.Sum512([]byte(network + a.id))
	return "bwp" + hex.EncodeToString(sum[:])[:maxInterfaceName-len("bwp")]
}

// check validates limits.
func (b *bandwidth) check() error {
	if b == nil {
		return nil
	}
	for _, l := range []struct {
		name        string
		rate, burst uint64
	}{{"ingress", b.IngressRate, b.IngressBurst}, {"egress", b.EgressRate, b.EgressBurst}} {
		switch {
		case (l.rate == 0) != (l.burst == 0):
			return fail(types.ErrInvalidNetworkConfig, "bandwidth: %sRate is %d and %sBurst %d bits: give both, or neither", l.name, l.rate, l.name, l.burst)
		case l.rate != 0 && (l.rate < 8 || l.burst < 8):
			return fail(types.ErrInvalidNetworkConfig, "bandwidth: %sRate is %d and %sBurst %d bits: less than a byte", l.name, l.rate, l.name, l.burst)
		case l.burst/8 >= math.MaxUint32:
			return fail(types.ErrInvalidNetworkConfig, "bandwidth: %sBurst is %d bits: more than 4 GB", l.name, l.burst)
		}
	}
	return nil
}

// limit sets the limits of a pod's interface on its host end. It returns the interface that it
// created for that, or nil.
func (b *bandwidth) limit(h *netlink.Handle, host netlink.Link, ifb string) (*current.Interface, error) {
	if b == nil {
		return nil, nil
	}
	if b.IngressRate > 0 {
		if err := h.QdiscAdd(tbf(host.Attrs().Index, b.IngressRate, b.IngressBurst)); err != nil {
			return nil, fmt.Errorf("limit what the pod receives: %w", err)
		}
	}
	if b.EgressRate == 0 {
		return nil, nil
	}
	made, err := b.limitEgress(h, host, ifb)
	if err != nil {
		return nil, fmt.Errorf("limit what the pod sends: %w", err)
	}
	return &current.Interface{Name: ifb, Mac: made.Attrs().HardwareAddr.String()}, nil
}

// limitEgress redirects what the pod sends through an interface that limits it: the kernel limits
// what an interface sends, not what it receives.
func (b *bandwidth) limitEgress(h *netlink.Handle, host netlink.Link, ifb string) (netlink.Link, error) {
	attrs := netlink.LinkAttrs{Name: ifb, Flags: net.FlagUp, MTU: host.Attrs().MTU}
	if err := h.LinkAdd(&netlink.Ifb{LinkAttrs: attrs}); err != nil {
		return nil, err
	}
	step("ifb")
	made, err := h.LinkByName(ifb)
	if err != nil {
		return nil, err
	}
	ingress := &netlink.Ingress{QdiscAttrs: netlink.QdiscAttrs{
		LinkIndex: host.Attrs().Index, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_INGRESS,
	}}
	if err := h.QdiscAdd(ingress); err != nil {
		return nil, err
	}
	err = h.FilterAdd(&netlink.U32{
		FilterAttrs: netlink.FilterAttrs{LinkIndex: host.Attrs().Index, Parent: ingress.Handle, Priority: 1, Protocol: unix.ETH_P_ALL},
		ClassId:     netlink.MakeHandle(1, 1),
		RedirIndex:  made.Attrs().Index,
		Actions:     []netlink.Action{&netlink.MirredAction{MirredAction: netlink.TCA_EGRESS_REDIR, Ifindex: made.Attrs().Index}},
	})
	if err != nil {
		return nil, err
	}
	return made, h.QdiscAdd(tbf(made.Attrs().Index, b.EgressRate, b.EgressBurst))
}

// tbf returns a token bucket filter (tc-tbf(8)). rate is in bits per second, burst in bits.
func tbf(link int, rate, burst uint64) *netlink.Tbf {
	rate, burst = rate/8, burst/8
	return &netlink.Tbf{
		QdiscAttrs: netlink.QdiscAttrs{LinkIndex: link, Handle: netlink.MakeHandle(1, 0), Parent: netlink.HANDLE_ROOT},
		Rate:       rate,
		Limit:      uint32(min(float64(rate)*latency+float64(burst), math.MaxUint32)),
		Buffer:     uint32(min(float64(uint32(min(float64(burst)*netlink.TIME_UNITS_PER_SEC/float64(rate), math.MaxUint32)))*netlink.TickInUsec(), math.MaxUint32)),
	}
}

// randomHardwareAddr returns a locally administered unicast address.
func randomHardwareAddr() net.HardwareAddr {
	mac := make(net.HardwareAddr, 6)
	rand.Read(mac)               // never fails
	mac[0] = mac[0]&^0x01 | 0x02 // unicast, locally administered
	return mac
}
