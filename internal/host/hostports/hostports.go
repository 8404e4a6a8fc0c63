// Package hostports checks whether a host port of a pod is in use by a process of the machine.
//
// Owns: nothing.
// Reads: the kernel's socket tables of the agent's network namespace, and the owners of sockets
// (proc_pid_net(5), proc_pid_fd(5)).
// Never: opens or reserves a port.
package hostports

import (
	"fmt"
	"net/netip"
	"strconv"

	v1 "k8s.io/api/core/v1"

	"berth/internal/pod"
)

// Socket is a socket of the machine that accepts traffic from any peer: a listening one, or an
// unconnected UDP socket.
type Socket struct {
	Protocol v1.Protocol // TCP or UDP
	Address  netip.AddrPort
	Inode    uint64
}

// Table is the table of open sockets.
type Table interface {
	// Sockets returns the TCP and UDP sockets of IPv4 and IPv6.
	Sockets() ([]Socket, error)
	// Holder names the process that owns the socket, for users; "" if it cannot be found.
	Holder(s Socket) string
}

// Check returns an error if a host port of the pod is in use. It ignores pods on the host's
// network, which open their ports themselves, and SCTP.
func Check(t Table, p *v1.Pod) error {
	if p.Spec.HostNetwork || !hasHostPort(p) {
		return nil
	}
	sockets, err := t.Sockets()
	if err != nil {
		return fmt.Errorf("host ports: %w", err)
	}
	container, port, s := findConflict(p, sockets)
	if s == nil {
		return nil
	}
	holder := t.Holder(*s)
	if holder == "" {
		holder = "a program of this machine"
	}
	return fmt.Errorf("host port %s of container %q is in use: %s has %s; end that program, or give the container another hostPort",
		describe(port), container, holder, s.Address)
}

func describe(port *v1.ContainerPort) string {
	text := strconv.Itoa(int(port.HostPort)) + "/" + string(protocolOf(port))
	if port.HostIP != "" {
		text += " on " + port.HostIP
	}
	return text
}

func hasHostPort(p *v1.Pod) bool {
	found := false
	eachHostPort(p, func(string, *v1.ContainerPort) { found = true })
	return found
}

// findConflict returns the first host port of the pod that is in use, and the socket that uses it,
// or nil.
func findConflict(p *v1.Pod, sockets []Socket) (container string, port *v1.ContainerPort, in *Socket) {
	eachHostPort(p, func(name string, want *v1.ContainerPort) {
		for i := range sockets {
			s := &sockets[i]
			if in == nil && s.Protocol == protocolOf(want) && int32(s.Address.Port()) == want.HostPort && overlaps(want.HostIP, s.Address.Addr()) {
				container, port, in = name, want, s
			}
		}
	})
	return container, port, in
}

func eachHostPort(p *v1.Pod, f func(container string, port *v1.ContainerPort)) {
	for c := range pod.Containers(&p.Spec) {
		for j := range c.Ports {
			if port := &c.Ports[j]; port.HostPort != 0 {
				f(c.Name, port)
			}
		}
	}
}

func protocolOf(port *v1.ContainerPort) v1.Protocol {
	if port.Protocol == "" {
		return v1.ProtocolTCP
	}
	return port.Protocol
}

// overlaps reports whether traffic to the host IP of a pod, "" for all, could be for a socket with
// the address. A socket on all addresses of IPv6 also accepts IPv4, unless IPV6_V6ONLY is set,
// which the tables do not show.
func overlaps(hostIP string, of netip.Addr) bool {
	want, err := netip.ParseAddr(hostIP)
	if err != nil { // "": validation rejects other texts
		return true
	}
	of, want = of.Unmap(), want.Unmap()
	switch {
	case of == netip.IPv6Unspecified():
		return true
	case of.IsUnspecified(), want.IsUnspecified():
		return of.Is4() == want.Is4()
	}
	return of == want
}
