package node

import (
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"

	"berth/internal/pod"
)

// Current is the newest known Node, for everyone who reads it or has news of it. It is there before
// the Node that keeps it, and safe for concurrent use.
type Current struct {
	wake       chan struct{} // capacity 1: the status may have changed
	observed   chan struct{} // capacity 1: current may have changed
	registered chan struct{} // closed when the API server has shown the Node
	forgotten  func() bool   // Sources.DevicesForgotten
	// changed publishes the name of the Node when current may have changed.
	changed pod.Publisher[string]

	mu        sync.Mutex
	current   *v1.Node // guarded by mu; shared with readers and never changed, only replaced
	published bool     // guarded by mu; current is the API server's
	watched   bool     // guarded by mu; somebody calls Observe
	deleted   bool     // guarded by mu; the API server has it no more
	doubted   bool     // guarded by mu; a watch showed one that is older than current
	// corrected: guarded by mu; no Node is shown any more that has devices of an agent before this
	// one that nobody knows of.
	corrected bool
}

// NewCurrent returns a Current without a Node.
func NewCurrent() *Current {
	return &Current{
		wake: make(chan struct{}, 1), observed: make(chan struct{}, 1), registered: make(chan struct{}),
		forgotten: func() bool { return true },
	}
}

// Wake says that something that the status tells has changed, above all readiness. It never blocks.
func (c *Current) Wake() { signal(c.wake) }

// Observe hands over the newest Node of a watch, or nil if it was deleted. It never blocks. Who
// calls it once goes on calling it: from then on the Node is not read any more before its status is
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

// Node returns the newest known Node: that of the API server, or a stand-in before it has answered,
// or nil before Load. It is shared and must not be changed.
func (c *Current) Node() *v1.Node {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.current
}

// UID returns the UID of the Node, or "" while it is not known, or the Node is deleted or about to
// be.
func (c *Current) UID() types.UID {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.published || c.deleted || c.current.DeletionTimestamp != nil {
		return ""
	}
	return c.current.UID
}

// Registered returns the channel that is closed when the API server has shown the Node for the
// first time.
func (c *Current) Registered() <-chan struct{} { return c.registered }

// adopt keeps a Node that the API server showed, unless a newer one is known: watches lag behind
// writes. As it may also be that an older etcd was restored, the Node is then read once, and what
// that shows is kept.
func (c *Current) adopt(newest *v1.Node) {
	kept := *newest
	kept.ManagedFields = nil // nobody reads them, and they are most of the object
	c.mu.Lock()
	if c.published && !c.deleted && c.current.UID == kept.UID {
		if order, err := resourceversion.CompareResourceVersion(kept.ResourceVersion, c.current.ResourceVersion); err == nil && order < 0 && !c.doubted {
			c.doubted = true
			c.mu.Unlock()
			return
		}
	}
	if !c.corrected && c.forgotten() {
		kept = *withoutExtended(&kept) // pods are admitted by it while the correction is under way
	}
	first := !c.published
	c.current, c.published, c.deleted, c.doubted = &kept, true, false, false
	c.mu.Unlock()
	if first {
		close(c.registered)
	}
	signal(c.observed)
	c.changed.Publish(kept.Name)
}

// Subscribe returns an inbox that gets the name of the Node each time that Node may have a new
// answer, and the function that ends this.
func (c *Current) Subscribe() (changed *pod.Inbox[string], cancel func()) {
	return c.changed.Subscribe()
}

// known returns the API server's Node if there is a watch that keeps it current, else nil.
func (c *Current) known() *v1.Node {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.watched && c.published && !c.deleted && !c.doubted {
		return c.current
	}
	return nil
}

// standIn takes what stands in for the Node until the API server has shown it.
func (c *Current) standIn(n *v1.Node) {
	c.mu.Lock()
	if c.current == nil {
		c.current = n
	}
	c.mu.Unlock()
	c.changed.Publish(n.Name)
}

// correct notes that the devices of an agent before this one are gone from the Node.
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
