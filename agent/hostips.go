package agent

import (
	"context"
	"log/slog"
	"net"
	"net/netip"
	"slices"

	"berth/internal/config"
	"berth/internal/node"
)

// hostIPs returns the addresses of the node that its pods are told, primary first: those that its Node tells, by the same rules. Where others
// find those, and for berth run, it is the first that others can reach.
func hostIPs(k *config.Kubelet, name string, n node.Network, log *slog.Logger) []string {
	if k == nil {
		return nodeIPs(log)
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
	return nodeIPs(log)
}

// nodeIPs returns the first address of the node that others can reach, or nothing.
func nodeIPs(log *slog.Logger) []string {
	interfaces, err := net.Interfaces()
	if err != nil {
		log.Warn("addresses of the node not found", "error", err)
		return nil
	}
	for _, i := range interfaces {
		if i.Flags&net.FlagUp == 0 || i.Flags&net.FlagLoopback != 0 {
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
