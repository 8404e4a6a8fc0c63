package ports

import (
	"net"
	"slices"
	"strconv"
	"testing"
)

func TestReserve(t *testing.T) {
	found, release, err := Reserve(3)
	if err != nil {
		t.Fatal(err)
	}
	if slices.Sort(found); len(slices.Compact(found)) != 3 || found[0] < first || found[2] > last {
		t.Errorf("Reserve(3) = %v, want 3 different ports between %d and %d", found, first, last)
	}
	for _, port := range found {
		if l, err := listen(port); err == nil {
			t.Errorf("port %d is not held", port)
			l.Close()
		}
	}
	if err := release(); err != nil {
		t.Fatal(err)
	}
	for _, port := range found {
		l, err := listen(port)
		if err != nil {
			t.Errorf("after release: %v", err)
			continue
		}
		l.Close()
	}
}

func listen(port int) (net.Listener, error) {
	return net.Listen("tcp4", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
}
