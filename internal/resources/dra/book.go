package dra

import (
	"fmt"
	"maps"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"berth/internal/checkpoint"
	"berth/internal/pod"
)

// Device is a device of a claim, as its driver prepared it.
type Device struct {
	Driver, Pool, Name string
	// ShareID tells the shares of one device apart (KEP-5075); nil: it is not shared that way.
	ShareID *string
	// Requests are those of the claim that it belongs to; none is all.
	Requests []string
	// CDI are the names under which the runtime finds it.
	CDI []string
}

// claim is one that pods of this node use.
type claim struct {
	uid types.UID
	// pods are those that use it.
	pods map[pod.UID]origin
	// drivers are those that have to take it back.
	drivers map[string]prepared
	// allocation is the one that was prepared; "" is not known: it is from the file.
	allocation string
	// earlier: an earlier agent had it prepared, or was about to.
	earlier bool
}

// origin is since when it is known that a pod uses a claim.
type origin int

const (
	ofThisAgent origin = iota + 1
	ofAnEarlier        // and this one was not asked to prepare it
)

// prepared is what a driver made of a claim.
type prepared struct {
	// done: it was, by this agent, and not taken back since.
	done    bool
	devices []Device
}

func (c *claim) done() bool {
	for _, d := range c.drivers {
		if !d.done {
			return false
		}
	}
	return true
}

// reference is what a driver is told of a claim.
type reference struct {
	key types.NamespacedName
	uid types.UID
}

// calls are what to ask of drivers, by their names.
type calls map[string][]reference

// book is which pods use which claims. It is safe for concurrent use. What it is asked about a
// claim changes only under the claim's flight.
type book struct {
	path      string
	writeLock chan struct{} // capacity 1: who holds the one token writes the file

	mu      sync.Mutex
	claims  map[types.NamespacedName]*claim // guarded by mu
	changes uint64                          // guarded by mu; counts them
	saved   uint64                          // guarded by mu; the change that the file is at
}

func newBook(path string) *book {
	return &book{path: path, writeLock: make(chan struct{}, 1), claims: map[types.NamespacedName]*claim{}}
}

// save has the file tell what the book does, durably. It is one write for all who wait.
func (b *book) save() error {
	b.writeLock <- struct{}{}
	defer func() { <-b.writeLock }()
	b.mu.Lock()
	at, content, err := b.changes, []byte(nil), error(nil)
	if b.saved != at {
		content, err = encodeClaims(b.claims)
	}
	b.mu.Unlock()
	if err == nil && content != nil {
		err = checkpoint.Write(b.path, 0o600, content)
	}
	if err != nil {
		return fmt.Errorf("keep which pods use which claims: %w", err)
	}
	b.mu.Lock()
	b.saved = at
	b.mu.Unlock()
	return nil
}

// refer notes that the pod uses the claims, and returns what drivers are to prepare for that. On an
// error nothing is noted.
func (b *book) refer(uid pod.UID, wanted []allocated) (calls, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, a := range wanted {
		c := b.claims[a.key]
		switch {
		case c == nil:
		case c.uid != a.uid:
			return nil, fmt.Errorf("old ResourceClaim with same name %s and different UID %s still exists (previous pod force-deleted?!)", a.key.Name, c.uid)
		case c.allocation != "" && c.allocation != a.allocation:
			// Differs from the kubelet: it would give the pod the devices of the old allocation.
			return nil, fmt.Errorf("ResourceClaim %s: reallocated while a pod of its old allocation still exists (previous pod force-deleted?!)", a.key.Name)
		}
	}
	todo := calls{}
	for _, a := range wanted {
		c := b.claims[a.key]
		if c == nil {
			c = &claim{uid: a.uid, pods: map[pod.UID]origin{}, drivers: map[string]prepared{}}
			b.claims[a.key] = c
			b.changes++
		}
		c.allocation = a.allocation
		if c.pods[uid] == 0 {
			b.changes++
		}
		c.pods[uid] = ofThisAgent
		for _, driver := range a.drivers {
			d, known := c.drivers[driver]
			if !known {
				c.drivers[driver] = prepared{}
				b.changes++
			}
			if !d.done {
				todo[driver] = append(todo[driver], reference{a.key, a.uid})
			}
		}
		for driver := range c.drivers {
			if !slices.Contains(a.drivers, driver) { // of an allocation before the agent started: it has nothing but to take it back
				c.drivers[driver] = prepared{done: true}
			}
		}
	}
	return todo, nil
}

