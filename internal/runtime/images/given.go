package images

import (
	"maps"
	"sync"
	"time"
)

// givenFor is how long an image stays that a container is to be made from: its sandbox may not be
// there yet. It is imageMinimumGCAge's default, which keeps only images that are new.
const givenFor = 2 * time.Minute

// given are the images that were found or made present for containers, which may not be there yet.
type given struct {
	mu sync.Mutex
	at map[string]time.Time // guarded by mu; by the runtime's reference
}

func (g *given) add(ref string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.dropLocked()
	g.at[ref] = time.Now()
}

// addTo adds the references to a set.
func (g *given) addTo(refs map[string]bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.dropLocked()
	for ref := range g.at {
		refs[ref] = true
	}
}

func (g *given) dropLocked() {
	maps.DeleteFunc(g.at, func(_ string, at time.Time) bool { return time.Since(at) >= givenFor })
}
