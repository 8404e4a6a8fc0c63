package journal

import (
	"container/list"
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"berth/internal/checkpoint"
)

// Journal stores the newest entries of each subject. It is safe for concurrent use.
type Journal struct {
	log *slog.Logger

	mu      sync.Mutex
	rings   map[string]*ring    // guarded by mu; key: UID, or Subject.String() without one
	order   *list.List          // guarded by mu; least recently written first; elements are *ring
	size    int                 // guarded by mu; sum of the rings' sizes
	numbers uint64              // guarded by mu; the last number of a ring
	scratch []byte              // guarded by mu; for records
	file    *checkpoint.WarmLog // nil for a journal in memory; its pending records are guarded by mu
}

// New returns an empty journal in memory that also logs each entry at level debug. Errors are
// logged at level warn, repeated ones only from time to time.
func New(log *slog.Logger) *Journal {
	return &Journal{log: log, rings: map[string]*ring{}, order: list.New()}
}

// fileLimit is the size at which the journal's file is replaced by a snapshot, which is never
// larger than memoryLimit: both, which exist together for a moment, stay below 8 MiB.
const fileLimit = 5 << 20

// NewInFolder returns a journal that is persisted in a file of the directory. Load reads it, Run
// writes it.
func NewInFolder(dir string, log *slog.Logger) *Journal {
	j := New(log)
	j.file = checkpoint.NewLog(checkpoint.LogConfig{
		Dir: dir, Name: "journal", Version: 1, Limit: fileLimit, Lock: &j.mu, Snapshot: j.snapshotLocked, Log: log,
	})
	return j
}

// Load reads the file. It must be called before anything is recorded. Unreadable content is set
// aside or truncated, and logged; an error means that the journal cannot be written either.
func (j *Journal) Load() error {
	numbers := map[uint64]*ring{}
	return j.file.Load(func(record []byte) error { return j.replay(record, numbers) })
}

// Run writes the journal asynchronously until ctx is done, and then the rest.
func (j *Journal) Run(ctx context.Context) error { return j.file.Writer.Run(ctx) }

// Health returns why and since when the file cannot be written, or nil.
func (j *Journal) Health() error { return j.file.Writer.Health() }

func key(s Subject) string {
	if s.UID != "" {
		return string(s.UID)
	}
	return s.String()
}

// Record appends the entry to its subject's ring. A zero Time is set to now. An entry that equals
// the previous one except for its times increments that one's Count, so that a retry loop does not
// displace the cause.
func (j *Journal) Record(e Entry) {
	level, again := j.record(&e)
	j.logEntry(&e, level, again)
}

// RecordUnder records an entry under another subject without logging it again.
func (j *Journal) RecordUnder(s Subject, e Entry) {
	e.Subject = s
	j.record(&e)
}

// record appends the entry, and returns its log level, and the number of repetitions since it was
// last logged.
func (j *Journal) record(e *Entry) (level slog.Level, again int) {
	if e.Time.IsZero() {
		e.Time = time.Now()
	}
	stored := newEntry(e)
	j.mu.Lock()
	defer j.mu.Unlock()
	r := j.ringLocked(e.Subject, stored.at)
	before := r.size
	if r.add(stored) {
		j.appendLocked(r.appendRepeat(j.scratch, r.last()))
	} else {
		j.appendLocked(r.appendEntry(j.scratch, &stored))
	}
	level = slog.LevelDebug
	if e.Error != "" {
		var shouldLog bool
		if again, shouldLog = r.shouldLog(e); shouldLog {
			level = slog.LevelWarn
		}
	}
	j.chargeLocked(r, before)
	return level, again
}

// Reach records that a step of the pod's start is done now; container is "" for a step of the pod.
// Only the first record of a step counts: the journal describes a pod's first start.
func (j *Journal) Reach(s Subject, step Step, container string) {
	j.ReachAt(s, step, container, time.Now())
}

// ReachAt is Reach for a step at a given time, such as one reported by the runtime.
func (j *Journal) ReachAt(s Subject, step Step, container string, at time.Time) {
	m := milestone{at: at.UnixNano(), container: container, step: step}
	j.mu.Lock()
	defer j.mu.Unlock()
	r := j.ringLocked(s, min(m.at, time.Now().UnixNano()))
	before := r.size
	if r.addMark(m) {
		j.appendLocked(r.appendMark(j.scratch, &m))
	}
	j.chargeLocked(r, before)
}

// HasEnd reports whether the exit of that incarnation is recorded, so that its log need not be read
// again.
func (j *Journal) HasEnd(s Subject, container, id string) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	r := j.rings[key(s)]
	return r != nil && r.hasEnd(container, id)
}

// Ended records the exit of an incarnation of a container. The last ten of each container are
// stored.
func (j *Journal) Ended(s Subject, e End) {
	j.mu.Lock()
	defer j.mu.Unlock()
	r := j.ringLocked(s, time.Now().UnixNano())
	before := r.size
	if r.addEnd(e) {
		j.appendLocked(r.appendEnd(j.scratch, &r.ends[len(r.ends)-1]))
	}
	j.chargeLocked(r, before)
}

