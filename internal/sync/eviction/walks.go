package eviction

import (
	"time"

	"berth/internal/observe/stats"
)

const (
	// period is how often it is asked what is free on the file systems of pods with limits.
	period = 10 * time.Second
	// walkPeriod is how long a pod's files are not walked as long as what is free says that no
	// limit of it can be exceeded. That can be wrong: others may have freed as much as the pod
	// wrote.
	walkPeriod = time.Minute
	// restFactor is how many times as long as a walk nothing of the pod is walked after it.
	restFactor = 20
)

// walk is a walk over the files of a pod.
type walk struct {
	ended time.Time // zero: there was none
	took  time.Duration
	// spaces are the file systems as they were before it, headroom the bytes that could be written
	// then before a limit was exceeded.
	spaces   []stats.Space
	headroom uint64
}

// nextWalk reports whether the files are to be walked again. free returns what is free on a file
// system now, false when it cannot be told.
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
