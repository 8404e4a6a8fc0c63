package pressure

import (
	"os"
	"time"
)

const (
	// least is the minimum distance of a wire: at shorter distances the owner reads periodically,
	// and memory usage just below a threshold neither throttles pods nor wakes the owner
	// continuously.
	least = 16 << 20
	// tolerance is the accepted deviation of a wire from its ideal position.
	tolerance = 1 << 20
	// gap is the minimum interval between two changes of a wire.
	gap = 250 * time.Millisecond
	// fastest is the assumed maximum allocation rate in bytes per second.
	fastest = 1 << 30
	// shortestRest and longestRest are the bounds of how long an alarm is ignored after an event.
	shortestRest, longestRest = time.Second, 10 * time.Second
	// retry is the delay after a failure of a wire until its owner is woken to set it again.
	retry = 10 * time.Second
	// patience is the number of consecutive failures after which a wire is disabled.
	patience = 5
)

// computeWire returns the memory usage for a wire, or none for no wire. left is how much memory may
// be allocated beyond now, limit is the memory limit.
func computeWire(now, left, limit int64) int64 {
	if left < least || left >= none-now {
		return none
	}
	page := int64(os.Getpagesize())
	at := (now + left) / page * page
	if at >= limit {
		return none // never crossed: at the limit, caches are reclaimed
	}
	return at
}

// mayStay reports whether a wire is within the tolerance of its ideal position.
func mayStay(lies, should int64) bool {
	return lies != none && should != none && max(lies, should)-min(lies, should) <= tolerance
}

// computeRest returns how long an alarm can be ignored after an event: no threshold can be crossed
// before the distance to it is allocated.
func computeRest(left distances) time.Duration {
	return min(max(time.Duration(min(left.machine, left.pods)/(fastest/1000))*time.Millisecond, shortestRest), longestRest)
}

// owner classifies a value of memory.high.
type owner int

const (
	nobodys  owner = iota // no limit is set
	ours                  // our wire
	leftover              // the wire of an agent that was killed
	replaced              // our wire was reset by another program
	foreign               // set by another program
)

// computeOwner classifies the value of memory.high by the position of the wire, none if not set,
// and the mark of the last wire.
func computeOwner(value, lies, mark int64) owner {
	switch {
	case value == none && lies == none:
		return nobodys
	case value == none:
		return replaced
	case value == lies:
		return ours
	case lies == none && value == mark:
		return leftover
	}
	return foreign
}
