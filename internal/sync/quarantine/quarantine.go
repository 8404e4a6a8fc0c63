// Package quarantine leaves pods alone with which the agent crashed too often. A pass over a pod is
// noted in a file while it is in hand. When the agent dies of a panic, the next one counts a crash
// for each pod that was in hand. A pod with three crashes in a day is set aside: its containers go
// on as they are.
//
// Owns: the list of suspects, the slots of pods in hand, the crash report; their files in the
// journal's folder.
// Reads: the crash report that the Go runtime writes.
// Never: touches a pod; counts the end of an agent that was killed.
package quarantine

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"

	"berth/internal/checkpoint"
	"berth/internal/pod"
	"berth/internal/record/journal"
)

const (
	// crashesUntilQuarantine is how often the agent may crash with a pod in hand, crashWindow
	// within which time.
	crashesUntilQuarantine = 3
	crashWindow            = 24 * time.Hour
	// maxSuspects bounds the pods whose crashes are remembered.
	maxSuspects = 256
)

// suspectsFile is the file of the counted crashes, suspectsVersion that of its form.
const (
	suspectsFile    = "quarantine.json"
	suspectsVersion = 1
)

// ending stands for the generation of a pod that is to end. To end it is other work than to run it,
// and has crashes of its own.
const ending int64 = -1

// Config is what a Quarantine needs.
type Config struct {
	// Dir is the folder of its files. It is root's alone: the report of a crash may say anything.
	Dir string
	// Journal gets an entry for each crash, and for each pod that is set aside or released.
	Journal *journal.Journal
	// Events gets a warning for each pod that is set aside.
	Events Recorder
	// Pod returns the pod as it is wanted, or was last.
	Pod func(uid pod.UID) (*v1.Pod, bool)
	Log *slog.Logger
}

// Recorder records events.
type Recorder interface {
	Eventf(p *v1.Pod, container, eventtype, reason, format string, args ...any)
}

// Quarantine is the list of suspects. A suspect that is quarantined is not touched until its spec
// changes or it is released.
type Quarantine struct {
	Config
	inHand slots

	mu       sync.Mutex
	suspects map[work]*suspect // guarded by mu
}

// work is what is done to a pod: to run a generation of its spec, or to end it.
type work struct {
	UID        pod.UID `json:"uid"`
	Generation int64   `json:"generation"`
}

// suspect is a pod that was in hand when the agent crashed.
type suspect struct {
	work
	Crashes []time.Time `json:"crashes"`
	// Quarantined: it is not touched.
	Quarantined bool `json:"quarantined,omitempty"`
	// Report is the beginning of the last crash's report.
	Report   string `json:"report"`
	recorded bool   // by this agent, that the pod is set aside
}

// suspectList is the content of suspectsFile.
type suspectList struct {
	Version int        `json:"version"`
	Pods    []*suspect `json:"pods"`
}

// New returns a Quarantine. It does no I/O.
func New(cfg Config) *Quarantine {
	return &Quarantine{Config: cfg, inHand: slots{log: cfg.Log}, suspects: map[work]*suspect{}}
}

// Open counts the crash that ended the last agent, if one did, and makes ready for the next one:
// from then on the Go runtime writes its report of a panic into a file too.
func (q *Quarantine) Open() error {
	if err := os.MkdirAll(q.Dir, 0o700); err != nil {
		return fmt.Errorf("quarantine: %w", err)
	}
	q.load()
	var inHand []work
	err := q.orAnew(slotsFile, func() (err error) { inHand, err = q.inHand.open(q.path(slotsFile)); return err })
	if err != nil {
		return err
	}
	var report string
	if err := q.orAnew(crashFile, func() (err error) { report, err = q.takeReport(); return err }); err != nil {
		return err
	}
	if report != "" {
		q.Log.Error("the last agent crashed", "report", q.path(lastCrashFile), "error", report, "podsInHand", len(inHand))
		q.count(inHand, report)
	}
	return q.openReport()
}

