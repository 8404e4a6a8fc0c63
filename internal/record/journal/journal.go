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

// Journal keeps the newest entries of each subject. It is safe for concurrent use.
type Journal struct {
	log *slog.Logger

	mu      sync.Mutex
	rings   map[string]*ring    // guarded by mu; key: UID, or Subject.String() without one
	order   *list.List          // guarded by mu; least recently written first; elements are *ring
	size    int                 // guarded by mu; sum of the rings' sizes
	numbers uint64              // guarded by mu; the last one given to a ring
	scratch []byte              // guarded by mu; for records
	file    *checkpoint.WarmLog // nil for a journal in memory; what it is appended to is guarded by mu
}

// New returns an empty journal in memory that also writes each entry to log at level debug. Errors
// are written at level warn, but one that comes again and again only from time to time.
func New(log *slog.Logger) *Journal {
	return &Journal{log: log, rings: map[string]*ring{}, order: list.New()}
}

// fileLimit is the length of the journal's file at which it is replaced by a snapshot, which is
// never longer than memoryLimit: both together, which exist for a moment, stay below 8 MiB.
const fileLimit = 5 << 20

// NewInFolder returns a journal that keeps what is recorded in a file of the folder. Load reads
// what is there, Run writes.
func NewInFolder(dir string, log *slog.Logger) *Journal {
	j := New(log)
	j.file = checkpoint.NewLog(checkpoint.LogConfig{
		Dir: dir, Name: "journal", Version: 1, Limit: fileLimit, Lock: &j.mu, Snapshot: j.snapshotLocked, Log: log,
	})
	return j
}

// Load reads the folder. It must be called before anything is recorded. What cannot be read is set
// aside or cut off, and logged; an error means that nothing can be written either.
func (j *Journal) Load() error {
	numbers := map[uint64]*ring{}
	return j.file.Load(func(record []byte) error { return j.replay(record, numbers) })
}

// Run writes behind until ctx is done, and then what is left.
func (j *Journal) Run(ctx context.Context) error { return j.file.Run(ctx) }

// Health returns what cannot be written, since when and why, or nil.
func (j *Journal) Health() error { return j.file.Health() }

func key(s Subject) string {
	if s.UID != "" {
		return string(s.UID)
	}
	return s.String()
}

// Record appends the entry to its subject's ring. Time is set when zero. An entry equal to the
// previous one but for its times raises that one's Count instead, so that a retry loop does not
// push the cause out of the ring.
func (j *Journal) Record(e Entry) {
	level, again := j.record(&e)
	j.logEntry(&e, level, again)
}

// RecordUnder records what was recorded already under another subject, without another line of the
// log.
func (j *Journal) RecordUnder(s Subject, e Entry) {
	e.Subject = s
	j.record(&e)
}

// record appends the entry, and returns at which level it is to be logged, and how often it came
// since that was done last.
func (j *Journal) record(e *Entry) (level slog.Level, again int) {
	if e.Time.IsZero() {
		e.Time = time.Now()
	}
	kept := newEntry(e)
	j.mu.Lock()
	defer j.mu.Unlock()
	r := j.ringLocked(e.Subject, kept.at)
	before := r.size
	if r.add(kept) {
		j.appendLocked(r.appendRepeat(j.scratch, r.last()))
	} else {
		j.appendLocked(r.appendEntry(j.scratch, &kept))
	}
	level = slog.LevelDebug
	if e.Error != "" {
		var tell bool
		if again, tell = r.tell(e); tell {
			level = slog.LevelWarn
		}
	}
	j.chargeLocked(r, before)
	return level, again
}

// Reach notes that a step of the pod's start is done now; container is "" for a step of the pod.
// Only the first mark of a step counts: the journal tells of a pod's first start.
func (j *Journal) Reach(s Subject, step Step, container string) {
	j.ReachAt(s, step, container, time.Now())
}

// ReachAt is Mark for a step of which somebody else, as the runtime, has seen the time.
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

// HasEnd reports whether the end of that incarnation is known, so that its log need not be read
// again.
func (j *Journal) HasEnd(s Subject, container, id string) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	r := j.rings[key(s)]
	return r != nil && r.hasEnd(container, id)
}

// Ended notes how an incarnation of a container ended. The last ten of each container are kept.
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

// Expect says what will happen to the subject, in place of what was expected before. It is not kept
// over a restart of the agent, after which everything is planned anew.
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

// Read returns the entries of the pods (or manifests) with this namespace and name, oldest first;
// several incarnations of one name follow each other. An empty result means that nothing of that
// name was ever seen, or that it was long ago.
func (j *Journal) Read(namespace, name string) []Entry {
	var out []Entry
	for _, s := range j.Stories(namespace, name) {
		out = append(out, s.Entries...)
	}
	return out
}

// Stories returns all that is known of the pods (or manifests) with this namespace and name: one
// story per incarnation, the one that was written to last at the end.
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

// TimelineOf returns all that is known of the pod, and false when that is nothing.
func (j *Journal) TimelineOf(uid types.UID) (Timeline, bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if r := j.rings[string(uid)]; r != nil {
		return r.timeline(), true
	}
	return Timeline{}, false
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

// SubjectOf returns what the journal knows by the UID, and false when that is nothing.
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

// ringLocked returns the subject's ring, which is now the most recently written one. A new one is
// seen at the given time.
func (j *Journal) ringLocked(s Subject, seen int64) *ring {
	if r := j.rings[key(s)]; r != nil {
		j.order.MoveToBack(r.place)
		if r.subject.Name == "" && s.Name != "" {
			r.subject = s // known by its UID alone before
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

// chargeLocked accounts for what r has grown since it had the size before, and makes room at the
// cost of the least recently written.
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

// appendLocked hands a record to the file. The record may be built in j.scratch, which it becomes.
func (j *Journal) appendLocked(record []byte) {
	j.scratch = record[:0]
	if j.file != nil {
		j.file.Append(record)
	}
}

// snapshotLocked hands every ring to add as records from which replay makes it again.
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
