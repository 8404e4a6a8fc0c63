package containerlogs

import (
	"math"
	"slices"
	"time"

	"berth/internal/runtime/logs"
)

const (
	// shortestLook is the least time between two looks at one log, and so between two rotations of
	// it.
	shortestLook = 100 * time.Millisecond
	// presumedRate is how fast a log is presumed to grow at least, in bytes a second: one that was
	// slow may become fast at any moment.
	presumedRate = 10 << 20
)

// Limits bound the log of each incarnation of a container.
type Limits struct {
	// MaxSize is the size in bytes from which on a log is rotated (containerLogMaxSize), not
	// negative.
	MaxSize int64
	// MaxFiles is how many files there are at most, the one that is written included
	// (containerLogMaxFiles).
	MaxFiles int
	// Workers is how many logs are rotated at a time, and how many are compressed
	// (containerLogMaxWorkers).
	Workers int
	// Interval is the longest time between two looks at a log that is written to, and how long a
	// log goes without a rotation until its parts are compressed (containerLogMonitorInterval).
	Interval time.Duration
}

// total is how many bytes the rotated files of a log take together at most, and the log of a
// container that has exited.
func (l Limits) total() int64 {
	if l.MaxSize > math.MaxInt64/int64(l.MaxFiles) {
		return math.MaxInt64
	}
	return l.MaxSize * int64(l.MaxFiles)
}

// nextLook returns how long a log of that size, which grows at that rate, is left alone: it will
// not have reached its limit by then.
func nextLook(size int64, rate float64, l Limits) time.Duration {
	seconds := float64(l.MaxSize-size) / max(presumedRate, 2*rate)
	longest := max(shortestLook, l.Interval)
	if seconds >= longest.Seconds() {
		return longest
	}
	return max(shortestLook, time.Duration(seconds*float64(time.Second)))
}

// file is a part of a log, or the log itself.
type file struct {
	name string
	part logs.Part
	size int64
}

// contents are the files of a log.
type contents struct {
	live   *file    // nil when there is none
	parts  []file   // rotated, oldest first, none twice
	debris []string // of an agent that was cut off
}

// newest is the stamp of the last rotation.
func (c *contents) newest() logs.Stamp {
	if n := len(c.parts); n > 0 {
		return c.parts[n-1].part.Stamp
	}
	return logs.Stamp{}
}

// computeRemoved returns which files, of some that are ordered from the oldest to the newest, have
// to go so that no more than most are left, with no more than total bytes. The newest one always
// stays.
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

// computeCompressed returns the parts that are to be compressed: all but the newest, which is the
// one most read.
func computeCompressed(parts []file) []file {
	var out []file
	for i := range parts {
		if i < len(parts)-1 && !parts[i].part.Compressed {
			out = append(out, parts[i])
		}
	}
	return out
}

// sortContents tells the files of a log by their names.
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
			if twice && p.Compressed { // it appears under this name when it is whole
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
	slices.SortFunc(c.parts, func(a, b file) int { return a.part.Compare(b.part.Stamp) })
	slices.Sort(c.debris)
	return c
}
