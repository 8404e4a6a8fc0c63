// Package quarantine stops the agent from syncing pods that crashed it repeatedly. A pass over a
// pod is noted in a file while it is in progress. When the agent dies of a panic, the next one
// counts a crash for each pod with a pass in progress. A pod with three crashes in a day is
// quarantined: its containers keep running.
//
// Owns: the list of suspects, the slots of passes in progress, the crash report; their files in the
// journal's directory.
// Reads: the crash report that the Go runtime writes.
// Never: changes a pod; counts the exit of an agent that was killed.
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
	// A pod is quarantined after crashesUntilQuarantine crashes within crashWindow.
	crashesUntilQuarantine = 3
	crashWindow            = 24 * time.Hour
	// maxSuspects limits the number of stored suspects.
	maxSuspects = 256
)

// suspectsFile stores the counted crashes; suspectsVersion is its format version.
const (
	suspectsFile    = "quarantine.json"
	suspectsVersion = 1
)

// ending is the generation that stands for terminating a pod. Crashes of that are counted
// separately from crashes of running it.
const ending int64 = -1

// Config holds the dependencies of a Quarantine.
type Config struct {
	// Dir is the directory of its files. Only root can read it: a crash report may contain
	// anything.
	Dir string
	// Journal receives an entry for each crash, quarantine and release.
	Journal *journal.Journal
	// Events receives a warning for each quarantined pod.
	Events Recorder
	// Pod returns the newest desired version of the pod.
	Pod func(uid pod.UID) (*v1.Pod, bool)
	Log *slog.Logger
}

// Recorder records events.
type Recorder interface {
	Eventf(p *v1.Pod, container, eventtype, reason, format string, args ...any)
}

// Quarantine is the list of suspects. A quarantined pod is not synced until its spec changes or it
// is released.
type Quarantine struct {
	Config
	inProgress slots

	mu       sync.Mutex
	suspects map[work]*suspect // guarded by mu
}

// work is an operation on a pod: running a generation of its spec, or terminating it.
type work struct {
	UID        pod.UID `json:"uid"`
	Generation int64   `json:"generation"`
}

// suspect is a pod with a pass in progress when the agent crashed.
type suspect struct {
	work
	Crashes []time.Time `json:"crashes"`
	// Quarantined: the pod is not synced.
	Quarantined bool `json:"quarantined,omitempty"`
	// Report is the summary of the last crash report.
	Report   string `json:"report"`
	recorded bool   // this agent has journaled the quarantine
}

type suspectList struct {
	Version int        `json:"version"`
	Pods    []*suspect `json:"pods"`
}

// New returns a Quarantine. It does no I/O.
func New(cfg Config) *Quarantine {
	return &Quarantine{Config: cfg, inProgress: slots{log: cfg.Log}, suspects: map[work]*suspect{}}
}

// Open counts the crash of the last agent, if it crashed, and makes the Go runtime also write the
// report of a panic to a file.
func (q *Quarantine) Open() error {
	if err := os.MkdirAll(q.Dir, 0o700); err != nil {
		return fmt.Errorf("quarantine: %w", err)
	}
	q.load()
	var inProgress []work
	err := q.retryAnew(slotsFile, func() (err error) { inProgress, err = q.inProgress.open(q.path(slotsFile)); return err })
	if err != nil {
		return err
	}
	var report string
	if err := q.retryAnew(crashFile, func() (err error) { report, err = q.takeReport(); return err }); err != nil {
		return err
	}
	if report != "" {
		q.Log.Error("the last agent crashed", "report", q.path(lastCrashFile), "error", report, "podsInHand", len(inProgress))
		q.count(inProgress, report)
	}
	return q.openReport()
}

// retryAnew runs do. If that fails, it moves the file aside and runs do again: a crash of the last
// agent is then not counted.
func (q *Quarantine) retryAnew(name string, do func() error) error {
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

// Close closes the files of Open.
func (q *Quarantine) Close() error { return errors.Join(closeReport(), q.inProgress.close()) }

func (q *Quarantine) path(name string) string { return filepath.Join(q.Dir, name) }

// load reads the counted crashes. An unreadable file is moved aside, and counting restarts. A crash
// in the future was counted before the host's clock was set back; it counts as now.
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
	if err := q.saveLocked(); err != nil { // else the next agent resets them again
		q.Log.Error("crashes of an earlier clock are not written down as of now", "error", err)
	}
}

// count counts one crash for each pod with a pass in progress.
func (q *Quarantine) count(inProgress []work, report string) {
	now := time.Now()
	var counted []suspect
	q.mu.Lock()
	for _, w := range inProgress {
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

// pruneLocked drops crashes outside the window, and the oldest suspects above maxSuspects.
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

// isQuarantined reports whether the work must be skipped. A new generation of a quarantined pod is
// new work.
func (q *Quarantine) isQuarantined(w work) bool {
	s, first := q.find(w)
	if first {
		q.recordSetAside(s)
	}
	return s.Quarantined
}

// find returns the suspect, which is zero if there is none, and whether this agent finds it
// quarantined for the first time.
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

// forgetLocked drops matching suspects and reports whether one was quarantined.
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

// Why returns the crash report for which the pod is quarantined, and false if it is not.
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

// release ends the pod's quarantine, and reports whether it was quarantined.
func (q *Quarantine) release(uid pod.UID) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.forgetLocked(func(w work) bool { return w.UID == uid })
}

// component is the quarantine's component in the journal.
const component = "quarantine"

func (q *Quarantine) recordCrash(s suspect) {
	q.Journal.Record(journal.Entry{
		Subject: q.subjectOf(s.UID), Component: component, Error: s.Report,
		Decision: fmt.Sprintf("the agent crashed with the pod in hand, for the %s time in a day", ordinal(len(s.Crashes))),
	})
}

// Rule describes what happens to a quarantined pod.
const Rule = "Its containers go on. It is touched again when its spec changes, or after \"berth release\"."

// recordSetAside records the quarantine in the journal and as an event.
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
