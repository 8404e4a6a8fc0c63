package containerlogs

import (
	"math"
	"slices"
	"time"

	"berth/internal/runtime/logs"
)

const (
	// minInspectInterval is the minimum time between two inspections of one log, and so between two
	// rotations.
	minInspectInterval = 100 * time.Millisecond
	// presumedRate is the minimum assumed growth rate in bytes per second: a slow log may become
	// fast at any time.
	presumedRate = 10 << 20
)

// Limits limits the log of each container incarnation.
type Limits struct {
	// MaxSize is the size in bytes at which a log is rotated (containerLogMaxSize), not negative.
	MaxSize int64
	// MaxFiles is the maximum number of files, including the live one (containerLogMaxFiles).
	MaxFiles int
	// Workers is the number of concurrent rotations, and of concurrent compressions
	// (containerLogMaxWorkers).
	Workers int
	// Interval is the longest time between two inspections of a growing log, and the time without
	// rotation after which its parts are compressed (containerLogMonitorInterval).
	Interval time.Duration
}

// total is the limit in bytes of the rotated files of a log together, and of all files of an exited
// container's log.
func (l Limits) total() int64 {
	if l.MaxSize > math.MaxInt64/int64(l.MaxFiles) {
		return math.MaxInt64
	}
	return l.MaxSize * int64(l.MaxFiles)
}

// inspectDelay returns the time until the next inspection of a log of that size and growth rate: it
// will not have reached its limit by then.
func inspectDelay(size int64, rate float64, l Limits) time.Duration {
	seconds := float64(l.MaxSize-size) / max(presumedRate, 2*rate)
	longest := max(minInspectInterval, l.Interval)
	if seconds >= longest.Seconds() {
		return longest
	}
	return max(minInspectInterval, time.Duration(seconds*float64(time.Second)))
}

// file is a part of a log, or the log itself.
type file struct {
	name string
	part logs.Part
	size int64
}

// contents are the files of a log.
type contents struct {
	live   *file    // nil if there is none
	parts  []file   // rotated, oldest first, without duplicates
	debris []string // of an interrupted agent
}

// newest is the stamp of the last rotation.
func (c *contents) newest() logs.Stamp {
	if n := len(c.parts); n > 0 {
		return c.parts[n-1].part.Stamp
	}
	return logs.Stamp{}
}

// computeRemoved returns which of the files, ordered from the oldest to the newest, must be removed
// so that at most most files and total bytes remain. The newest one always remains.
func computeRemoved(files []file, most int, total int64) []file {
	var kept int
	var bytes int64
	for i, f := range slices.Backward(files) {
		bytes += f.size
		if kept++; i < len(files)-1 && (kept > most || bytes > total) {
			return files[:i+1]
		}
	}
	return nil
}

// computeCompressed returns the parts to be compressed: all except the newest, which is read most.
func computeCompressed(parts []file) []file {
	var out []file
	for i := range parts {
		if i < len(parts)-1 && !parts[i].part.Compressed {
			out = append(out, parts[i])
		}
	}
	return out
}

// sortContents classifies the files of a log by name.
func sortContents(log string, files []file) contents {
	var c contents
	byStamp := map[logs.Stamp]file{}
	for _, f := range files {
		switch p, ok := logs.ParsePart(log, f.name); {
		case f.name == log:
			c.live = &f
		case isUnfinished(log, f.name):
			c.debris = append(c.debris, f.name)
		case ok:
			f.part = p
			other, twice := byStamp[p.Stamp]
			if twice && p.Compressed { // it has this name only when it is complete
				f, other = other, f
			}
			if twice {
				c.debris = append(c.debris, f.name)
				f = other
			}
			byStamp[p.Stamp] = f
		}
	}
	for _, f := range byStamp {
		c.parts = append(c.parts, f)
	}
	slices.SortFunc(c.parts, func(a, b file) int { return a.part.Stamp.Compare(b.part.Stamp) })
	slices.Sort(c.debris)
	return c
}
