package agent

import (
	"context"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"berth/internal/config"
	"berth/internal/embedded"
	"berth/internal/node"
)

// hostAddresses are the addresses of the node that its pods are told, as they were found last.
type hostAddresses struct {
	find  func() []string
	found atomic.Pointer[[]string]
}

func newHostAddresses(k *config.Kubelet, name string, n node.Network, log *slog.Logger) *hostAddresses {
	h := &hostAddresses{find: func() []string { return hostIPs(k, name, n, log) }}
	h.refresh()
	return h
}

// current returns the addresses, primary first.
func (h *hostAddresses) current() []string { return *h.found.Load() }

// addresses returns them as certificates have them.
func (h *hostAddresses) addresses() []net.IP {
	var out []net.IP
	for _, text := range h.current() {
		if ip := net.ParseIP(text); ip != nil {
			out = append(out, ip)
		}
	}
	return out
}

// refresh finds them anew, and reports whether they are others. Those of a node that has none for a while stay.
func (h *hostAddresses) refresh() bool {
	next, old := h.find(), h.found.Load()
	if old != nil && (len(next) == 0 || slices.Equal(next, *old)) {
		return false
	}
	h.found.Store(&next)
	return true
}

// addressQuiet is how long the agent waits after a change of addresses or routes, which come several at a time.
const addressQuiet = time.Second

// followAddresses keeps the node's addresses, and has pods and Node told of them when they change.
func (a *Agent) followAddresses(ctx context.Context) error {
	network := a.out.Network
	if network.Interfaces == nil {
		network = node.HostNetwork()
	}
	wake, ended := make(chan struct{}, 1), make(chan error, 1)
	go func() {
		ended <- network.Watch(ctx, func() {
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
			a.cfg.Log.Warn("addresses of the node are not followed; they stay as they are until the agent is started anew", "error", err)
			return waitDone(ctx)
		case <-wake:
		}
		select {
		case <-ctx.Done():
			<-ended
			return ctx.Err()
		case <-time.After(addressQuiet):
		}
		if !a.hostIPs.refresh() {
			continue
		}
		a.cfg.Log.Info("the node has other addresses", "addresses", a.hostIPs.current())
		a.workers.WakeAll()
		a.node.Wake()
	}
}

// hostIPs returns the addresses of the node that its pods are told, primary first: those that its Node tells, by the same rules. Where others
// find those, and for berth run, it is the one that others can reach.
func hostIPs(k *config.Kubelet, name string, n node.Network, log *slog.Logger) []string {
	if n.Interfaces == nil {
		n = node.HostNetwork()
	}
	if k == nil {
		return reachableIPs(n, log)
	}
	var out []string
	for _, ip := range slices.DeleteFunc(slices.Clone(k.NodeIPs), netip.Addr.IsUnspecified) {
		out = append(out, ip.String()) // whether an interface has it already or is about to
	}
	if len(out) > 0 {
		return out
	}
	s := node.Settings{Name: name, NodeIPs: k.NodeIPs, ExternalCloudProvider: k.CloudProvider == "external"}
	out, err := node.InternalIPs(context.Background(), &s, n)
	if err != nil {
		log.Warn("addresses of the node not found by its name or the default route", "error", err)
	}
	if len(out) > 0 {
		return out
	}
	return reachableIPs(n, log)
}

// reachableIPs returns the address of the default route, or the first of an interface where there is no such route, or nothing. Bridges of pods
// have addresses, too, that nobody else can reach.
func reachableIPs(n node.Network, log *slog.Logger) []string {
	if ip, err := n.DefaultRoute(netip.IPv4Unspecified()); err == nil {
		return []string{ip.String()}
	}
	interfaces, err := net.Interfaces()
	if err != nil {
		log.Warn("addresses of the node not found", "error", err)
		return nil
	}
	for _, i := range interfaces {
		if i.Flags&net.FlagUp == 0 || i.Flags&net.FlagLoopback != 0 || strings.HasPrefix(i.Name, embedded.BridgePrefix) {
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
