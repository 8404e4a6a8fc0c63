// Package ports finds ports that the servers of a test can be told to listen on.
//
// Owns: the range that it takes them from, and which of them it gave out.
// Reads: which ports are taken.
// Never: hands out a port twice, or one that the kernel may give to an outgoing connection.
package ports

import (
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
)

// Below the ports of outgoing connections (net.ipv4.ip_local_port_range, from 32768), so that a
// server that is not started yet, or is killed for a while, finds its port free; and below the
// control plane's, which are from 20000.
const first, last = 10000, 19999

// attempts bounds the search; the range is nearly empty.
const attempts = 1000

var given sync.Map // port → nothing

// Free finds a TCP port that nobody listens on, at any address.
func Free() (int, error) {
	var lastErr error
	for range attempts {
		// By chance, so that processes that search at the same time do not meet.
		port := first + rand.IntN(last-first+1)
		if _, known := given.LoadOrStore(port, struct{}{}); known {
			continue
		}
		l, err := net.Listen("tcp", net.JoinHostPort("", strconv.Itoa(port)))
		if err != nil {
			lastErr = err
			continue
		}
		return port, l.Close()
	}
	return 0, fmt.Errorf("no free port between %d and %d: %w", first, last, lastErr)
}
