package eviction

import (
	"math"
	"testing"
	"time"
)

func TestNextReading(t *testing.T) {
	const gi = 1 << 30
	for _, tt := range []struct {
		name             string
		signal           Signal
		last             time.Duration
		before, distance uint64
		want             time.Duration
	}{
		{"the first reading, far away", MemoryAvailable, 0, 1000 * gi, 1000 * gi, time.Minute},
		{"the first reading, near", MemoryAvailable, 0, gi, gi, time.Second},
		{"at rest it is read half as often each time", MemoryAvailable, 2 * time.Second, gi, gi, 4 * time.Second},
		{"near, at rest", MemoryAvailable, 10 * time.Second, gi, gi, 4 * time.Second},
		{"at rest for long", MemoryAvailable, 10 * time.Second, 8 * gi, 8 * gi, 10 * time.Second},
		{"more is left than before", MemoryAvailable, 4 * time.Second, gi, 4 * gi, 8 * time.Second},
		{"a little was taken", MemoryAvailable, 5 * time.Second, 64 * gi, 63 * gi, 31500 * time.Millisecond},
		{"somebody takes it", MemoryAvailable, 10 * time.Second, 8 * gi, 6 * gi, 3 * time.Second},
		{"somebody takes it, and is near", MemoryAvailable, 10 * time.Second, 8 * gi, 1, 500 * time.Millisecond},
		{"a 40th was taken", MemoryAvailable, 10 * time.Second, 40 * gi, 39 * gi, 19500 * time.Millisecond},
		{"a 64th was taken, which is at rest", MemoryAvailable, time.Second, 64 * gi, 63 * gi, 31500 * time.Millisecond},
		{"a 40th was taken, and it is near", NodeFsInodesFree, 10 * time.Second, 400_000, 390_000, 3900 * time.Millisecond},
		{"a 80th was taken, and it is near", NodeFsInodesFree, 10 * time.Second, 400_000, 395_000, 10 * time.Second},
		{"as much as a 64th is at rest", MemoryAvailable, 10 * time.Second, 64, 63, 500 * time.Millisecond},
		{"met", MemoryAvailable, 10 * time.Second, gi, 0, 10 * time.Second},
		{"met since", MemoryAvailable, time.Second, 0, 0, 2 * time.Second},
		{"bytes on a disk", NodeFsAvailable, 10 * time.Second, 8 * gi, 4 * gi, 4 * time.Second},
		{"inodes", ImageFsInodesFree, 10 * time.Second, 1_000_000, 500_000, 5 * time.Second},
		{"tasks", PIDAvailable, 10 * time.Second, 40_000, 30_000, 1500 * time.Millisecond},
		{"tasks at rest", PIDAvailable, 10 * time.Second, 30_000, 30_000, 10 * time.Second},
		{"an amount without end", NodeFsAvailable, time.Minute, math.MaxUint64, math.MaxUint64, time.Minute},
		{"from nothing to without end", NodeFsAvailable, time.Minute, 0, math.MaxUint64, time.Minute},
	} {
		if got := nextReading(tt.signal, tt.last, tt.before, tt.distance, resting); got != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, got, tt.want)
		}
	}
}

// What the kernel does not tell of is read as often as it could be taken from by a program that is
// about to begin, and once in a minute where there is plenty.
func TestNextReadingOfWhatRests(t *testing.T) {
	const mi = 1 << 20
	for distance, want := range map[uint64]time.Duration{
		64 << 30: time.Minute, 8 << 30: 32 * time.Second, 2560 * mi: 10 * time.Second, 256 * mi: time.Second, 32 * mi: 500 * time.Millisecond, 0: 10 * time.Second,
	} {
		if got := nextReading(MemoryAvailable, time.Minute, distance, distance, longest); got != want {
			t.Errorf("with %d bytes beyond the threshold: %s, want %s", distance, got, want)
		}
	}
}