// orAnew does something with a file. One that cannot be used is set aside, and it is done once
// more: a crash of the last agent is not counted then.
func (q *Quarantine) orAnew(name string, do func() error) error {
	err := do()
	if err == nil {
		return nil
	}
	aside, moved := checkpoint.SetAside(q.path(name))
	if moved != nil {
		return fmt.Errorf("quarantine: %w; %w", err, moved)
	}
	q.Log.Warn("A file of the quarantine cannot be read and is set aside", "path", q.path(name), "aside", aside, "err", err)
	if err := do(); err != nil {
		return fmt.Errorf("quarantine: %w", err)
	}
	return nil
}

// Close ends what Open began.
func (q *Quarantine) Close() error { return errors.Join(closeReport(), q.inHand.close()) }

func (q *Quarantine) path(name string) string { return filepath.Join(q.Dir, name) }

// load reads the crashes that were counted. What cannot be read is set aside: it costs a pod more
// crashes until it is quarantined. A crash in the future was counted before the host's clock was
// set back, and counts as now.
func (q *Quarantine) load() {
	var f suspectList
	err := checkpoint.Read(q.path(suspectsFile), "counted crashes", func(b []byte) error {
		if err := json.Unmarshal(b, &f); err != nil {
			return err
		}
		if f.Version != suspectsVersion {
			return checkpoint.UnknownVersion(f.Version, suspectsVersion)
		}
		return nil
	})
	if err != nil {
		q.Log.Warn("Resetting the list of quarantined pods", "error", err)
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	now, changed := time.Now(), false
	for _, s := range f.Pods {
		for i, at := range s.Crashes {
			if at.After(now) {
				s.Crashes[i], changed = now, true
			}
		}
		q.suspects[s.work] = s
	}
	if !changed {
		return
	}
	if err := q.saveLocked(); err != nil { // or else they would be new with each agent
		q.Log.Error("crashes of an earlier clock are not written down as of now", "error", err)
	}
}

// count counts one crash for each pod that was in hand.
func (q *Quarantine) count(inHand []work, report string) {
	now := time.Now()
	var counted []suspect
	q.mu.Lock()
	for _, w := range inHand {
		s := q.suspects[w]
		if s == nil {
			s = &suspect{work: w}
			q.suspects[w] = s
		}
		s.Crashes = append(slices.DeleteFunc(s.Crashes, func(t time.Time) bool { return now.Sub(t) > crashWindow }), now)
		s.Report = report
		s.Quarantined = s.Quarantined || len(s.Crashes) >= crashesUntilQuarantine
		counted = append(counted, *s)
	}
	q.pruneLocked(now)
	err := q.saveLocked()
	q.mu.Unlock()
	if err != nil {
		q.Log.Error("the crash is not counted", "error", err)
	}
	for _, s := range counted {
		q.recordCrash(s)
	}
}

// pruneLocked forgets crashes that are too old to count, and the oldest ones when they are too
// many.
func (q *Quarantine) pruneLocked(now time.Time) {
	last := func(s *suspect) time.Time { return s.Crashes[len(s.Crashes)-1] }
	var all []*suspect
	for w, s := range q.suspects {
		if len(s.Crashes) == 0 || (!s.Quarantined && now.Sub(last(s)) > crashWindow) {
			delete(q.suspects, w)
			continue
		}
		all = append(all, s)
	}
	if len(all) <= maxSuspects {
		return
	}
	slices.SortFunc(all, func(a, b *suspect) int { return last(a).Compare(last(b)) })
	for _, s := range all[:len(all)-maxSuspects] {
		delete(q.suspects, s.work)
	}
}

func (q *Quarantine) saveLocked() error {
	f := suspectList{Version: suspectsVersion, Pods: make([]*suspect, 0, len(q.suspects))}
	for _, s := range q.suspects {
		f.Pods = append(f.Pods, s)
	}
	slices.SortFunc(f.Pods, func(a, b *suspect) int {
		return cmp.Or(cmp.Compare(a.UID, b.UID), cmp.Compare(a.Generation, b.Generation))
	})
	b, err := json.MarshalIndent(f, "", "  ")
	if err != nil {
		return err
	}
	return checkpoint.WriteWarm(q.path(suspectsFile), 0o600, append(b, '\n'))
}

// isQuarantined reports whether the work is not to be done. A pod with another generation than the
// one that was set aside is a new one.
func (q *Quarantine) isQuarantined(w work) bool {
	s, first := q.find(w)
	if first {
		q.recordSetAside(s)
	}
	return s.Quarantined
}

// find returns the suspect, which is zero when the work is not suspect, and whether this is the
// first time that this agent finds it quarantined.
func (q *Quarantine) find(w work) (_ suspect, first bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if w.Generation != ending {
		q.forgetLocked(func(o work) bool { return o.UID == w.UID && o.Generation != w.Generation && o.Generation != ending })
	}
	s := q.suspects[w]
	if s == nil {
		return suspect{}, false
	}
	first = s.Quarantined && !s.recorded
	s.recorded = s.Quarantined
	return *s, first
}

// forgetLocked forgets what matches and reports whether that was anything that was set aside.
func (q *Quarantine) forgetLocked(match func(work) bool) (released bool) {
	changed := false
	for w, s := range q.suspects {
		if match(w) {
			released = released || s.Quarantined
			delete(q.suspects, w)
			changed = true
		}
	}
	if !changed {
		return false
	}
	if err := q.saveLocked(); err != nil {
		q.Log.Warn("a pod that is no longer set aside will be so after a restart", "error", err)
	}
	return released
}

// Why returns the report of the crashes for which the pod is set aside, and false when it is not.
func (q *Quarantine) Why(uid pod.UID) (report string, quarantined bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for w, s := range q.suspects {
		if w.UID == uid && s.Quarantined {
			return s.Report, true
		}
	}
	return "", false
}

// release lets the pod be touched again, and reports whether it was set aside.
func (q *Quarantine) release(uid pod.UID) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.forgetLocked(func(w work) bool { return w.UID == uid })
}