// note keeps what the driver made of the claims. Devices from before are replaced.
// Differs from the kubelet: it adds to those that its file had.
func (b *book) note(driver string, made map[types.NamespacedName][]Device) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for key, devices := range made {
		if c := b.claims[key]; c != nil {
			c.drivers[driver] = prepared{done: true, devices: devices}
			b.changes++
		}
	}
}

// leave notes that the pod uses its claims no more, but for those that nobody else uses: it returns
// what drivers are to take back for those, and their keys.
func (b *book) leave(uid pod.UID, held []types.NamespacedName) (todo calls, last []types.NamespacedName) {
	b.mu.Lock()
	defer b.mu.Unlock()
	todo = calls{}
	for _, key := range held {
		c := b.claims[key]
		switch {
		case c == nil || c.pods[uid] == 0:
		case len(c.pods) > 1:
			delete(c.pods, uid)
			b.changes++
		default:
			last = append(last, key)
			for driver, d := range c.drivers {
				d.done = false // whoever comes next has it prepared anew, whatever becomes of this
				c.drivers[driver] = d
				todo[driver] = append(todo[driver], reference{key, c.uid})
			}
		}
	}
	return todo, last
}

// forget drops claims that were taken back.
func (b *book) forget(keys []types.NamespacedName) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, key := range keys {
		if b.claims[key] != nil {
			delete(b.claims, key)
			b.changes++
		}
	}
}

// heldBy returns the claims that the pod uses, sorted.
func (b *book) heldBy(uid pod.UID) []types.NamespacedName {
	b.mu.Lock()
	defer b.mu.Unlock()
	var out []types.NamespacedName
	for key, c := range b.claims {
		if c.pods[uid] != 0 {
			out = append(out, key)
		}
	}
	slices.SortFunc(out, compareKeys)
	return out
}

// orphans returns the pods of an earlier agent that use claims and are not among those to keep.
func (b *book) orphans(keep map[pod.UID]bool) map[pod.UID]bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	out := map[pod.UID]bool{}
	for _, c := range b.claims {
		for uid, since := range c.pods {
			if since == ofAnEarlier && !keep[uid] {
				out[uid] = true
			}
		}
	}
	return out
}

// podsWith returns the pods that use one of the devices of the driver.
func (b *book) podsWith(driver string, changed map[deviceID]bool) []pod.UID {
	b.mu.Lock()
	defer b.mu.Unlock()
	out := map[pod.UID]bool{}
	for _, c := range b.claims {
		if slices.ContainsFunc(c.drivers[driver].devices, func(d Device) bool { return changed[deviceID{d.Pool, d.Name}] }) {
			for uid := range c.pods {
				out[uid] = true
			}
		}
	}
	return slices.Collect(maps.Keys(out))
}

// devices returns those of a claim that the pod uses, by driver and in its order; false if the pod
// uses no such claim.
func (b *book) devices(uid pod.UID, key types.NamespacedName) ([]Device, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	c := b.claims[key]
	if c == nil || c.pods[uid] == 0 {
		return nil, false
	}
	var out []Device
	for _, driver := range slices.Sorted(maps.Keys(c.drivers)) {
		out = append(out, c.drivers[driver].devices...)
	}
	return out, true
}

// inUse counts the claims that are prepared, or were by an earlier agent, by driver, and all.
func (b *book) inUse() (byDriver map[string]int, all int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	byDriver = map[string]int{}
	for _, c := range b.claims {
		if !c.earlier && !c.done() {
			continue
		}
		all++
		for driver := range c.drivers {
			byDriver[driver]++
		}
	}
	return byDriver, all
}
