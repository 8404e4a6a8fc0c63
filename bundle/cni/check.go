package cni

import (
	"errors"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
)

// checkLinks compares the bridge and interfaces with the result of the ADD.
func (c *config) checkLinks(h *netlink.Handle, p *pod) error {
	bridge, err := h.LinkByName(c.Bridge)
	if err != nil {
		return broken("bridge %s: %v", c.Bridge, err)
	}
	for _, i := range c.prev.Interfaces {
		where, place := h, "the host"
		if i.Sandbox != "" {
			where, place = p.Handle, "the pod"
		}
		link, err := where.LinkByName(i.Name)
		if err != nil {
			return broken("interface %s of %s: %v", i.Name, place, err)
		}
		if mac := link.Attrs().HardwareAddr.String(); i.Mac != "" && mac != i.Mac {
			return broken("interface %s of %s has the address %s, not %s", i.Name, place, mac, i.Mac)
		}
		if link.Attrs().Flags&net.FlagUp == 0 {
			return broken("interface %s of %s is down", i.Name, place)
		}
		if link.Type() == "veth" && i.Sandbox == "" && link.Attrs().MasterIndex != bridge.Attrs().Index {
			return broken("interface %s is not in bridge %s", i.Name, c.Bridge)
		}
	}
	return nil
}

// checkAddresses compares the pod's addresses, routes and leases with the result of the ADD.
func (c *config) checkAddresses(p *pod) error {
	inner, err := p.LinkByName(p.attachment.ifName)
	if err != nil {
		return broken("interface %s of the pod: %v", p.attachment.ifName, err)
	}
	have, err := p.AddrList(inner, netlink.FAMILY_ALL)
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return err
	}
	routes, err := p.RouteList(inner, netlink.FAMILY_ALL)
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return err
	}
	l, err := openLeases(c)
	if err != nil {
		return err
	}
	defer l.close()
	for _, ip := range c.prev.IPs {
		found := false
		for _, a := range have {
			found = found || a.IPNet.String() == ip.Address.String()
		}
		if !found {
			return broken("interface %s has no address %s", p.attachment.ifName, &ip.Address)
		}
		if owner, err := l.owner(toAddr(ip.Address.IP)); err != nil || !p.attachment.holds(owner) {
			return broken("address %s is not leased to %s", ip.Address.IP, p.attachment.id)
		}
	}
	for _, want := range c.prev.Routes {
		found := false
		for _, r := range routes {
			found = found || r.Gw.Equal(want.GW) && (r.Dst == nil || r.Dst.String() == want.Dst.String())
		}
		if !found {
			return broken("the pod has no route to %s by %s", &want.Dst, want.GW)
		}
	}
	return nil
}

// checkTranslation compares the network's nftables table with the expected rules and elements.
func (c *config) checkTranslation(p *pod) error {
	if !c.Masquerade && len(c.RuntimeConfig.PortMappings) == 0 {
		return nil
	}
	r, err := openRuleset(c)
	if err != nil {
		return err
	}
	defer r.close()
	if rules := r.rules(); !r.inPlace(rules, r.fingerprint(rules)) {
		return broken("table inet %s of nftables is not as it was made", r.table.Name)
	}
	var addresses []netip.Addr
	for _, ip := range c.prev.IPs {
		addresses = append(addresses, toAddr(ip.Address.IP))
	}
	for _, m := range r.mappings(c.RuntimeConfig.PortMappings, addresses, p.attachment) {
		ok, err := r.has(m)
		if err != nil {
			return err
		}
		if !ok {
			return broken("host port %d/%s does not lead to the pod", m.port.HostPort, m.port.Protocol)
		}
	}
	return nil
}

// checkLimits compares the pod's bandwidth limits with the configured ones.
func (c *config) checkLimits(h *netlink.Handle, p *pod) error {
	b := c.RuntimeConfig.Bandwidth
	if b == nil {
		return nil
	}
	for _, l := range []struct {
		link        string
		rate, burst uint64
	}{{p.attachment.hostName(c.Name), b.IngressRate, b.IngressBurst}, {p.attachment.ifbName(c.Name), b.EgressRate, b.EgressBurst}} {
		if l.rate == 0 {
			continue
		}
		link, err := h.LinkByName(l.link)
		if err != nil {
			return broken("interface %s: %v", l.link, err)
		}
		all, err := h.QdiscList(link)
		if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
			return err
		}
		want, found := tbf(link.Attrs().Index, l.rate, l.burst), false
		for _, q := range all {
			have, ok := q.(*netlink.Tbf)
			found = found || ok && have.Rate == want.Rate && have.Limit == want.Limit
		}
		if !found {
			return broken("interface %s has no limit of %d bits a second", l.link, l.rate)
		}
	}
	return nil
}
