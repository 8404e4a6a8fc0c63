package pressure

import (
	"os"
	"time"
)

const (
	// minDistance is the minimum distance of a threshold: at shorter distances the owner reads
	// periodically, and memory usage just below an eviction threshold neither throttles pods nor
	// wakes the owner continuously.
	minDistance = 16 << 20
	// tolerance is the accepted deviation of a threshold from its ideal position.
	tolerance = 1 << 20
	// minInterval is the minimum interval between two changes of a threshold.
	minInterval = 250 * time.Millisecond
	// maxRate is the assumed maximum allocation rate in bytes per second.
	maxRate = 1 << 30
	// minIgnoreTime and maxIgnoreTime are the bounds of how long a notification is ignored after an
	// event.
	minIgnoreTime, maxIgnoreTime = time.Second, 10 * time.Second
	// retryDelay is the delay after a failure of a threshold until its owner is woken to set it
	// again.
	retryDelay = 10 * time.Second
	// maxFailures is the number of consecutive failures after which a threshold is disabled.
	maxFailures = 5
)

// computeThreshold returns the memory usage for a threshold, or none for no threshold. left is how
// much memory may be allocated beyond now, limit is the memory limit.
func computeThreshold(now, left, limit int64) int64 {
	if left < minDistance || left >= none-now {
		return none
	}
	page := int64(os.Getpagesize())
	at := (now + left) / page * page
	if at >= limit {
		return none // never crossed: at the limit, caches are reclaimed
	}
	return at
}

// isWithinTolerance reports whether a threshold is within the tolerance of its ideal position.
func isWithinTolerance(current, desired int64) bool {
	return current != none && desired != none && max(current, desired)-min(current, desired) <= tolerance
}

// computeIgnoreTime returns how long a notification can be ignored after an event: no threshold can
// be crossed before the distance to it is allocated.
func computeIgnoreTime(left distances) time.Duration {
	return min(max(time.Duration(min(left.machine, left.pods)/(maxRate/1000))*time.Millisecond, minIgnoreTime), maxIgnoreTime)
}

// owner classifies a value of memory.high.
type owner int

const (
	unset   owner = iota // no limit is set
	ours                 // our threshold
	orphan               // the threshold of an agent that was killed
	reset                // our threshold was reset by another program
	foreign              // set by another program
)

// computeOwner classifies the value of memory.high by the position of the threshold, none if not
// set, and the mark of the last threshold.
func computeOwner(value, current, mark int64) owner {
	switch {
	case value == none && current == none:
		return unset
	case value == none:
		return reset
	case value == current:
		return ours
	case current == none && value == mark:
		return orphan
	}
	return foreign
}
