package agent

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"berth/internal/pod"
)

const (
	// crashesUntilQuarantine is how often the agent may crash with a pod in hand, crashWindow within which time.
	crashesUntilQuarantine = 3
	crashWindow            = 24 * time.Hour
	// quarantineKept bounds the pods whose crashes are remembered.
	quarantineKept = 256
	// reportHead is how much of a crash report is read.
	reportHead = 64 << 10
)

// Ending is the generation of a pod that is to end: ending it is another piece of work than running it, and crashes of their own count for it.
const Ending int64 = -1

// The quarantine's files, in the journal's folder.
const (
	handsFile      = "inhand"          // slots: the pods that are being worked on
	crashFile      = "crash"           // what the Go runtime says when the process dies of a panic
	lastCrashFile  = "crash.last"      // the report of the last crash
	quarantineFile = "quarantine.json" // counted crashes
)

// quarantine sets pods aside that make the agent crash. The agent notes in a file which pods its workers have in hand; when it dies of a
// panic, the next one counts a crash for each of them. With the third one in a day the pod is not touched any more: its containers go
// on as they are, until its spec changes or it is released. An agent that was killed has not crashed.
type quarantine struct {
	dir  string
	log  *slog.Logger
	now  func() time.Time
	tell witness

	mu    sync.Mutex
	hands *os.File          // guarded by mu; nil before open
	free  []int64           // guarded by mu; slots below slots that are not in use
	slots int64             // guarded by mu
	pods  map[wish]*suspect // guarded by mu
	told  map[wish]struct{} // guarded by mu
	slot  [slotSize]byte    // guarded by mu; what is written
}

// wish is a piece of work on a pod: to run a generation of its spec, or to end it.
type wish struct {
	UID        pod.UID `json:"uid"`
	Generation int64   `json:"generation"`
}

// suspect is a pod that was in hand when the agent crashed.
type suspect struct {
	wish
	Crashes []time.Time `json:"crashes"`
	// Quarantined: it is not touched.
	Quarantined bool `json:"quarantined,omitempty"`
	// Report is the beginning of the last crash's report.
	Report string `json:"report"`
}

// suspectsFile is the content of quarantineFile.
type suspectsFile struct {
	Version int        `json:"version"`
	Pods    []*suspect `json:"pods"`
}

// witness is told of what happens, without a lock held.
type witness interface {
	// crashed: the last agent crashed with the pod in hand.
	crashed(s suspect)
	// setAside: the pod, which was about to be touched, is not. It is told once for each run of the agent.
	setAside(s suspect)
}

func newQuarantine(dir string, log *slog.Logger, tell witness) *quarantine {
	return &quarantine{dir: dir, log: log, now: time.Now, tell: tell, pods: map[wish]*suspect{}, told: map[wish]struct{}{}}
}

// open counts the crash that ended the last agent, if one did, and makes ready for the next one: from then on the Go runtime writes its
// report of a panic into a file too.
func (q *quarantine) open() error {
	if err := os.MkdirAll(q.dir, 0o700); err != nil {
		return fmt.Errorf("quarantine: %w", err)
	}
	q.load()
	hands, err := os.OpenFile(q.path(handsFile), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return fmt.Errorf("quarantine: %w", err)
	}
	inHand, err := readSlots(hands)
	if err == nil {
		err = hands.Truncate(0)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("quarantine: %s: %w", q.path(handsFile), err), hands.Close())
	}
	q.mu.Lock()
	q.hands = hands
	q.mu.Unlock()
	report, err := q.takeReport()
	if err != nil {
		return err
	}
	if report != "" {
		q.log.Error("the last agent crashed", "report", q.path(lastCrashFile), "error", report, "podsInHand", len(inHand))
		q.count(inHand, report)
	}
	crash, err := os.OpenFile(q.path(crashFile), os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("quarantine: %w", err)
	}
	return errors.Join(debug.SetCrashOutput(crash, debug.CrashOptions{}), crash.Close()) // the runtime has a descriptor of its own
}

// close ends what open began.
func (q *quarantine) close() error {
	err := debug.SetCrashOutput(nil, debug.CrashOptions{})
	q.mu.Lock()
	hands := q.hands
	q.hands = nil
	q.mu.Unlock()
	if hands != nil {
		err = errors.Join(err, hands.Close())
	}
	return err
}

func (q *quarantine) path(name string) string { return filepath.Join(q.dir, name) }

// load reads the crashes that were counted. What cannot be read is set aside: it costs a pod more crashes until it is quarantined.
// A crash in the future was counted before the host's clock was set back, and counts as now.
func (q *quarantine) load() {
	b, err := os.ReadFile(q.path(quarantineFile))
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	var f suspectsFile
	if err == nil {
		err = json.Unmarshal(b, &f)
	}
	if err == nil && f.Version != 1 {
		err = fmt.Errorf("version %d", f.Version)
	}
	if err != nil {
		aside := q.path(quarantineFile) + ".bad"
		q.log.Warn("the list of pods that are set aside cannot be read; it is begun anew", "path", q.path(quarantineFile), "aside", aside,
			"error", errors.Join(err, os.Rename(q.path(quarantineFile), aside)))
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	now, changed := q.now(), false
	for _, s := range f.Pods {
		for i, at := range s.Crashes {
			if at.After(now) {
				s.Crashes[i], changed = now, true
			}
		}
		q.pods[s.wish] = s
	}
	if !changed {
		return
	}
	if err := q.saveLocked(); err != nil { // or else they would be new with each agent
		q.log.Error("crashes of an earlier clock are not written down as of now", "error", err)
	}
}

// takeReport moves the last agent's crash report out of the way and returns its beginning, "" when it did not crash.
func (q *quarantine) takeReport() (string, error) {
	f, err := os.Open(q.path(crashFile))
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("crash report: %w", err)
	}
	b, err := io.ReadAll(io.LimitReader(f, reportHead))
	if err := errors.Join(err, f.Close()); err != nil {
		return "", fmt.Errorf("crash report: %w", err)
	}
	if len(b) == 0 {
		return "", nil
	}
	// Before it is counted: an agent that is killed in between forgets a crash rather than counting it twice.
	if err := os.Rename(q.path(crashFile), q.path(lastCrashFile)); err != nil {
		return "", fmt.Errorf("crash report: %w", err)
	}
	return summarizeCrash(b), nil
}

