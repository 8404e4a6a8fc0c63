package offlinecache

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"

	authenticationv1 "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"

	"berth/internal/checkpoint"
	"berth/internal/config"
	"berth/internal/pod"
)

// entries are the cached pods, the objects that they refer to, and the files of both. It is safe
// for concurrent use, except files.
type entries struct {
	objects config.KeepObjects
	log     *slog.Logger
	files   *files          // used by the writer
	dirty   *pod.Inbox[ref] // records that may be older than the cached entry

	mu    sync.Mutex
	byRef map[ref]*entry         // guarded by mu; the pods and the objects that they refer to
	pods  []*v1.Pod              // guarded by mu; the cached pods
	lists map[kind]func(ref) any // guarded by mu; the objects of a record, from the newest complete list
	sweep bool                   // guarded by mu; unreferenced records are to be removed
	aside map[string]bool        // guarded by mu; files that this agent set aside
}

// entry is the entry of a referenced object. Its fields are guarded by the entries' mu.
type entry struct {
	refs     int // number of references to it
	children []ref
	object   any  // what is to be written
	fresh    bool // object is the server's answer, maybe not written yet; nil: none
	// written is the digest of the file's content, nil while it is not known.
	written *[sha256.Size]byte
}

func newEntries(cfg Config) *entries {
	return &entries{
		objects: cfg.Objects, log: cfg.Log, files: newFiles(cfg.Dir, cfg.Node, cfg.Server), dirty: pod.NewInbox[ref](),
		byRef: map[ref]*entry{}, lists: map[kind]func(ref) any{}, aside: map[string]bool{},
	}
}

func (s *entries) caches(of kind) bool {
	return s.objects == config.KeepAll || s.objects == config.KeepPods && !of.isSecret()
}

// hint returns the flag with which missing objects of the kind are cached, "" if they are cached.
func (s *entries) hint(missing kind) string {
	if s.caches(missing) {
		return ""
	}
	return " (--keep-objects=all caches Secrets and tokens)"
}

func (s *entries) cachedPods() []*v1.Pod {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.pods
}

// requestSweep makes the writer remove unreferenced records.
func (s *entries) requestSweep() {
	s.mu.Lock()
	s.sweep = true
	s.mu.Unlock()
	s.dirty.Put(ref{})
}

// setPods replaces the cached pods and their references, and returns the previous pods. Mirror pods
// are not cached: their API objects come from this node.
func (s *entries) setPods(pods []*v1.Pod) (before []*v1.Pod) {
	if s.objects == config.KeepNothing {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	before, s.pods = s.pods, pods
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
			s.refLocked(podRef(p.UID))
		}
		if last != p {
			s.storeLocked(podRef(p.UID), p)
		}
	}
	for uid := range previous {
		s.unrefLocked(podRef(uid))
	}
	return before
}

