package eviction

import (
	"math"
	"time"
)

const (
	// shortest and longest bound the time between readings; resting is the interval for a resource
	// that is not being used up (the kubelet's monitoring period).
	shortest, resting, longest = 500 * time.Millisecond, 10 * time.Second, time.Minute
	// burst is how many times faster than a starting program a running one can use up a resource.
	burst = 8
)

// fastest returns the maximum rate, per second, at which the signal's resource is used up.
func fastest(s Signal) float64 {
	switch s.resource() {
	case memory:
		return 2 << 30
	case storage:
		return 1 << 30
	case inodes:
		return 100_000
	}
	return 20_000
}

// nextReading returns when to read a signal again, given the time since the last reading, and how
// much was available beyond the nearest threshold then and now. That is the time in which the
// amount could be used up. While it does not shrink, the interval grows, up to rest.
func nextReading(s Signal, last time.Duration, before, distance uint64, rest time.Duration) time.Duration {
	in := func(rate float64, most time.Duration) time.Duration {
		seconds := math.Min(float64(distance)/rate, most.Seconds())
		return max(time.Duration(seconds*float64(time.Second)), shortest)
	}
	earliest := in(fastest(s), longest)
	if taken := before - min(distance, before); distance > 0 && taken > before/64 {
		return earliest
	}
	latest := min(rest, resting)
	if distance > 0 {
		latest = in(fastest(s)/burst, rest)
	}
	return max(earliest, min(2*max(last, shortest), latest))
}

// computeWakeAt returns how many bytes of memory may be used before the kernel notifies: the amount
// available beyond the threshold. If that includes caches, their reclaim does not change the usage
// that the kernel watches: it notifies when half of the free memory is used.
func computeWakeAt(distance, free uint64) uint64 {
	if distance <= free {
		return distance
	}
	return free / 2
}
