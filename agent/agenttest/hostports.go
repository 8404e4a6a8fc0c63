package agenttest

import (
	"net/netip"
	"slices"
	"sync"

	v1 "k8s.io/api/core/v1"

	"berth/internal/host/hostports"
)

// hostSockets are the open sockets of the machine's programs. It is safe for concurrent use.
type hostSockets struct {
	mu   sync.Mutex
	open []hostports.Socket // guarded by mu
}

// Sockets returns the open sockets.
func (h *hostSockets) Sockets() ([]hostports.Socket, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.open), nil
}

// Holder returns the program that holds all sockets.
func (h *hostSockets) Holder(hostports.Socket) string { return `program "nginx" (process 7)` }

// listen makes a program listen on the TCP address.
func (h *hostSockets) listen(address string) error {
	at, err := netip.ParseAddrPort(address)
	if err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.open = append(h.open, hostports.Socket{Protocol: v1.ProtocolTCP, Address: at})
	return nil
}

// closeAll stops the programs.
func (h *hostSockets) closeAll() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.open = nil
}