// store caches the server's answer for a referenced object; nil: the object does not exist.
func store[P comparable](s *entries, r ref, o P) {
	var object any
	if none := *new(P); o != none {
		object = o
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.storeLocked(r, object)
}

func (s *entries) storeLocked(r ref, o any) {
	e := s.byRef[r]
	if e == nil || !s.caches(r.Kind) {
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
		s.refLocked(child)
	}
	for _, child := range before {
		s.unrefLocked(child)
	}
	s.dirty.Put(r)
}

// refLocked adds a reference to the entry.
func (s *entries) refLocked(r ref) {
	e := s.byRef[r]
	if e == nil {
		e = &entry{}
		s.byRef[r] = e
		e.fresh = s.lists[r.Kind] != nil // the objects that were listed may include some of it
		s.dirty.Put(r)
	}
	e.refs++
}

// unrefLocked drops a reference. An entry without references is deleted, with its own references.
func (s *entries) unrefLocked(r ref) {
	e := s.byRef[r]
	if e == nil {
		return
	}
	if e.refs--; e.refs > 0 {
		return
	}
	delete(s.byRef, r)
	s.dirty.Put(r)
	for _, child := range e.children {
		s.unrefLocked(child)
	}
}

func (s *entries) storeToken(r ref, uid pod.UID, t *authenticationv1.TokenRequest) {
	if !s.caches(tokens) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.byRef[podRef(uid)]
	if e == nil {
		return
	}
	if !slices.Contains(e.children, r) {
		e.children = append(slices.Clip(e.children), r)
		s.refLocked(r)
	}
	s.storeLocked(r, t)
}

// storeList caches the objects of a complete list: selection returns those of a record.
func (s *entries) storeList(of kind, selection func(ref) any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lists[of] = selection
	for r, e := range s.byRef {
		if r.Kind == of {
			e.fresh = true
			s.dirty.Put(r)
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
func (s *entries) write() error {
	var errs causes
	for _, r := range s.dirty.Take() {
		if r == (ref{}) || !s.caches(r.Kind) {
			continue
		}
		if err := s.writeOne(r); err != nil {
			errs.add(err)
			s.dirty.Put(r) // retried with the next write
		}
	}
	s.mu.Lock()
	sweep := s.sweep
	s.mu.Unlock()
	if sweep {
		errs.add(s.sweepFiles())
	}
	return errors.Join(errs...)
}

func (s *entries) writeOne(r ref) error {
	s.mu.Lock()
	e := s.byRef[r]
	if e == nil {
		s.mu.Unlock()
		return s.files.remove(r)
	}
	object, fresh, written := s.objectLocked(r, e), e.fresh, e.written
	s.mu.Unlock()
	if !fresh {
		return nil // the file has the newest version of this run
	}
	text, essence, err := render(object)
	if err != nil {
		return fmt.Errorf("cache %v: %w", r, err)
	}
	sum := sha256.Sum256(essence)
	if written == nil {
		written = s.digestOf(r)
	}
	if written == nil || *written != sum {
		if err := s.files.write(r, text); err != nil {
			return err
		}
	}
	s.wrote(r, object, &sum)
	return nil
}

func (s *entries) objectLocked(r ref, e *entry) any {
	if selection := s.lists[r.Kind]; selection != nil {
		return selection(r)
	}
	return e.object
}

// wrote notes the content of the file. An object that arrived meanwhile is still to be written.
func (s *entries) wrote(r ref, object any, sum *[sha256.Size]byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.byRef[r]
	if e == nil {
		return
	}
	e.written = sum
	if e.object == object {
		e.object, e.fresh = nil, false
	}
}

// digestOf returns the digest of the record of an earlier run, nil if it cannot be read.
func (s *entries) digestOf(r ref) *[sha256.Size]byte {
	rec, err := s.files.read(s.files.path(r))
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
func (s *entries) sweepFiles() error {
	paths, err := s.files.paths()
	if err != nil {
		return err
	}
	wanted, uids := map[string]bool{}, map[string]bool{}
	s.mu.Lock()
	for r := range s.byRef {
		wanted[s.files.path(r)] = true
		if r.Kind == podKind {
			uids[r.Name] = true
		}
	}
	for path := range s.aside {
		wanted[path] = true
	}
	s.mu.Unlock()
	found := map[string]record{}
	for _, path := range paths {
		if !isRecord(path) {
			continue
		}
		if rec, err := s.files.read(path); err == nil {
			found[path] = rec
		}
	}
	for more := true; more; {
		more = false
		for path, rec := range found {
			if !wanted[path] && !(rec.Kind == tokens && uids[podOfToken(rec.ref())]) {
				continue
			}
			delete(found, path)
			wanted[path] = true
			if o, err := rec.decode(); err == nil {
				for _, r := range refsOf(o) {
					wanted[s.files.path(r)] = true
				}
			}
			more = true
		}
	}
	paths = slices.DeleteFunc(paths, func(path string) bool { return wanted[path] })
	if err := checkpoint.Remove(paths...); err != nil {
		return err
	}
	s.mu.Lock()
	s.sweep = false
	s.mu.Unlock()
	return nil
}

func podOfToken(r ref) string {
	if words := strings.Fields(r.Name); len(words) > 1 {
		return words[1]
	}
	return ""
}
