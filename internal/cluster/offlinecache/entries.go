package offlinecache

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	authenticationv1 "k8s.io/api/authentication/v1"
	certificatesv1beta1 "k8s.io/api/certificates/v1beta1"
	v1 "k8s.io/api/core/v1"

	"berth/internal/checkpoint"
	"berth/internal/config"
	"berth/internal/pod"
)

// setPods replaces the cached pods and their references, and returns the previous pods. Mirror pods
// are not cached: their API objects come from this node.
func (c *Cache) setPods(pods []*v1.Pod) (before []*v1.Pod) {
	if c.Objects == config.KeepNothing {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	before, c.pods = c.pods, pods
	// Usually few pods differ: skip the common prefix and suffix.
	removed, added := before, pods
	for len(removed) > 0 && len(added) > 0 && removed[0] == added[0] {
		removed, added = removed[1:], added[1:]
	}
	for len(removed) > 0 && len(added) > 0 && removed[len(removed)-1] == added[len(added)-1] {
		removed, added = removed[:len(removed)-1], added[:len(added)-1]
	}
	previous := make(map[pod.UID]*v1.Pod, len(removed))
	for _, p := range removed {
		previous[p.UID] = p
	}
	for _, p := range added {
		if _, mirror := p.Annotations[pod.ConfigMirrorAnnotation]; mirror {
			continue
		}
		last, exists := previous[p.UID]
		delete(previous, p.UID)
		if !exists {
			c.refLocked(podRef(p.UID))
		}
		if last != p {
			c.storeLocked(podRef(p.UID), p)
		}
	}
	for uid := range previous {
		c.unrefLocked(podRef(uid))
	}
	return before
}

// store caches the server's answer for a referenced object; nil: the object does not exist.
func store[P any](c *Cache, r ref, o *P) {
	var object any
	if o != nil {
		object = o
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.storeLocked(r, object)
}

func (c *Cache) storeLocked(r ref, o any) {
	e := c.entries[r]
	if e == nil || !c.caches(r.Kind) {
		return
	}
	e.object, e.fresh = o, true
	before := e.children
	e.children = refsOf(o)
	if r.Kind == podKind { // tokens are requested in addition to the references of the spec
		for _, child := range before {
			if child.Kind == tokens {
				e.children = append(e.children, child)
			}
		}
	}
	for _, child := range e.children {
		c.refLocked(child)
	}
	for _, child := range before {
		c.unrefLocked(child)
	}
	c.dirty.Put(r)
}

// refLocked adds a reference to the entry.
func (c *Cache) refLocked(r ref) {
	e := c.entries[r]
	if e == nil {
		e = &entry{}
		c.entries[r] = e
		switch r.Kind { // the objects that were listed may include some of it
		case services:
			e.fresh = c.allServices != nil
		case trustBundles:
			e.fresh = c.allBundles != nil
		}
		c.dirty.Put(r)
	}
	e.refs++
}

// unrefLocked drops a reference. An entry without references is deleted, with its own references.
func (c *Cache) unrefLocked(r ref) {
	e := c.entries[r]
	if e == nil {
		return
	}
	if e.refs--; e.refs > 0 {
		return
	}
	delete(c.entries, r)
	c.dirty.Put(r)
	for _, child := range e.children {
		c.unrefLocked(child)
	}
}

// storeToken caches a token of a cached pod.
func (c *Cache) storeToken(r ref, uid pod.UID, t *authenticationv1.TokenRequest) {
	if !c.caches(tokens) {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.entries[podRef(uid)]
	if e == nil {
		return
	}
	if !slices.Contains(e.children, r) {
		e.children = append(slices.Clip(e.children), r)
		c.refLocked(r)
	}
	c.storeLocked(r, t)
}

// storeServices caches the Services of the cluster.
func (c *Cache) storeServices(all []*v1.Service) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.allServices = append([]*v1.Service{}, all...)
	c.refreshLocked(services)
}

// storeBundles caches the ClusterTrustBundles of the cluster.
func (c *Cache) storeBundles(all []*certificatesv1beta1.ClusterTrustBundle) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.allBundles = append([]*certificatesv1beta1.ClusterTrustBundle{}, all...)
	c.refreshLocked(trustBundles)
}

// refreshLocked marks all entries of the kind for writing: they are selections of a list.
func (c *Cache) refreshLocked(of kind) {
	for r, e := range c.entries {
		if r.Kind == of {
			e.fresh = true
			c.dirty.Put(r)
		}
	}
}

// causes are errors without duplicates: many records may fail for the same reason.
type causes []error

func (c *causes) add(err error) {
	if err != nil && !slices.ContainsFunc(*c, func(e error) bool { return e.Error() == err.Error() }) {
		*c = append(*c, err)
	}
}

// write brings the files up to date with the cached entries.
func (c *Cache) write() error {
	var errs causes
	for _, r := range c.dirty.Take() {
		if r == (ref{}) || !c.caches(r.Kind) {
			continue
		}
		if err := c.writeOne(r); err != nil {
			errs.add(err)
			c.dirty.Put(r) // retried with the next write
		}
	}
	c.mu.Lock()
	sweep := c.sweep
	c.mu.Unlock()
	if sweep {
		errs.add(c.sweepFiles())
	}
	return errors.Join(errs...)
}

func (c *Cache) writeOne(r ref) error {
	c.mu.Lock()
	e := c.entries[r]
	if e == nil {
		c.mu.Unlock()
		return c.files.remove(r)
	}
	object, fresh, written := c.objectLocked(r, e), e.fresh, e.written
	c.mu.Unlock()
	if !fresh {
		return nil // the file has the newest version of this run
	}
	text, essence, err := render(object)
	if err != nil {
		return fmt.Errorf("cache %v: %w", r, err)
	}
	sum := sha256.Sum256(essence)
	if written == nil {
		written = c.digestOf(r)
	}
	if written == nil || *written != sum {
		if err := c.files.write(r, text); err != nil {
			return err
		}
	}
	c.wrote(r, object, &sum)
	return nil
}

// objectLocked returns the object to write.
func (c *Cache) objectLocked(r ref, e *entry) any {
	switch r.Kind {
	case services:
		return selectServices(c.allServices, r)
	case trustBundles:
		return selectBundles(c.allBundles, r.Name)
	}
	return e.object
}

// wrote notes the content of the file. An object that arrived meanwhile is still to be written.
func (c *Cache) wrote(r ref, object any, sum *[sha256.Size]byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.entries[r]
	if e == nil {
		return
	}
	e.written = sum
	if e.object == object {
		e.object, e.fresh = nil, false
	}
}

// digestOf returns the digest of the record of an earlier run, nil if it cannot be read.
func (c *Cache) digestOf(r ref) *[sha256.Size]byte {
	rec, err := c.files.read(c.files.path(r))
	if err != nil || rec.Object == nil {
		return nil
	}
	o, err := rec.decode()
	if err != nil {
		return nil
	}
	_, essence, err := render(o)
	if err != nil {
		return nil
	}
	sum := sha256.Sum256(essence)
	return &sum
}

// render returns the object as it is cached, null if it does not exist, and the part whose change
// causes a write: of a pod's status only the phase.
func render(o any) (text, essence []byte, err error) {
	p, ok := o.(*v1.Pod)
	if !ok {
		text, err = json.Marshal(o)
		return text, text, err
	}
	stripped := *p
	stripped.ManagedFields, stripped.ResourceVersion = nil, ""
	if text, err = json.Marshal(&stripped); err != nil {
		return nil, nil, err
	}
	stripped.Status = v1.PodStatus{Phase: p.Status.Phase}
	essence, err = json.Marshal(&stripped)
	return text, essence, err
}

// sweepFiles removes records without references, left by an earlier run or another cluster. It
// retains references of cached claims and volumes that have not been read yet.
func (c *Cache) sweepFiles() error {
	paths, err := c.files.paths()
	if err != nil {
		return err
	}
	wanted, uids := map[string]bool{}, map[string]bool{}
	c.mu.Lock()
	for r := range c.entries {
		wanted[c.files.path(r)] = true
		if r.Kind == podKind {
			uids[r.Name] = true
		}
	}
	for path := range c.aside {
		wanted[path] = true
	}
	c.mu.Unlock()
	found := map[string]record{}
	for _, path := range paths {
		if !isRecord(path) {
			continue
		}
		if rec, err := c.files.read(path); err == nil {
			found[path] = rec
		}
	}
	for more := true; more; {
		more = false
		for path, rec := range found {
			if !wanted[path] && !(rec.Kind == tokens && uids[podOfToken(rec.ref)]) {
				continue
			}
			delete(found, path)
			wanted[path] = true
			if o, err := rec.decode(); err == nil {
				for _, r := range refsOf(o) {
					wanted[c.files.path(r)] = true
				}
			}
			more = true
		}
	}
	paths = slices.DeleteFunc(paths, func(path string) bool { return wanted[path] })
	if err := checkpoint.Remove(paths...); err != nil {
		return err
	}
	c.mu.Lock()
	c.sweep = false
	c.mu.Unlock()
	return nil
}

// podOfToken returns the UID of the pod that a token is bound to.
func podOfToken(r ref) string {
	if words := strings.Fields(r.Name); len(words) > 1 {
		return words[1]
	}
	return ""
}
