package journal

import (
	"cmp"
	"container/list"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// Limits per pod, and in total.
const (
	entriesPerPod  = 128
	endsPerSpec    = 10  // stored exits per container
	marksPerPod    = 256 // more than the containers of any pod cause
	subjects       = 2048
	textLimit      = 2048 // bytes of a decision, a why or an error
	messageLimit   = 1024
	logLimit       = 2048
	memoryLimit    = 3 << 20 // of all rings together
	ringOverhead   = 320     // bytes of an empty ring with its entries in map and list
	entryOverhead  = 40
	markOverhead   = 32
	endOverhead    = 160
	nextLimit      = 32
	partsOfText    = 5
	partSeparator  = "\x00"
	truncationMark = "…"
	nulReplacement = "\uFFFD"
)

// entry is the stored form of an Entry without its subject: one string holds all its texts.
type entry struct {
	at, took int64 // nanoseconds
	count    uint32
	text     string // component, container, decision, why, error, separated by partSeparator
}

type milestone struct {
	at        int64
	container string
	step      Step
}

// ring is the stored state of one subject.
type ring struct {
	subject    Subject
	place      *list.Element // in Journal.order; nil when dropped
	number     uint64        // its number in the file
	seen       int64
	entries    []entry // at most entriesPerPod; oldest first after rotation by start
	start      int
	milestones []milestone
	ends       []End
	next       []Next // not persisted: computed anew after a restart
	logged     []loggedError
	size       int // bytes, approximately
}

func newRing(s Subject, number uint64, seen int64) *ring {
	return &ring{subject: s, number: number, seen: seen, size: ringOverhead + len(s.UID) + len(s.Namespace) + len(s.Name)}
}

func newEntry(e *Entry) entry {
	parts := [partsOfText]string{e.Component, e.Container, e.Decision, e.Why, e.Error}
	for i, p := range parts {
		parts[i] = clip(p, textLimit)
	}
	return entry{at: e.Time.UnixNano(), took: int64(e.Took), count: uint32(max(e.Count, 0)), text: strings.Join(parts[:], partSeparator)}
}

func (e *entry) entry(s Subject) Entry {
	out := Entry{Time: time.Unix(0, e.at), Subject: s, Took: time.Duration(e.took), Count: int(e.count)}
	rest := e.text
	for _, part := range []*string{&out.Component, &out.Container, &out.Decision, &out.Why, &out.Error} {
		*part, rest, _ = strings.Cut(rest, partSeparator)
	}
	return out
}

// clip truncates a text to limit bytes, at a character boundary, and replaces what the stored form
// cannot hold.
func clip(s string, limit int) string {
	if strings.Contains(s, partSeparator) {
		s = strings.ReplaceAll(s, partSeparator, nulReplacement)
	}
	if len(s) <= limit {
		return s
	}
	cut := limit - len(truncationMark)
	for cut > 0 && !utf8.RuneStart(s[cut]) {
		cut--
	}
	return strings.Clone(s[:cut]) + truncationMark
}

// add appends e, or counts it as a repetition of the newest entry, and reports which.
func (r *ring) add(e entry) (repeated bool) {
	if n := len(r.entries); n > 0 {
		last := r.last()
		if last.text == e.text {
			last.count = max(last.count, 1) + max(e.count, 1)
			last.at, last.took = e.at, e.took
			return true
		}
	}
	r.size += len(e.text) + entryOverhead
	if len(r.entries) < entriesPerPod {
		r.entries = append(r.entries, e)
		return false
	}
	r.size -= len(r.entries[r.start].text) + entryOverhead
	r.entries[r.start] = e
	r.start = (r.start + 1) % entriesPerPod
	return false
}

// last returns the newest entry; there must be one.
func (r *ring) last() *entry {
	n := len(r.entries)
	return &r.entries[(r.start+n-1)%n]
}

// each calls f with the entries, oldest first.
func (r *ring) each(f func(*entry)) {
	for i := range r.entries {
		f(&r.entries[(r.start+i)%len(r.entries)])
	}
}

// addMark stores the first milestone of a step and reports whether this is it.
func (r *ring) addMark(m milestone) bool {
	for i := range r.milestones {
		if r.milestones[i].step == m.step && r.milestones[i].container == m.container {
			return false
		}
	}
	if len(r.milestones) == marksPerPod {
		return false
	}
	r.milestones = append(r.milestones, m)
	r.size += markOverhead + len(m.container)
	return true
}

func (r *ring) hasEnd(container, id string) bool {
	return slices.ContainsFunc(r.ends, func(e End) bool { return e.Container == container && e.ID == id })
}

// addEnd stores the exit unless it is known, and reports whether it is new.
func (r *ring) addEnd(e End) bool {
	if r.hasEnd(e.Container, e.ID) {
		return false
	}
	e.Message, e.Log = clip(e.Message, messageLimit), clipFront(e.Log, logLimit)
	n, oldest := 0, -1
	for i := range r.ends {
		if o := &r.ends[i]; o.Container == e.Container {
			n++
			if oldest < 0 {
				oldest = i
			}
			if o.Log == e.Log {
				e.Log = o.Log // a crash-looping container logs the same each time
			}
		}
	}
	if n >= endsPerSpec {
		r.size -= endSize(&r.ends[oldest])
		r.ends = slices.Delete(r.ends, oldest, oldest+1)
	}
	r.ends = append(r.ends, e)
	r.size += endSize(&e)
	return true
}

func endSize(e *End) int {
	return endOverhead + len(e.Container) + len(e.ID) + len(e.Reason) + len(e.Message) + len(e.Log)
}

// clipFront truncates the front of a text.
func clipFront(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	cut := len(s) - limit
	for cut < len(s) && !utf8.RuneStart(s[cut]) {
		cut++
	}
	return strings.Clone(s[cut:])
}

func (r *ring) timeline() Timeline {
	s := Timeline{
		Subject: r.subject, Seen: time.Unix(0, r.seen), Ends: slices.Clone(r.ends), Next: slices.Clone(r.next),
		Entries: make([]Entry, 0, len(r.entries)),
	}
	r.each(func(e *entry) { s.Entries = append(s.Entries, e.entry(r.subject)) })
	for _, m := range r.milestones {
		s.Milestones = append(s.Milestones, Milestone{Step: m.step, Container: m.container, Time: time.Unix(0, m.at)})
	}
	slices.SortStableFunc(s.Milestones, func(a, b Milestone) int {
		return cmp.Or(a.Time.Compare(b.Time), cmp.Compare(a.Step.rank(), b.Step.rank()))
	})
	return s
}
