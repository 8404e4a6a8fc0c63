// Package hostports tells whether a host port that a pod asks for is in use by a program of the
// machine.
//
// Owns: nothing.
// Reads: the kernel's tables of sockets in the agent's network namespace, and whose these are
// (proc_pid_net(5), proc_pid_fd(5)).
// Never: opens a port, or keeps one from somebody else.
package hostports

import (
	"fmt"
	"net/netip"
	"strconv"

	v1 "k8s.io/api/core/v1"

	"berth/internal/pod"
)

// Socket is a socket of the machine to which anybody may send: one that listens, or of UDP one that
// is not connected.
type Socket struct {
	Protocol v1.Protocol // TCP or UDP
	Address  netip.AddrPort
	Inode    uint64
}

// Table is what the machine has open.
type Table interface {
	// Sockets returns the sockets of TCP and UDP, of both families.
	Sockets() ([]Socket, error)
	// Holder names the program that has the socket, for users; "" if it cannot be found.
	Holder(s Socket) string
}

// Check returns an error if a host port of the pod is in use. A pod on the host's network opens its
// ports itself. SCTP is not looked at.
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

// findConflict returns the first host port of the pod that is in use, and the socket that has it,
// nil if none has.
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

// overlaps reports whether what is sent to the host IP of a pod, "" for all, could be meant for a
// socket with the address. A socket on all addresses of IPv6 takes those of IPv4 too, unless it was
// told not to, which the tables do not show.
func overlaps(hostIP string, of netip.Addr) bool {
	want, err := netip.ParseAddr(hostIP)
	if err != nil { // "": other texts are refused before
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
