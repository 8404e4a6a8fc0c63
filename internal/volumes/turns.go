package volumes

import (
	"context"
	"sync"
)

// turns lets one at a time do something with a volume.
type turns struct {
	mu sync.Mutex
	of map[csiID]*turn // guarded by mu
}

// turn is whose turn it is to do something with a volume.
type turn struct {
	taken   chan struct{} // capacity 1
	waiting int           // who has it included; guarded by turns.mu
}

func newTurns() *turns { return &turns{of: map[csiID]*turn{}} }

// take waits for the turn with the volume.
func (t *turns) take(ctx context.Context, id csiID) (give func(), err error) {
	t.mu.Lock()
	mine := t.of[id]
	if mine == nil {
		mine = &turn{taken: make(chan struct{}, 1)}
		t.of[id] = mine
	}
	mine.waiting++
	t.mu.Unlock()
	leave := func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		if mine.waiting--; mine.waiting == 0 {
			delete(t.of, id)
		}
	}
	select {
	case mine.taken <- struct{}{}:
		return func() { <-mine.taken; leave() }, nil
	case <-ctx.Done():
		leave()
		return nil, context.Cause(ctx)
	}
}
