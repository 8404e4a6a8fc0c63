package pod

import "sync"

// Inbox is a set of keys with a wake-up: many Puts of one key before a Take are one. It has no capacity, loses nothing and
// never blocks the sender, so that a runtime event can never be held up by a busy loop.
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
	i.mu.Lock()
	i.keys[k] = struct{}{}
	i.mu.Unlock()
	select {
	case i.wake <- struct{}{}:
	default:
	}
}

// Wake returns the channel that has an element when there may be keys to take.
func (i *Inbox[K]) Wake() <-chan struct{} { return i.wake }

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

// putAll puts the key into each of the inboxes.
func putAll[K comparable](inboxes []*Inbox[K], k K) {
	for _, i := range inboxes {
		i.Put(k)
	}
}
