package node

import (
	"context"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"time"
)

// HostIPs holds the addresses of the node for status.hostIPs of its pods.
type HostIPs struct {
	settings   *Settings // nil: there is no Node
	network    Network
	podBridges string // prefix of their names; empty: none
	log        *slog.Logger
	found      atomic.Pointer[[]string]
}

// NewHostIPs finds the addresses. With settings they are the Node's, by the same rules. If a cloud
// provider sets those, or settings is nil, it is the one address that other machines can reach.
// Interfaces whose names begin with podBridges are ignored unless that is empty. The zero Network
// stands for this machine's.
func NewHostIPs(settings *Settings, n Network, podBridges string, log *slog.Logger) *HostIPs {
	if n.Interfaces == nil {
		n = HostNetwork()
	}
	h := &HostIPs{settings: settings, network: n, podBridges: podBridges, log: log}
	h.refresh()
	return h
}

// Current returns the addresses, primary first.
func (h *HostIPs) Current() []string { return *h.found.Load() }

// IPs returns the addresses in the form that certificates use.
func (h *HostIPs) IPs() []net.IP {
	var out []net.IP
	for _, text := range h.Current() {
		if ip := net.ParseIP(text); ip != nil {
			out = append(out, ip)
		}
	}
	return out
}

// refresh finds the addresses again, and reports whether they changed. If the node has none for a
// while, the old ones stay.
func (h *HostIPs) refresh() bool {
	next, old := h.find(), h.found.Load()
	if old != nil && (len(next) == 0 || slices.Equal(next, *old)) {
		return false
	}
	h.found.Store(&next)
	return true
}

// quietPeriod is how long Follow waits after a change of addresses or routes: changes come in
// bursts.
const quietPeriod = time.Second

// Follow keeps the addresses up to date until ctx is done, and calls changed after each change. If
// this machine does not report changes, the addresses stay as they are.
func (h *HostIPs) Follow(ctx context.Context, changed func()) error {
	wake, ended := make(chan struct{}, 1), make(chan error, 1)
	go func() {
		ended <- h.network.Watch(ctx, func() {
			select {
			case wake <- struct{}{}:
			default:
			}
		})
	}()
	for {
		select {
		case err := <-ended:
			if ctx.Err() != nil {
				return ctx.Err()
			}
			h.log.Warn("Cannot watch the addresses of the node; they do not change until the agent restarts", "error", err)
			<-ctx.Done()
			return ctx.Err()
		case <-wake:
		}
		select {
		case <-ctx.Done():
			<-ended
			return ctx.Err()
		case <-time.After(quietPeriod):
		}
		if h.refresh() {
			h.log.Info("the node has other addresses", "addresses", h.Current())
			changed()
		}
	}
}

func (h *HostIPs) find() []string {
	if h.settings == nil {
		return h.reachableIPs()
	}
	var out []string
	for _, ip := range slices.DeleteFunc(slices.Clone(h.settings.NodeIPs), netip.Addr.IsUnspecified) {
		out = append(out, ip.String()) // whether or not an interface has it yet
	}
	if len(out) > 0 {
		return out
	}
	out, err := InternalIPs(context.Background(), h.settings, h.network)
	if err != nil {
		h.log.Warn("addresses of the node not found by its name or the default route", "error", err)
	}
	if len(out) > 0 {
		return out
	}
	return h.reachableIPs()
}

// reachableIPs returns the address of the default route, or the first address of an interface if
// there is no such route, or nothing. Pod bridges are skipped: other machines cannot reach their
// addresses.
func (h *HostIPs) reachableIPs() []string {
	if ip, err := h.network.DefaultRoute(netip.IPv4Unspecified()); err == nil {
		return []string{ip.String()}
	}
	interfaces, err := net.Interfaces()
	if err != nil {
		h.log.Warn("addresses of the node not found", "error", err)
		return nil
	}
	for _, i := range interfaces {
		if i.Flags&net.FlagUp == 0 || i.Flags&net.FlagLoopback != 0 || h.podBridges != "" && strings.HasPrefix(i.Name, h.podBridges) {
			continue
		}
		addrs, err := i.Addrs()
		if err != nil {
			continue
		}
		for _, ad := range addrs {
			if n, ok := ad.(*net.IPNet); ok && n.IP.To4() != nil && n.IP.IsGlobalUnicast() {
				return []string{n.IP.String()}
			}
		}
	}
	return nil
}
