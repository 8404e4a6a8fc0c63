package node

import (
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"

	"berth/internal/pod"
)

// Current holds the newest known Node for its readers. It is created before the Node that updates
// it, and is safe for concurrent use.
type Current struct {
	wake       chan struct{} // capacity 1: the status may have changed
	observed   chan struct{} // capacity 1: current may have changed
	registered chan struct{} // closed when the API server has returned the Node
	forgotten  func() bool   // Sources.DevicesForgotten
	// changed publishes the Node's name when current may have changed.
	changed pod.Publisher[string]

	mu        sync.Mutex
	current   *v1.Node // guarded by mu; shared with readers and never changed, only replaced
	published bool     // guarded by mu; current is the API server's
	watched   bool     // guarded by mu; Observe is in use
	deleted   bool     // guarded by mu; the API server has deleted it
	doubted   bool     // guarded by mu; a watch returned a Node older than current
	// corrected: guarded by mu; from now on the API server's Node has no extended resources of an
	// earlier agent whose devices are not known.
	corrected bool
}

// NewCurrent returns a Current without a Node.
func NewCurrent() *Current {
	return &Current{
		wake: make(chan struct{}, 1), observed: make(chan struct{}, 1), registered: make(chan struct{}),
		forgotten: func() bool { return true },
	}
}

// Wake triggers a status report, after a change of readiness above all. It never blocks.
func (c *Current) Wake() { signal(c.wake) }

// Observe takes the newest Node of a watch, nil if it was deleted. It never blocks. A caller must
// report all later changes: from the first call on, the Node is not read before its status is
// compared.
func (c *Current) Observe(newest *v1.Node) {
	c.mu.Lock()
	c.watched = true
	if newest == nil {
		c.deleted = true
		c.mu.Unlock()
		return
	}
	c.mu.Unlock()
	c.adopt(newest)
}

// Node returns the newest known Node: the API server's, or a stand-in before the server has
// answered, or nil before Load. It is shared; callers must not change it.
func (c *Current) Node() *v1.Node {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.current
}

// UID returns the UID of the Node, "" if it is not known or the Node is deleted or being deleted.
func (c *Current) UID() types.UID {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.published || c.deleted || c.current.DeletionTimestamp != nil {
		return ""
	}
	return c.current.UID
}

// Registered returns a channel that is closed when the API server has returned the Node for the
// first time.
func (c *Current) Registered() <-chan struct{} { return c.registered }

// adopt stores a Node from the API server unless a newer one is known: watches lag behind writes.
// As an older etcd may have been restored, the Node is then read once, and the result is stored.
func (c *Current) adopt(newest *v1.Node) {
	stripped := *newest
	stripped.ManagedFields = nil // never read, and most of the object's size
	c.mu.Lock()
	if c.published && !c.deleted && c.current.UID == stripped.UID {
		if order, err := resourceversion.CompareResourceVersion(stripped.ResourceVersion, c.current.ResourceVersion); err == nil && order < 0 && !c.doubted {
			c.doubted = true
			c.mu.Unlock()
			return
		}
	}
	if !c.corrected && c.forgotten() {
		stripped = *withoutExtended(&stripped) // admission uses it during the correction
	}
	first := !c.published
	c.current, c.published, c.deleted, c.doubted = &stripped, true, false, false
	c.mu.Unlock()
	if first {
		close(c.registered)
	}
	signal(c.observed)
	c.changed.Publish(stripped.Name)
}

// Subscribe returns an inbox that receives the Node's name each time the result of Node may have
// changed, and a function that ends the subscription.
func (c *Current) Subscribe() (changed *pod.Inbox[string], cancel func()) {
	return c.changed.Subscribe()
}

// known returns the API server's Node if a watch keeps it current, else nil.
func (c *Current) known() *v1.Node {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.watched && c.published && !c.deleted && !c.doubted {
		return c.current
	}
	return nil
}

// standIn sets the stand-in that Node returns until the API server has returned the Node.
func (c *Current) standIn(n *v1.Node) {
	c.mu.Lock()
	if c.current == nil {
		c.current = n
	}
	c.mu.Unlock()
	c.changed.Publish(n.Name)
}

// correct notes that the devices of an earlier agent have been removed from the Node.
func (c *Current) correct() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.corrected = true
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
