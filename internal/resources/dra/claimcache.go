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

// Device is a device of a claim, as prepared by its driver.
type Device struct {
	Driver, Pool, Name string
	// ShareID distinguishes the shares of one device (KEP-5075); nil: the device is not shared.
	ShareID *string
	// Requests are the requests of the claim that the device satisfies; empty means all.
	Requests []string
	// CDI are the device's CDI names, for the runtime.
	CDI []string
}

// claim is a ResourceClaim that pods of this node use.
type claim struct {
	uid types.UID
	// pods are the pods that use it.
	pods map[pod.UID]origin
	// drivers are the drivers that must unprepare it.
	drivers map[string]prepared
	// allocation identifies the prepared allocation; "": unknown, because restored from the file.
	allocation string
	// earlier: restored from the file of an earlier agent, which prepared it or was about to.
	earlier bool
}

// origin is which agent recorded that a pod uses a claim.
type origin int

const (
	ofThisAgent origin = iota + 1
	ofAnEarlier        // and Prepare was not called in this one
)

// prepared is the result of a driver's NodePrepareResources for a claim.
type prepared struct {
	// done: prepared by this agent, and not unprepared since.
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

type reference struct {
	key types.NamespacedName
	uid types.UID
}

// calls are the claims to prepare or unprepare, by driver name.
type calls map[string][]reference

// claimCache records which pods use which claims, and persists it. It is safe for concurrent use.
// The entry of a claim changes only while its inflight lock is held.
type claimCache struct {
	path      string
	writeLock chan struct{} // capacity 1: the holder of the token writes the file

	mu      sync.Mutex
	claims  map[types.NamespacedName]*claim // guarded by mu
	changes uint64                          // guarded by mu; counts changes
	saved   uint64                          // guarded by mu; value of changes in the file
}

func newClaimCache(path string) *claimCache {
	return &claimCache{path: path, writeLock: make(chan struct{}, 1), claims: map[types.NamespacedName]*claim{}}
}

// save writes the file durably, if it is out of date. Concurrent callers share a write.
func (cc *claimCache) save() error {
	cc.writeLock <- struct{}{}
	defer func() { <-cc.writeLock }()
	cc.mu.Lock()
	at, content, err := cc.changes, []byte(nil), error(nil)
	if cc.saved != at {
		content, err = encodeClaims(cc.claims)
	}
	cc.mu.Unlock()
	if err == nil && content != nil {
		err = checkpoint.Write(cc.path, 0o600, content)
	}
	if err != nil {
		return fmt.Errorf("keep which pods use which claims: %w", err)
	}
	cc.mu.Lock()
	cc.saved = at
	cc.mu.Unlock()
	return nil
}

// addReferences records that the pod uses the claims, and returns the driver calls to prepare them.
// On an error nothing is recorded.
func (cc *claimCache) addReferences(uid pod.UID, wanted []allocated) (calls, error) {
	cc.mu.Lock()
	defer cc.mu.Unlock()
	for _, a := range wanted {
		c := cc.claims[a.key]
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
		c := cc.claims[a.key]
		if c == nil {
			c = &claim{uid: a.uid, pods: map[pod.UID]origin{}, drivers: map[string]prepared{}}
			cc.claims[a.key] = c
			cc.changes++
		}
		c.allocation = a.allocation
		if c.pods[uid] == 0 {
			cc.changes++
		}
		c.pods[uid] = ofThisAgent
		for _, driver := range a.drivers {
			d, ok := c.drivers[driver]
			if !ok {
				c.drivers[driver] = prepared{}
				cc.changes++
			}
			if !d.done {
				todo[driver] = append(todo[driver], reference{a.key, a.uid})
			}
		}
		for driver := range c.drivers {
			if !slices.Contains(a.drivers, driver) { // of an earlier allocation: only to be unprepared
				c.drivers[driver] = prepared{done: true}
			}
		}
	}
	return todo, nil
}

// setPrepared records the devices that the driver prepared for the claims. It replaces earlier
// devices.
// Differs from the kubelet: it appends to the devices of its checkpoint.
func (cc *claimCache) setPrepared(driver string, made map[types.NamespacedName][]Device) {
	cc.mu.Lock()
	defer cc.mu.Unlock()
	for key, devices := range made {
		if c := cc.claims[key]; c != nil {
			c.drivers[driver] = prepared{done: true, devices: devices}
			cc.changes++
		}
	}
}

// removeReferences removes the pod from the claims that other pods use, too. For the claims of
// which it is the last user, it returns the unprepare calls and the keys; remove deletes those.
func (cc *claimCache) removeReferences(uid pod.UID, claims []types.NamespacedName) (todo calls, last []types.NamespacedName) {
	cc.mu.Lock()
	defer cc.mu.Unlock()
	todo = calls{}
	for _, key := range claims {
		c := cc.claims[key]
		switch {
		case c == nil || c.pods[uid] == 0:
		case len(c.pods) > 1:
			delete(c.pods, uid)
			cc.changes++
		default:
			last = append(last, key)
			for driver, d := range c.drivers {
				d.done = false // the next pod prepares it again, even if unprepare fails
				c.drivers[driver] = d
				todo[driver] = append(todo[driver], reference{key, c.uid})
			}
		}
	}
	return todo, last
}

// remove deletes claims that were unprepared.
func (cc *claimCache) remove(keys []types.NamespacedName) {
	cc.mu.Lock()
	defer cc.mu.Unlock()
	for _, key := range keys {
		if cc.claims[key] != nil {
			delete(cc.claims, key)
			cc.changes++
		}
	}
}

func (cc *claimCache) claimsOf(uid pod.UID) []types.NamespacedName {
	cc.mu.Lock()
	defer cc.mu.Unlock()
	var out []types.NamespacedName
	for key, c := range cc.claims {
		if c.pods[uid] != 0 {
			out = append(out, key)
		}
	}
	slices.SortFunc(out, compareKeys)
	return out
}

// orphans returns the pods of an earlier agent that use claims and are not in keep.
func (cc *claimCache) orphans(keep map[pod.UID]bool) map[pod.UID]bool {
	cc.mu.Lock()
	defer cc.mu.Unlock()
	out := map[pod.UID]bool{}
	for _, c := range cc.claims {
		for uid, from := range c.pods {
			if from == ofAnEarlier && !keep[uid] {
				out[uid] = true
			}
		}
	}
	return out
}

// podsWith returns the pods that use one of the driver's devices in changed.
func (cc *claimCache) podsWith(driver string, changed map[deviceID]bool) []pod.UID {
	cc.mu.Lock()
	defer cc.mu.Unlock()
	out := map[pod.UID]bool{}
	for _, c := range cc.claims {
		if slices.ContainsFunc(c.drivers[driver].devices, func(d Device) bool { return changed[deviceID{d.Pool, d.Name}] }) {
			for uid := range c.pods {
				out[uid] = true
			}
		}
	}
	return slices.Collect(maps.Keys(out))
}

// devices returns the devices of a claim, by driver and in its order; false if the pod does not use
// the claim.
func (cc *claimCache) devices(uid pod.UID, key types.NamespacedName) ([]Device, bool) {
	cc.mu.Lock()
	defer cc.mu.Unlock()
	c := cc.claims[key]
	if c == nil || c.pods[uid] == 0 {
		return nil, false
	}
	var out []Device
	for _, driver := range slices.Sorted(maps.Keys(c.drivers)) {
		out = append(out, c.drivers[driver].devices...)
	}
	return out, true
}

// inUse returns the number of claims that are prepared, or were by an earlier agent, by driver and
// in total.
func (cc *claimCache) inUse() (byDriver map[string]int, all int) {
	cc.mu.Lock()
	defer cc.mu.Unlock()
	byDriver = map[string]int{}
	for _, c := range cc.claims {
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