// summarizeCrash returns what a crash report says in its first lines, and the agent's function that it happened in. A process that was asked
// for its stacks by a signal did not crash: then it is "".
func summarizeCrash(report []byte) string {
	text := strings.TrimLeft(string(report), "\n")
	if strings.HasPrefix(text, "SIGQUIT") || strings.HasPrefix(text, "SIGABRT") {
		return ""
	}
	if strings.HasPrefix(text, "goroutine ") {
		text = "fatal error\n\n" + text // what the Go runtime cannot go on after: its report begins with the stack
	}
	head, stack, _ := strings.Cut(text, "\n\n")
	lines := strings.Split(strings.TrimSpace(head), "\n")
	lines = lines[:min(3, len(lines))]
	if _, frames, ok := strings.Cut(stack, ":\n"); ok {
		for frame := range strings.Lines(frames) {
			if strings.HasPrefix(frame, "berth/") {
				frame = strings.TrimSpace(frame)
				lines = append(lines, "in "+frame[:max(0, strings.LastIndexByte(frame, '('))]) // without the arguments
				break
			}
		}
	}
	out := strings.Join(lines, "\n")
	return out[:min(len(out), 1024)]
}

// count counts one crash for each pod that was in hand.
func (q *quarantine) count(inHand []wish, report string) {
	now := q.now()
	var counted []suspect
	q.mu.Lock()
	for _, w := range inHand {
		s := q.pods[w]
		if s == nil {
			s = &suspect{wish: w}
			q.pods[w] = s
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
		q.log.Error("the crash is not counted", "error", err)
	}
	for _, s := range counted {
		q.tell.crashed(s)
	}
}

// pruneLocked forgets crashes that are too old to count, and the oldest ones when they are too many.
func (q *quarantine) pruneLocked(now time.Time) {
	last := func(s *suspect) time.Time { return s.Crashes[len(s.Crashes)-1] }
	var all []*suspect
	for w, s := range q.pods {
		if len(s.Crashes) == 0 || (!s.Quarantined && now.Sub(last(s)) > crashWindow) {
			delete(q.pods, w)
			continue
		}
		all = append(all, s)
	}
	if len(all) <= quarantineKept {
		return
	}
	slices.SortFunc(all, func(a, b *suspect) int { return last(a).Compare(last(b)) })
	for _, s := range all[:len(all)-quarantineKept] {
		delete(q.pods, s.wish)
	}
}

func (q *quarantine) saveLocked() error {
	f := suspectsFile{Version: 1, Pods: make([]*suspect, 0, len(q.pods))}
	for _, s := range q.pods {
		f.Pods = append(f.Pods, s)
	}
	slices.SortFunc(f.Pods, func(a, b *suspect) int {
		return cmp.Or(cmp.Compare(a.UID, b.UID), cmp.Compare(a.Generation, b.Generation))
	})
	b, err := json.MarshalIndent(f, "", "  ")
	if err != nil {
		return err
	}
	path := q.path(quarantineFile)
	if err := os.WriteFile(path+".tmp", append(b, '\n'), 0o600); err != nil {
		return fmt.Errorf("pods that are set aside: %w", err)
	}
	if err := os.Rename(path+".tmp", path); err != nil {
		return fmt.Errorf("pods that are set aside: %w", err)
	}
	return nil
}

// Quarantined reports whether the pod is not to be touched. A pod with another generation than the one that was set aside is a new one.
func (q *quarantine) Quarantined(uid pod.UID, generation int64) bool {
	q.mu.Lock()
	if len(q.pods) == 0 {
		q.mu.Unlock()
		return false
	}
	w := wish{uid, generation}
	if generation != Ending {
		q.forgetLocked(func(o wish) bool { return o.UID == uid && o.Generation != generation && o.Generation != Ending })
	}
	s := q.pods[w]
	quarantined := s != nil && s.Quarantined
	_, told := q.told[w]
	var say suspect
	if quarantined && !told {
		q.told[w] = struct{}{}
		say = *s
	}
	q.mu.Unlock()
	if quarantined && !told {
		q.tell.setAside(say)
	}
	return quarantined
}

// forgetLocked forgets what matches and reports whether that was anything that was set aside.
func (q *quarantine) forgetLocked(match func(wish) bool) (released bool) {
	changed := false
	for w, s := range q.pods {
		if match(w) {
			released = released || s.Quarantined
			delete(q.pods, w)
			delete(q.told, w)
			changed = true
		}
	}
	if !changed {
		return false
	}
	if err := q.saveLocked(); err != nil {
		q.log.Warn("a pod that is no longer set aside will be so after a restart", "error", err)
	}
	return released
}

// Why returns the report of the crashes for which the pod is set aside, and false when it is not.
func (q *quarantine) Why(uid pod.UID) (report string, quarantined bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for w, s := range q.pods {
		if w.UID == uid && s.Quarantined {
			return s.Report, true
		}
	}
	return "", false
}

// Release lets the pod be touched again, and reports whether it was set aside.
func (q *quarantine) Release(uid pod.UID) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.forgetLocked(func(w wish) bool { return w.UID == uid })
}