// component is the name under which the quarantine writes to the journal.
const component = "quarantine"

// recordCrash says that the last agent crashed with the pod in hand.
func (q *Quarantine) recordCrash(s suspect) {
	q.Journal.Record(journal.Entry{
		Subject: q.subjectOf(s.UID), Component: component, Error: s.Report,
		Decision: fmt.Sprintf("the agent crashed with the pod in hand, for the %s time in a day", ordinal(len(s.Crashes))),
	})
}

// Rule says what becomes of a pod that is set aside.
const Rule = "Its containers go on. It is touched again when its spec changes, or after \"berth release\"."

// recordSetAside says that the pod, which was about to be touched, is not.
func (q *Quarantine) recordSetAside(s suspect) {
	q.Journal.Record(journal.Entry{
		Subject: q.subjectOf(s.UID), Component: component, Decision: "the pod is set aside", Error: s.Report,
		Why: fmt.Sprintf("the agent crashed %d times with it in hand, and %d times within a day are the limit. %s", len(s.Crashes), crashesUntilQuarantine, Rule),
	})
	if p, ok := q.Pod(s.UID); ok {
		q.Events.Eventf(p, "", v1.EventTypeWarning, "Quarantined",
			"The node agent crashed %d times with this pod in hand and leaves it alone. %s", len(s.Crashes), Rule)
	}
}

// subjectOf names a pod of which only the UID is known.
func (q *Quarantine) subjectOf(uid pod.UID) journal.Subject {
	if s, ok := q.Journal.SubjectOf(uid); ok {
		return s
	}
	return journal.Subject{UID: uid}
}

func ordinal(n int) string {
	if n <= 3 {
		return [...]string{"0th", "1st", "2nd", "3rd"}[n]
	}
	return fmt.Sprintf("%dth", n)
}
