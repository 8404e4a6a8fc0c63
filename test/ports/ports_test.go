package ports

import (
	"net"
	"strconv"
	"testing"
)

// Each port is of the range, can be listened on, and is given out once.
func TestFree(t *testing.T) {
	seen := map[int]bool{}
	for range 100 {
		port, err := Free()
		if err != nil {
			t.Fatal(err)
		}
		if seen[port] || port < first || port > last {
			t.Errorf("port %d: given out before: %v, want one between %d and %d", port, seen[port], first, last)
		}
		seen[port] = true
		l, err := net.Listen("tcp4", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
	}
}
