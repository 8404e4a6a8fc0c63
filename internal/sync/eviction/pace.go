package eviction

import (
	"math"
	"time"
)

const (
	// shortest and longest are between two readings, resting is that between readings of what
	// nobody takes from (the kubelet's monitoring period).
	shortest, resting, longest = 500 * time.Millisecond, 10 * time.Second, time.Minute
	// burst is how many times as fast as a program that is about to begin takes something, a
	// program can take it that does so already.
	burst = 8
)

// fastest returns how much of what a signal is about is taken in a second at most.
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

// nextReading returns when to read again what is left of a signal, after the time since the last
// reading and how much was left then and now beyond the nearest threshold. The time is that in
// which so much can be taken, but for what nobody takes from: that is read less and less often,
// down to once in rest.
func nextReading(s Signal, last time.Duration, before, distance uint64, rest time.Duration) time.Duration {
	in := func(rate float64, most time.Duration) time.Duration {
		seconds := math.Min(float64(distance)/rate, most.Seconds())
		return max(time.Duration(seconds*float64(time.Second)), shortest)
	}
	soon := in(fastest(s), longest)
	if taken := before - min(distance, before); distance > 0 && taken > before/64 {
		return soon
	}
	calm := min(rest, resting)
	if distance > 0 {
		calm = in(fastest(s)/burst, rest)
	}
	return max(soon, min(2*max(last, shortest), calm))
}

// computeWakeAt returns how many bytes of memory may be taken before the kernel is to wake: as many
// as are left beyond the threshold. Where some of these are caches, their reclaim does not change
// the use that the kernel watches: it wakes when half of what is free is taken.
func computeWakeAt(distance, free uint64) uint64 {
	if distance <= free {
		return distance
	}
	return free / 2
}
