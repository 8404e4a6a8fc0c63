package pressure

import (
	"os"
	"time"
)

const (
	// least is the distance below which no wire is laid: whoever is that near reads by a clock, and
	// memory that rests just below a threshold neither slows pods down nor wakes all the time.
	least = 16 << 20
	// tolerance is how far a wire may lie from where it should.
	tolerance = 1 << 20
	// gap is the least time from one laying of a wire to the next.
	gap = 250 * time.Millisecond
	// fastest is how many bytes are taken in a second at most, about.
	fastest = 1 << 30
	// shortestRest and longestRest are the bounds of how long an alarm rests after it rang.
	shortestRest, longestRest = time.Second, 10 * time.Second
	// retry is how long after a failure of a wire its owner is asked to look, and so to lay it
	// anew.
	retry = 10 * time.Second
	// patience is how many failures in a row end a wire.
	patience = 5
)

// computeWire returns the use of memory at which to wake, none for no wire: left is how much may
// still be taken from what is used now, limit is what can be used at all.
func computeWire(now, left, limit int64) int64 {
	if left < least || left >= none-now {
		return none
	}
	page := int64(os.Getpagesize())
	at := (now + left) / page * page
	if at >= limit {
		return none // never crossed: at the limit, caches are given up
	}
	return at
}

// mayStay reports whether a wire that lies at a use of memory may stay there.
func mayStay(lies, should int64) bool {
	return lies != none && should != none && max(lies, should)-min(lies, should) <= tolerance
}

// computeRest returns how long an alarm need not ring again after it rang: no threshold is crossed
// before the distance to it is taken.
func computeRest(left distances) time.Duration {
	return min(max(time.Duration(min(left.machine, left.pods)/(fastest/1000))*time.Millisecond, shortestRest), longestRest)
}

// owner says whose a value of memory.high is.
type owner int

const (
	nobodys  owner = iota // there is no bound
	ours                  // it is the wire
	leftover              // it is the wire of an agent that was killed
	replaced              // it was the wire, and somebody took the bound away
	foreign               // it is somebody else's
)

// computeOwner says whose the value of memory.high is, from where the wire lies, none if nowhere,
// and from the mark of the last wire.
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
