package eviction

import (
	"time"

	"berth/internal/observe/stats"
)

const (
	// period is the interval at which free space is read for pods with limits.
	period = 10 * time.Second
	// walkPeriod is the interval of measurements while the free space shows that no limit can be
	// exceeded. That can be wrong: others may have freed as much as the pod wrote.
	walkPeriod = time.Minute
	// restFactor is the minimum pause after a measurement of a pod, as a multiple of its duration.
	restFactor = 20
)

type walk struct {
	ended time.Time // zero: there was none
	took  time.Duration
	// spaces are the file systems before it, headroom the bytes that could be written then before a
	// limit was exceeded.
	spaces   []stats.Space
	headroom uint64
}

// nextWalk reports whether the files are due to be measured. free returns the current free space of
// a file system, false if it is unreadable.
func nextWalk(last *walk, now time.Time, free func(stats.Space) (uint64, bool)) bool {
	if last.ended.IsZero() {
		return true
	}
	rested := now.Sub(last.ended)
	if rested < restFactor*last.took {
		return false
	}
	if rested >= walkPeriod {
		return true
	}
	var fell uint64
	for _, s := range last.spaces {
		left, ok := free(s)
		if !ok {
			return true
		}
		fell += s.Free - min(left, s.Free)
	}
	return fell > last.headroom
}
