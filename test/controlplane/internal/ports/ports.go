// Package ports finds ports that servers can be told to listen on.
//
// Owns: the range that it takes them from.
// Reads: which ports are taken.
// Never: hands out a port that the kernel may give to an outgoing connection, or that a Service of
// type NodePort may have.
package ports

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
)

// Below the ports of outgoing connections (net.ipv4.ip_local_port_range, from 32768) and of
// Services (from 30000): a server that is stopped for a while finds its port free again.
const first, last = 20000, 29999

// attempts bounds the search; the range is nearly empty.
const attempts = 1000

// Reserve finds n ports of 127.0.0.1 that nobody listens on, and holds them until release is
// called, which is to be done right before the servers start.
func Reserve(n int) (found []int, release func() error, err error) {
	var held []net.Listener
	release = func() error {
		var errs []error
		for _, l := range held {
			errs = append(errs, l.Close())
		}
		return errors.Join(errs...)
	}
	var lastErr error
	for range attempts {
		if len(found) == n {
			return found, release, nil
		}
		// By chance, so that those who search at the same time do not meet.
		port := first + rand.IntN(last-first+1)
		l, err := net.Listen("tcp4", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		if err != nil {
			lastErr = err
			continue
		}
		held, found = append(held, l), append(found, port)
	}
	return nil, nil, errors.Join(fmt.Errorf("found %d of %d free ports between %d and %d of 127.0.0.1: %w", len(found), n, first, last, lastErr), release())
}
