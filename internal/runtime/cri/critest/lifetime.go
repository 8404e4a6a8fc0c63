package critest

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// lifetime is the time until Close, which waits for the work that is in progress.
type lifetime struct {
	mu      *sync.Mutex    // the runtime's
	closed  bool           // guarded by mu
	done    chan struct{}  // closed by Close
	running sync.WaitGroup // exits and name releases in progress
}

// begin registers work that Close waits for; it returns false if the runtime is closed.
func (l *lifetime) begin() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return false
	}
	l.running.Add(1)
	return true
}

// wait waits for a channel to be closed, or for the runtime to be closed.
func (l *lifetime) wait(closed <-chan struct{}) {
	select {
	case <-closed:
	case <-l.done:
	}
}

// names are the IDs, and the reserved names of sandboxes and containers.
type names struct {
	mu      *sync.Mutex // the runtime's
	life    *lifetime
	ids     int               // guarded by mu
	holders map[string]string // guarded by mu; reserved name → ID
}

// newID returns a new ID of 64 hex digits. IDs are deterministic. The caller holds the lock.
func (n *names) newID() string {
	n.ids++
	sum := sha256.Sum256(fmt.Appendf(nil, "critest %d", n.ids))
	return hex.EncodeToString(sum[:])
}

// reserve reserves a name for an ID, or returns an error that names the holder, with containerd's
// hint for the kind. The caller holds the lock.
func (n *names) reserve(kind, name, id, hint string) error {
	if holder, taken := n.holders[name]; taken {
		return status.Errorf(codes.FailedPrecondition, "failed to reserve %s name %q%s: name %q is reserved for %q", kind, name, hint, name, holder)
	}
	n.holders[name] = id
	return nil
}

// release drops the reservation of a name. The caller holds the lock.
func (n *names) release(name string) { delete(n.holders, name) }

// releaseLater releases a name after NameReservation, like the cleanup of a cancelled call.
func (n *names) releaseLater(name, id string) {
	if !n.life.begin() {
		return
	}
	go func() {
		defer n.life.running.Done()
		timer := time.NewTimer(NameReservation)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-n.life.done:
		}
		n.mu.Lock()
		defer n.mu.Unlock()
		if n.holders[name] == id {
			n.release(name)
		}
	}()
}

// releaseUnused drops the reservations of unused IDs. The caller holds the lock.
func (n *names) releaseUnused(isUsed func(id string) bool) {
	for name, id := range n.holders {
		if !isUsed(id) {
			n.release(name)
		}
	}
}
