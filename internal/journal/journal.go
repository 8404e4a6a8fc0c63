// Package journal is the record of decisions: what was decided for a pod, from which inputs, and how long it took.
//
// Owns: one bounded ring of entries per pod.
// Reads: nothing; every component writes to it.
// Never: holds values of environment variables or secrets, blocks a writer, grows without bound.
package journal

import (
	"container/list"
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

const (
	entriesPerPod = 128
	subjects      = 2048 // pods and manifests remembered, those that are gone included
)

// Subject is what an entry is about: a pod, or a manifest that did not become one (then Name is its file or URL and UID is empty).
type Subject struct {
	UID             types.UID `json:"uid,omitempty"`
	Namespace, Name string
}

func (s Subject) String() string {
	if s.Namespace == "" {
		return s.Name
	}
	return s.Namespace + "/" + s.Name
}

// Entry is one decision.
type Entry struct {
	Time      time.Time     `json:"time"`
	Subject   Subject       `json:"subject"`
	Component string        `json:"component"`           // who decided: config, admission, worker, plan, runtime, image, volume, status, pleg
	Decision  string        `json:"decision"`            // what was decided, one line
	Why       string        `json:"why,omitempty"`       // the inputs that led to it
	Took      time.Duration `json:"took,omitempty"`      // nanoseconds; 0 when nothing was waited for
	Error     string        `json:"error,omitempty"`     // how it failed
	Container string        `json:"container,omitempty"` // the container it is about, if one
	Count     int           `json:"count,omitempty"`     // how often in a row; 0 and 1 mean once
}

type ring struct {
	subject Subject
	entries []Entry // at most entriesPerPod; oldest first after rotation by start
	start   int
}

// Journal keeps the newest entries of each subject. It is safe for concurrent use.
type Journal struct {
	now func() time.Time
	log *slog.Logger

	mu    sync.Mutex
	rings map[string]*list.Element // guarded by mu; key: UID, or Subject.String() without one
	order *list.List               // guarded by mu; least recently written first; elements are *ring
}

// New returns an empty journal that also writes each entry to log at level debug (errors at level warn).
func New(log *slog.Logger) *Journal {
	return &Journal{now: time.Now, log: log, rings: map[string]*list.Element{}, order: list.New()}
}

func key(s Subject) string {
	if s.UID != "" {
		return string(s.UID)
	}
	return s.String()
}

// Record appends the entry to its subject's ring. Time is set when zero. An entry equal to the previous one but for its times
// raises that one's Count instead, so that a retry loop does not push the cause out of the ring.
func (j *Journal) Record(e Entry) {
	if e.Time.IsZero() {
		e.Time = j.now()
	}
	j.mu.Lock()
	j.recordLocked(e)
	j.mu.Unlock()
	level := slog.LevelDebug
	attrs := []any{"pod", e.Subject.String(), "component", e.Component}
	if e.Container != "" {
		attrs = append(attrs, "container", e.Container)
	}
	if e.Why != "" {
		attrs = append(attrs, "why", e.Why)
	}
	if e.Took > 0 {
		attrs = append(attrs, "took", e.Took)
	}
	if e.Error != "" {
		level = slog.LevelWarn
		attrs = append(attrs, "error", e.Error)
	}
	j.log.Log(context.Background(), level, e.Decision, attrs...)
}

func (j *Journal) recordLocked(e Entry) {
	el, ok := j.rings[key(e.Subject)]
	if !ok {
		el = j.order.PushBack(&ring{subject: e.Subject})
		j.rings[key(e.Subject)] = el
		if j.order.Len() > subjects {
			old := j.order.Front()
			j.order.Remove(old)
			delete(j.rings, key(old.Value.(*ring).subject))
		}
	} else {
		j.order.MoveToBack(el)
	}
	r := el.Value.(*ring)
	if n := len(r.entries); n > 0 {
		last := &r.entries[(r.start+n-1)%n]
		if same(*last, e) {
			last.Count = max(last.Count, 1) + 1
			last.Time, last.Took = e.Time, e.Took
			return
		}
	}
	if len(r.entries) < entriesPerPod {
		r.entries = append(r.entries, e)
		return
	}
	r.entries[r.start] = e
	r.start = (r.start + 1) % entriesPerPod
}

func same(a, b Entry) bool {
	a.Time, a.Took, a.Count = b.Time, b.Took, b.Count
	return a == b
}

// Read returns the entries of the pods (or manifests) with this namespace and name, oldest first; several incarnations of one
// name follow each other. An empty result means that nothing of that name was ever seen, or that it was long ago.
func (j *Journal) Read(namespace, name string) []Entry {
	j.mu.Lock()
	defer j.mu.Unlock()
	var out []Entry
	for el := j.order.Front(); el != nil; el = el.Next() {
		r := el.Value.(*ring)
		if r.subject.Name != name || r.subject.Namespace != namespace {
			continue
		}
		out = append(out, r.entries[r.start:]...)
		out = append(out, r.entries[:r.start]...)
	}
	return out
}

// Subjects returns what the journal holds entries about, least recently written first.
func (j *Journal) Subjects() []Subject {
	j.mu.Lock()
	defer j.mu.Unlock()
	out := make([]Subject, 0, j.order.Len())
	for el := j.order.Front(); el != nil; el = el.Next() {
		out = append(out, el.Value.(*ring).subject)
	}
	return out
}

// Error returns err's text, or "" for nil, for use in an Entry.
func Error(err error) string {
	if err == nil {
		return ""
	}
	return fmt.Sprint(err)
}
