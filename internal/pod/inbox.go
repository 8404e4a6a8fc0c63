package pod

import "sync"

// Inbox is a set of keys with a wake-up: repeated Puts of a key before a Take are merged. It is
// unbounded, loses nothing and never blocks the sender, so that a busy loop cannot delay runtime
// events. It is safe for concurrent use. A nil Inbox drops keys and is never woken.
type Inbox[K comparable] struct {
	wake chan struct{} // capacity 1

	mu   sync.Mutex
	keys map[K]struct{} // guarded by mu
}

// NewInbox returns an empty inbox.
func NewInbox[K comparable]() *Inbox[K] {
	return &Inbox[K]{wake: make(chan struct{}, 1), keys: map[K]struct{}{}}
}

// Put adds the key and wakes the receiver. It never blocks.
func (i *Inbox[K]) Put(k K) {
	if i == nil {
		return
	}
	i.mu.Lock()
	i.keys[k] = struct{}{}
	i.mu.Unlock()
	select {
	case i.wake <- struct{}{}:
	default:
	}
}

// Wake returns the channel that has an element when there may be keys to take.
func (i *Inbox[K]) Wake() <-chan struct{} {
	if i == nil {
		return nil
	}
	return i.wake
}

// Take returns the keys put since the last Take, in no order.
func (i *Inbox[K]) Take() []K {
	i.mu.Lock()
	defer i.mu.Unlock()
	if len(i.keys) == 0 {
		return nil
	}
	out := make([]K, 0, len(i.keys))
	for k := range i.keys {
		out = append(out, k)
	}
	clear(i.keys)
	return out
}

// Publisher puts each published key into the inboxes of all subscribers. Its zero value has no
// subscribers; it is safe for concurrent use.
type Publisher[K comparable] struct {
	mu      sync.Mutex
	inboxes map[*Inbox[K]]struct{} // guarded by mu
}

// Subscribe returns an inbox that receives each key published from now on, and a function that
// unsubscribes. The inbox merges repeated keys; a slow reader delays nothing.
func (p *Publisher[K]) Subscribe() (in *Inbox[K], cancel func()) {
	in = NewInbox[K]()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.inboxes == nil {
		p.inboxes = map[*Inbox[K]]struct{}{}
	}
	p.inboxes[in] = struct{}{}
	return in, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.inboxes, in)
	}
}

// Publish puts the key into the inbox of each subscriber. It never blocks.
func (p *Publisher[K]) Publish(k K) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for in := range p.inboxes {
		in.Put(k)
	}
}