// Expect sets the scheduled actions of the subject, replacing earlier ones. They are not persisted,
// since a restarted agent schedules anew.
func (j *Journal) Expect(s Subject, next ...Next) {
	j.mu.Lock()
	defer j.mu.Unlock()
	r := j.rings[key(s)]
	if r == nil {
		if len(next) == 0 {
			return
		}
		r = j.ringLocked(s, time.Now().UnixNano())
	}
	r.next = append(r.next[:0:0], next[:min(len(next), nextLimit)]...)
}

// Read returns the entries of the pods (or manifests) with this namespace and name, oldest first,
// one incarnation after another. An empty result means that the name is unknown, or its entries
// were dropped.
func (j *Journal) Read(namespace, name string) []Entry {
	var out []Entry
	for _, s := range j.Stories(namespace, name) {
		out = append(out, s.Entries...)
	}
	return out
}

// Stories returns the timelines of the pods (or manifests) with this namespace and name: one per
// incarnation, the most recently written last.
func (j *Journal) Stories(namespace, name string) []Timeline {
	j.mu.Lock()
	defer j.mu.Unlock()
	var out []Timeline
	for el := j.order.Front(); el != nil; el = el.Next() {
		if r := el.Value.(*ring); r.subject.Name == name && r.subject.Namespace == namespace {
			out = append(out, r.timeline())
		}
	}
	return out
}

// TimelineOf returns the timeline of the pod, and false if there is none.
func (j *Journal) TimelineOf(uid types.UID) (Timeline, bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if r := j.rings[string(uid)]; r != nil {
		return r.timeline(), true
	}
	return Timeline{}, false
}

// Subjects returns the subjects of the journal, least recently written first.
func (j *Journal) Subjects() []Subject {
	j.mu.Lock()
	defer j.mu.Unlock()
	out := make([]Subject, 0, j.order.Len())
	for el := j.order.Front(); el != nil; el = el.Next() {
		out = append(out, el.Value.(*ring).subject)
	}
	return out
}

// SubjectOf returns the subject with the UID, and false if there is none.
func (j *Journal) SubjectOf(uid types.UID) (Subject, bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if r := j.rings[string(uid)]; r != nil {
		return r.subject, true
	}
	return Subject{}, false
}

// Error returns err's text, or "" for nil, for use in an Entry.
func Error(err error) string {
	if err == nil {
		return ""
	}
	return fmt.Sprint(err)
}

// ringLocked returns the subject's ring, and makes it the most recently written. seen is the time
// of a new one.
func (j *Journal) ringLocked(s Subject, seen int64) *ring {
	if r := j.rings[key(s)]; r != nil {
		j.order.MoveToBack(r.place)
		if r.subject.Name == "" && s.Name != "" {
			r.subject = s // only its UID was known before
			j.appendLocked(r.appendSubject(j.scratch))
		}
		return r
	}
	r := j.insertLocked(s, j.numbers+1, seen)
	j.appendLocked(r.appendSubject(j.scratch))
	return r
}

func (j *Journal) insertLocked(s Subject, number uint64, seen int64) *ring {
	if r := j.rings[key(s)]; r != nil { // its subject was written again
		r.subject = s
		return r
	}
	j.numbers = max(j.numbers, number)
	r := newRing(s, number, seen)
	r.place = j.order.PushBack(r)
	j.rings[key(s)] = r
	j.size += r.size
	if j.order.Len() > subjects {
		j.dropLocked(j.order.Front().Value.(*ring))
	}
	return r
}

// chargeLocked updates the total size after r has grown from before, and drops the least recently
// written rings beyond the limit.
func (j *Journal) chargeLocked(r *ring, before int) {
	j.size += r.size - before
	for j.size > memoryLimit && j.order.Front() != r.place {
		j.dropLocked(j.order.Front().Value.(*ring))
	}
}

func (j *Journal) dropLocked(r *ring) {
	j.order.Remove(r.place)
	delete(j.rings, key(r.subject))
	j.size -= r.size
	r.place = nil
}

// appendLocked appends a record to the file. The record may be built in j.scratch, which it
// replaces.
func (j *Journal) appendLocked(record []byte) {
	j.scratch = record[:0]
	if j.file != nil {
		j.file.Append(record)
	}
}

// snapshotLocked passes all rings to add, as records for replay.
func (j *Journal) snapshotLocked(add func(record []byte)) {
	for el := j.order.Front(); el != nil; el = el.Next() {
		r := el.Value.(*ring)
		emit := func(record []byte) {
			j.scratch = record[:0]
			add(record)
		}
		emit(r.appendSubject(j.scratch))
		r.each(func(e *entry) { emit(r.appendEntry(j.scratch, e)) })
		for i := range r.milestones {
			emit(r.appendMark(j.scratch, &r.milestones[i]))
		}
		for i := range r.ends {
			emit(r.appendEnd(j.scratch, &r.ends[i]))
		}
	}
}
