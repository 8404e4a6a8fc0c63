package pressure

import (
	"errors"
	"fmt"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// Files of a cgroup of version 2. memory.events.local excludes events of descendants: a container
// at its own limit does not mean a shortage.
const (
	controllersFile = "cgroup.controllers"
	currentFile     = "memory.current"
	highFile        = "memory.high"
	maxFile         = "memory.max"
	eventsFile      = "memory.events.local"
	unbounded       = "max"
)

var (
	errForeign = errors.New("memory.high is set by another program")
	// errReset is not a failure: systemd resets unknown values of a slice when it creates
	// another slice below it.
	errReset = errors.New("memory.high was reset by another program")
)

// memoryHigh is the threshold of version 2: memory.high of the pods' cgroup.
type memoryHigh struct {
	dir        string
	attributes attributes

	written bool // memory.high may have our value
	events  int  // descriptor, or notOpen
}

// attributes store a number with the cgroup.
type attributes interface {
	get() (int64, error) // 0 means none
	set(int64) error
}

func (h *memoryHigh) target(left distances, current int64) (int64, error) {
	if err := h.acquire(current); err != nil {
		return none, err
	}
	now, err := readNumber(filepath.Join(h.dir, currentFile))
	if err != nil {
		return none, err
	}
	limit, err := readNumber(filepath.Join(h.dir, maxFile))
	if err != nil {
		return none, err
	}
	return computeThreshold(now, min(left.machine, left.pods), limit), nil
}

// acquire ensures that the agent may set memory.high.
func (h *memoryHigh) acquire(current int64) error {
	value, err := readNumber(filepath.Join(h.dir, highFile))
	if err != nil {
		return err
	}
	mark, err := h.attributes.get()
	if err != nil {
		return err
	}
	switch computeOwner(value, current, mark) {
	case orphan:
		h.written = true
		return h.remove()
	case reset:
		h.written = false
		return errReset
	case foreign:
		h.written = false
		return errForeign
	}
	return nil
}

func (h *memoryHigh) set(at int64) (crossed bool, err error) {
	if h.events == notOpen {
		if h.events, err = openEvents(filepath.Join(h.dir, eventsFile)); err != nil {
			return false, err
		}
	}
	// A mark without the value is harmless; a value without the mark would stay forever if the
	// agent were killed.
	if err := h.attributes.set(at); err != nil {
		return false, err
	}
	h.written = true
	if err := writeNow(filepath.Join(h.dir, highFile), strconv.FormatInt(at, 10)); err != nil {
		return false, err
	}
	now, err := readNumber(filepath.Join(h.dir, currentFile))
	return now > at, err
}

func (h *memoryHigh) remove() error {
	if h.written {
		if err := writeNow(filepath.Join(h.dir, highFile), unbounded); err != nil && !isGone(err) {
			return err
		}
		h.written = false
	}
	h.events = closed(h.events)
	return nil
}

func (h *memoryHigh) descriptor() (fd int, events int16) { return h.events, unix.POLLPRI }

// attribute is the directory of a cgroup that stores the mark as an extended attribute.
type attribute string

// highAttr needs CAP_SYS_ADMIN, as all "trusted" attributes.
const highAttr = "trusted.berth.high"

func (a attribute) get() (int64, error) {
	var b [32]byte
	n, err := unix.Getxattr(string(a), highAttr, b[:])
	switch {
	case errors.Is(err, unix.ENODATA):
		return 0, nil
	case err != nil:
		return 0, fmt.Errorf("read the attribute %s of %s: %w", highAttr, a, err)
	}
	at, err := strconv.ParseInt(string(b[:n]), 10, 64)
	if err != nil {
		return 0, nil // not written by the agent
	}
	return at, nil
}

func (a attribute) set(at int64) error {
	if err := unix.Setxattr(string(a), highAttr, strconv.AppendInt(nil, at, 10), 0); err != nil {
		return fmt.Errorf("write the attribute %s of %s: %w", highAttr, a, err)
	}
	return nil
}
