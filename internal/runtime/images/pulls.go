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

// Pull is a pull under way.
type Pull struct {
	// Image is how the runtime is asked for it, Name its full name without tag and digest.
	Image string
	Name  reference.Named
	// Pods are those that wait for it or look ahead for it, by UID.
	Pods []pod.UID
	// Ahead: no container waits for it yet.
	Ahead bool
	// Since is when the registry was first asked; zero while other pulls have their turns.
	Since time.Time
	// Place is how many pulls have their turns before this one's, itself included: 1 is the next.
	// 0: it has its turn. AtOnce is how many have theirs at one time; 0 is no bound.
	Place, AtOnce int
}

// Pulls returns the pulls under way, by the names of the images. It does not wait.
func (p *Puller) Pulls() []Pull {
	f := p.pulls
	f.mu.Lock()
	defer f.mu.Unlock()
	var all []Pull
	var places map[*atomic.Bool]int
	atOnce := 0
	if f.queue != nil {
		places, atOnce = f.queue.places()
	}
	for key, fl := range f.pulling {
		all = append(all, Pull{
			Image: key.image, Name: fl.name, Pods: slices.Sorted(maps.Keys(fl.pods)), Ahead: fl.ahead.Load(), Since: fl.began,
			Place: places[&fl.ahead], AtOnce: atOnce,
		})
	}
	slices.SortFunc(all, func(a, b Pull) int { return cmp.Compare(a.Image, b.Image) })
	return all
}
