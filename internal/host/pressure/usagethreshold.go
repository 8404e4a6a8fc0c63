package pressure

import (
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Files of a cgroup of version 1.
const (
	controlFile = "cgroup.event_control"
	usageFile   = "memory.usage_in_bytes"
)

// usageThreshold is a threshold of version 1: an eventfd that the kernel signals when the cgroup's
// memory usage crosses it. Closing it removes the threshold.
type usageThreshold struct {
	dir string
	of  func(distances) int64 // the distance of this cgroup

	event int // descriptor, or notOpen
}

func (t *usageThreshold) target(left distances, _ int64) (int64, error) {
	now, err := readNumber(filepath.Join(t.dir, usageFile))
	return computeThreshold(now, t.of(left), none), err
}

func (t *usageThreshold) set(at int64) (crossed bool, err error) {
	_ = t.remove()
	path := filepath.Join(t.dir, usageFile)
	usage, err := os.Open(path)
	if err != nil {
		return false, err
	}
	defer usage.Close()
	if t.event, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		t.event = notOpen
		return false, fmt.Errorf("eventfd: %w", err)
	}
	if err := os.WriteFile(filepath.Join(t.dir, controlFile), fmt.Appendf(nil, "%d %d %d", t.event, usage.Fd(), at), 0); err != nil {
		return false, err
	}
	// The kernel does not report a crossing before the threshold was set.
	now, err := readNumber(path)
	return now >= at, err
}

func (t *usageThreshold) remove() error {
	t.event = closed(t.event)
	return nil
}

func (t *usageThreshold) descriptor() (fd int, events int16) { return t.event, unix.POLLIN }
