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

// hold replaces the cached pods and their references, and returns the previous pods. Mirror pods
// are not cached: their API objects come from this node.
func (k *Keeper) hold(pods []*v1.Pod) (before []*v1.Pod) {
	if k.Keep == config.KeepNothing {
		return nil
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	before, k.pods = k.pods, pods
	// Usually few pods differ: skip the common prefix and suffix.
	gone, came := before, pods
	for len(gone) > 0 && len(came) > 0 && gone[0] == came[0] {
		gone, came = gone[1:], came[1:]
	}
	for len(gone) > 0 && len(came) > 0 && gone[len(gone)-1] == came[len(came)-1] {
		gone, came = gone[:len(gone)-1], came[:len(came)-1]
	}
	known := make(map[pod.UID]*v1.Pod, len(gone))
	for _, p := range gone {
		known[p.UID] = p
	}
	for _, p := range came {
		if _, mirror := p.Annotations[pod.ConfigMirrorAnnotation]; mirror {
			continue
		}
		last, held := known[p.UID]
		delete(known, p.UID)
		if !held {
			k.refLocked(podRef(p.UID))
		}
		if last != p {
			k.keepLocked(podRef(p.UID), p)
		}
	}
	for uid := range known {
		k.unrefLocked(podRef(uid))
	}
	return before
}

// keep caches the server's answer for a referenced object; nil: the object does not exist.
func keep[P any](k *Keeper, r ref, o *P) {
	var object any
	if o != nil {
		object = o
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.keepLocked(r, object)
}

func (k *Keeper) keepLocked(r ref, o any) {
	h := k.held[r]
	if h == nil || !k.keeps(r.Kind) {
		return
	}
	h.object, h.fresh = o, true
	before := h.children
	h.children = refsOf(o)
	if r.Kind == podKind { // tokens are requested in addition to the references of the spec
		for _, c := range before {
			if c.Kind == tokens {
				h.children = append(h.children, c)
			}
		}
	}
	for _, c := range h.children {
		k.refLocked(c)
	}
	for _, c := range before {
		k.unrefLocked(c)
	}
	k.dirty.Put(r)
}

// refLocked adds a reference to the entry.
func (k *Keeper) refLocked(r ref) {
	h := k.held[r]
	if h == nil {
		h = &holding{}
		k.held[r] = h
		switch r.Kind { // the objects that were listed may include some of it
		case services:
			h.fresh = k.all != nil
		case trustBundles:
			h.fresh = k.trust != nil
		}
		k.dirty.Put(r)
	}
	h.refs++
}

// unrefLocked drops a reference. An entry without references is deleted, with its own references.
func (k *Keeper) unrefLocked(r ref) {
	h := k.held[r]
	if h == nil {
		return
	}
	if h.refs--; h.refs > 0 {
		return
	}
	delete(k.held, r)
	k.dirty.Put(r)
	for _, c := range h.children {
		k.unrefLocked(c)
	}
}

// keepToken caches a token of a cached pod.
func (k *Keeper) keepToken(r ref, uid pod.UID, t *authenticationv1.TokenRequest) {
	if !k.keeps(tokens) {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	h := k.held[podRef(uid)]
	if h == nil {
		return
	}
	if !slices.Contains(h.children, r) {
		h.children = append(slices.Clip(h.children), r)
		k.refLocked(r)
	}
	k.keepLocked(r, t)
}

// keepServices caches the Services of the cluster.
func (k *Keeper) keepServices(all []*v1.Service) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.all = append([]*v1.Service{}, all...)
	k.refreshLocked(services)
}

// keepBundles caches the ClusterTrustBundles of the cluster.
func (k *Keeper) keepBundles(all []*certificatesv1beta1.ClusterTrustBundle) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.trust = append([]*certificatesv1beta1.ClusterTrustBundle{}, all...)
	k.refreshLocked(trustBundles)
}

// refreshLocked marks all entries of the kind for writing: they are selections of a list.
func (k *Keeper) refreshLocked(of kind) {
	for r, h := range k.held {
		if r.Kind == of {
			h.fresh = true
			k.dirty.Put(r)
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
func (k *Keeper) write() error {
	var errs causes
	for _, r := range k.dirty.Take() {
		if r == (ref{}) || !k.keeps(r.Kind) {
			continue
		}
		if err := k.writeOne(r); err != nil {
			errs.add(err)
			k.dirty.Put(r) // retried with the next write
		}
	}
	k.mu.Lock()
	sweep := k.sweep
	k.mu.Unlock()
	if sweep {
		errs.add(k.sweepFiles())
	}
	return errors.Join(errs...)
}

func (k *Keeper) writeOne(r ref) error {
	k.mu.Lock()
	h := k.held[r]
	if h == nil {
		k.mu.Unlock()
		return k.files.remove(r)
	}
	object, fresh, written := k.objectLocked(r, h), h.fresh, h.written
	k.mu.Unlock()
	if !fresh {
		return nil // the file has the newest known version
	}
	text, essence, err := render(object)
	if err != nil {
		return fmt.Errorf("keep %v: %w", r, err)
	}
	sum := sha256.Sum256(essence)
	if written == nil {
		written = k.digestOf(r)
	}
	if written == nil || *written != sum {
		if err := k.files.write(r, text); err != nil {
			return err
		}
	}
	k.wrote(r, object, &sum)
	return nil
}

// objectLocked returns the object to write.
func (k *Keeper) objectLocked(r ref, h *holding) any {
	switch r.Kind {
	case services:
		return selectServices(k.all, r)
	case trustBundles:
		return selectBundles(k.trust, r.Name)
	}
	return h.object
}

// wrote notes the content of the file. An object that arrived meanwhile is still to be written.
func (k *Keeper) wrote(r ref, object any, sum *[sha256.Size]byte) {
	k.mu.Lock()
	defer k.mu.Unlock()
	h := k.held[r]
	if h == nil {
		return
	}
	h.written = sum
	if h.object == object {
		h.object, h.fresh = nil, false
	}
}

// digestOf returns the digest of the record of an earlier run, nil if it cannot be read.
func (k *Keeper) digestOf(r ref) *[sha256.Size]byte {
	rec, err := k.files.read(k.files.path(r))
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
	kept := *p
	kept.ManagedFields, kept.ResourceVersion = nil, ""
	if text, err = json.Marshal(&kept); err != nil {
		return nil, nil, err
	}
	kept.Status = v1.PodStatus{Phase: p.Status.Phase}
	essence, err = json.Marshal(&kept)
	return text, essence, err
}

// sweepFiles removes records without references, left by an earlier run or another cluster. It
// retains references of cached claims and volumes that have not been read yet.
func (k *Keeper) sweepFiles() error {
	paths, err := k.files.paths()
	if err != nil {
		return err
	}
	wanted, uids := map[string]bool{}, map[string]bool{}
	k.mu.Lock()
	for r := range k.held {
		wanted[k.files.path(r)] = true
		if r.Kind == podKind {
			uids[r.Name] = true
		}
	}
	for path := range k.aside {
		wanted[path] = true
	}
	k.mu.Unlock()
	found := map[string]record{}
	for _, path := range paths {
		if !isRecord(path) {
			continue
		}
		if rec, err := k.files.read(path); err == nil {
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
					wanted[k.files.path(r)] = true
				}
			}
			more = true
		}
	}
	paths = slices.DeleteFunc(paths, func(path string) bool { return wanted[path] })
	if err := checkpoint.Remove(paths...); err != nil {
		return err
	}
	k.mu.Lock()
	k.sweep = false
	k.mu.Unlock()
	return nil
}

// podOfToken returns the UID of the pod that a token is bound to.
func podOfToken(r ref) string {
	if words := strings.Fields(r.Name); len(words) > 1 {
		return words[1]
	}
	return ""
}
