package images

import (
	"maps"
	"sync"
	"time"
)

// pinDuration is how long an image is pinned for a container that is about to be created: its
// sandbox may not exist yet. It equals imageMinimumGCAge's default, which only protects new images.
const pinDuration = 2 * time.Minute

// pins are the images that were returned for containers, which may not exist yet.
type pins struct {
	mu sync.Mutex
	at map[string]time.Time // guarded by mu; by the runtime's reference
}

func (g *pins) add(ref string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.dropLocked()
	g.at[ref] = time.Now()
}

func (g *pins) addTo(refs map[string]bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.dropLocked()
	for ref := range g.at {
		refs[ref] = true
	}
}

func (g *pins) dropLocked() {
	maps.DeleteFunc(g.at, func(_ string, at time.Time) bool { return time.Since(at) >= pinDuration })
}
