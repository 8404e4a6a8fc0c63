package lifecycle

import (
	"encoding/json"
	"fmt"
	"maps"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"

	"berth/internal/pod"
)

// CrashReset: a container that ended this long after its last restart starts anew without a
// back-off (Kubernetes documentation, "Pod Lifecycle").
const CrashReset = 10 * time.Minute

// CrashLoopKey identifies what is held back. Image and resources are part of it, so that a changed
// container is tried at once.
type CrashLoopKey struct {
	pod       pod.FullName
	uid       pod.UID
	container string
	image     string
	resources string // JSON
}

// CrashKey returns the container's key.
func CrashKey(p *v1.Pod, c *v1.Container) CrashLoopKey {
	r, err := json.Marshal(&c.Resources)
	if err != nil {
		panic(fmt.Sprintf("resources of container %q have no JSON form: %v", c.Name, err))
	}
	return CrashLoopKey{pod: pod.FullNameOf(p), uid: p.UID, container: c.Name, image: c.Image, resources: string(r)}
}

// Hold is how long a container must not be restarted.
type Hold struct {
	Until time.Time
	// Delay is the length of the back-off, counted from the container's end.
	Delay time.Duration
}

// crash is the back-off of one container.
type crash struct {
	delay   time.Duration // 0 before the first restart
	updated time.Time     // of the last restart
	// removed is the end of an incarnation that was taken away before its restart; zero when the
	// runtime still shows it.
	removed time.Time
	// finish is the last finish time asked for that was in the future, seen the time at which it
	// was first seen.
	finish, seen time.Time
	used         time.Time // of the last question or restart
}

// CrashLoop holds containers back that were restarted and ended again: the first restart is
// immediate, the next ones come after a delay that grows by the container's BackOff, counted from
// its finish time. It is safe for concurrent use.
type CrashLoop struct {
	mu     sync.Mutex
	states map[CrashLoopKey]crash // guarded by mu
}

// NewCrashLoop returns a CrashLoop that holds nothing back.
func NewCrashLoop() *CrashLoop { return &CrashLoop{states: map[CrashLoopKey]crash{}} }

// Held returns the hold of the container that ended at finishedAt, and whether it still lasts. A
// zero finishedAt stands for the incarnation that Removed told of. A finish time in the future, as
// the clock may have been set back, counts as the moment at which it was first asked about.
func (l *CrashLoop) Held(k CrashLoopKey, b BackOff, finishedAt, now time.Time) (h Hold, held bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s, ok := l.states[k]
	if !ok {
		return Hold{}, false
	}
	if finishedAt.IsZero() {
		finishedAt = s.removed
	}
	finishedAt = s.pastFinish(finishedAt, now)
	if finishedAt.IsZero() || s.delay == 0 || s.expired(finishedAt) {
		return Hold{}, false
	}
	s.used = now
	l.states[k] = s
	delay := min(s.delay, b.Maximum) // the pod may have been given a lower one since
	h = Hold{Until: finishedAt.Add(delay), Delay: delay}
	return h, now.Before(h.Until)
}

// After returns the delay that the container will have after its restart now, having ended at
// finishedAt; 0 when it never ended.
func (l *CrashLoop) After(k CrashLoopKey, b BackOff, finishedAt, now time.Time) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	s, _ := l.nextLocked(k, b, finishedAt, now)
	return s.delay
}

// Next notes that the container that ended at finishedAt is restarted now, and lets the back-off of
// its next end grow. A container that never ended is not restarted but started, which changes
// nothing.
func (l *CrashLoop) Next(k CrashLoopKey, b BackOff, finishedAt, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if s, ok := l.nextLocked(k, b, finishedAt, now); ok {
		l.states[k] = s
	}
}

func (l *CrashLoop) nextLocked(k CrashLoopKey, b BackOff, finishedAt, now time.Time) (_ crash, ok bool) {
	s := l.states[k]
	if finishedAt.IsZero() {
		finishedAt = s.removed
	}
	if finishedAt.IsZero() {
		return crash{}, false
	}
	return nextCrash(s, b, s.pastFinish(finishedAt, now), now), true
}

// Resume takes over the back-off of a container that an earlier agent restarted at the given time.
// What is known already stays.
func (l *CrashLoop) Resume(k CrashLoopKey, delay time.Duration, restarted, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, ok := l.states[k]; !ok {
		l.states[k] = crash{delay: delay, updated: restarted, used: now}
	}
}

// Removed notes that the incarnation which ended at finishedAt was taken away and is yet to be
// restarted.
func (l *CrashLoop) Removed(k CrashLoopKey, finishedAt, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.states[k]
	s.removed, s.used = s.pastFinish(finishedAt, now), now
	if s.updated.IsZero() {
		s.updated = s.removed
	}
	l.states[k] = s
}

// Forget forgets the containers of a pod: one that comes back under its UID begins anew.
func (l *CrashLoop) Forget(uid pod.UID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	maps.DeleteFunc(l.states, func(k CrashLoopKey, _ crash) bool { return k.uid == uid })
}

// GC forgets the containers that nothing was heard of for CrashReset: a longer back-off than that
// does not exist.
func (l *CrashLoop) GC(now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for k, s := range l.states {
		if now.Sub(s.used) > CrashReset {
			delete(l.states, k)
			continue
		}
		if s.used.After(now) { // the clock was set back: without this the entry would stay for as long as that
			s.used = now
			l.states[k] = s
		}
	}
}

// pastFinish returns finishedAt, or a substitute that stays the same when asked again if finishedAt
// is yet to come.
func (s *crash) pastFinish(finishedAt, now time.Time) time.Time {
	if !finishedAt.After(now) {
		return finishedAt
	}
	if !s.finish.Equal(finishedAt) || s.seen.After(now) {
		s.finish, s.seen = finishedAt, now
	}
	return s.seen
}

// expired reports whether a container that ended at finishedAt ran long enough to be forgiven.
func (s *crash) expired(finishedAt time.Time) bool { return finishedAt.Sub(s.updated) > CrashReset }

// nextCrash is the state after a restart at now of a container that ended at finishedAt.
func nextCrash(s crash, b BackOff, finishedAt, now time.Time) crash {
	delay := b.Initial
	if s.delay > 0 && !s.expired(finishedAt) {
		delay = b.grow(s.delay)
	}
	return crash{delay: delay, updated: now, used: now}
}
