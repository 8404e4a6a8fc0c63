package images

import (
	"cmp"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"github.com/distribution/reference"

	"berth/internal/pod"
)

// Pull is an active or queued pull.
type Pull struct {
	// Image is the name for runtime calls, Name its full name without tag and digest.
	Image string
	Name  reference.Named
	// Pods are those that wait for it or prefetch it, by UID.
	Pods []pod.UID
	// Ahead: no container waits for it yet.
	Ahead bool
	// Since is when it was started; zero while it is queued.
	Since time.Time
	// Place is its position in the queue: 1 is the next. 0: it is active. AtOnce is the maximum
	// number of concurrent pulls; 0 is unbounded.
	Place, AtOnce int
}

// Pulls returns the active and queued pulls, sorted by image name. It does not block.
func (p *Puller) Pulls() []Pull {
	f := p.pulls
	f.mu.Lock()
	defer f.mu.Unlock()
	var all []Pull
	var positions map[*atomic.Bool]int
	limit := 0
	if f.queue != nil {
		positions, limit = f.queue.positions()
	}
	for key, fl := range f.pulling {
		all = append(all, Pull{
			Image: key.image, Name: fl.name, Pods: slices.Sorted(maps.Keys(fl.pods)), Ahead: fl.ahead.Load(), Since: fl.began,
			Place: positions[&fl.ahead], AtOnce: limit,
		})
	}
	slices.SortFunc(all, func(a, b Pull) int { return cmp.Compare(a.Image, b.Image) })
	return all
}
