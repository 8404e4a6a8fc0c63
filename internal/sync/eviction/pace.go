package eviction

import (
	"math"
	"time"
)

const (
	// shortest and longest are between two readings, resting is that between readings of what
	// nobody takes from (the kubelet's monitoring period).
	shortest, resting, longest = 500 * time.Millisecond, 10 * time.Second, time.Minute
	// near is how far a threshold of memory is, in bytes, when the kernel's word alone is not
	// waited for.
	near = 64 << 20
)

// Rates at which what is left is assumed to be taken at most, in a second. Who is faster is seen
// later, and then at the shortest distance.
const (
	fastestMemory = 2 << 30
	fastestDisk   = 1 << 30
	fastestInodes = 100_000
	fastestTasks  = 20_000
)

// fastest returns the rate of a signal.
func fastest(s Signal) uint64 {
	switch s.resource() {
	case memory:
		return fastestMemory
	case storage:
		return fastestDisk
	case inodes:
		return fastestInodes
	}
	return fastestTasks
}

// nextReading returns when to read again what is left of a signal, after the time since the last
// reading and how much was left then and now beyond the nearest threshold. The time is that in
// which so much can be taken, but for what nobody takes from: that is read less and less often.
func nextReading(s Signal, last time.Duration, before, distance uint64) time.Duration {
	at := time.Duration(math.Min(float64(distance)/float64(fastest(s))*float64(time.Second), float64(longest)))
	at = max(at, shortest)
	if taken := before - min(distance, before); taken > before/64 {
		return at
	}
	return max(at, min(2*max(last, shortest), resting))
}
