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

// CrashReset: a container that ran for longer than this since its last restart restarts without a
// back-off (Kubernetes documentation, "Pod Lifecycle").
const CrashReset = 10 * time.Minute

// CrashLoopKey identifies a back-off. It includes image and resources, so that a changed container
// starts at once.
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

// Hold is the time during which a container must not be restarted.
type Hold struct {
	Until time.Time
	// Delay is the length of the back-off, counted from the container's exit.
	Delay time.Duration
}

type crash struct {
	delay   time.Duration // 0 before the first restart
	updated time.Time     // of the last restart
	// removed is the exit time of an incarnation that was removed before its restart; zero if the
	// runtime still has it.
	removed time.Time
	// finish is the last requested finish time that was in the future, seen the time of the first
	// such request.
	finish, seen time.Time
	used         time.Time // of the last request or restart
}

// CrashLoop delays restarts of containers that exit repeatedly: the first restart is immediate, the
// next ones follow after a delay that grows by the container's BackOff, counted from its finish
// time. It is safe for concurrent use.
type CrashLoop struct {
	mu     sync.Mutex
	states map[CrashLoopKey]crash // guarded by mu
}

// NewCrashLoop returns a CrashLoop without back-offs.
func NewCrashLoop() *CrashLoop { return &CrashLoop{states: map[CrashLoopKey]crash{}} }

// Held returns the hold of the container that exited at finishedAt, and whether it is still in
// effect. A zero finishedAt stands for the incarnation that was passed to Removed. A finish time in
// the future, since the clock may have been set back, counts as the time of its first request.
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
	delay := min(s.delay, b.Maximum) // the pod's maximum may have been lowered since
	h = Hold{Until: finishedAt.Add(delay), Delay: delay}
	return h, now.Before(h.Until)
}

// After returns the delay that would follow a restart now of the container that exited at
// finishedAt; 0 if it never exited.
func (l *CrashLoop) After(k CrashLoopKey, b BackOff, finishedAt, now time.Time) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	s, _ := l.nextLocked(k, b, finishedAt, now)
	return s.delay
}

// Next records that the container that exited at finishedAt is restarted now, and increases the
// delay after its next exit. It does nothing for a container that never exited.
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
// An existing back-off stays.
func (l *CrashLoop) Resume(k CrashLoopKey, delay time.Duration, restarted, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, ok := l.states[k]; !ok {
		l.states[k] = crash{delay: delay, updated: restarted, used: now}
	}
}

// Removed records that the incarnation that exited at finishedAt was removed and is yet to be
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

// Forget drops the back-offs of a pod: a later pod with its UID starts without one.
func (l *CrashLoop) Forget(uid pod.UID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	maps.DeleteFunc(l.states, func(k CrashLoopKey, _ crash) bool { return k.uid == uid })
}

// GC drops back-offs without requests for CrashReset, which is longer than any delay.
func (l *CrashLoop) GC(now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for k, s := range l.states {
		if now.Sub(s.used) > CrashReset {
			delete(l.states, k)
			continue
		}
		if s.used.After(now) { // the clock was set back: do not wait until it catches up
			s.used = now
			l.states[k] = s
		}
	}
}

// pastFinish returns finishedAt, or a stable substitute if finishedAt is in the future.
func (s *crash) pastFinish(finishedAt, now time.Time) time.Time {
	if !finishedAt.After(now) {
		return finishedAt
	}
	if !s.finish.Equal(finishedAt) || s.seen.After(now) {
		s.finish, s.seen = finishedAt, now
	}
	return s.seen
}

// expired reports whether a container that exited at finishedAt ran long enough to reset the
// back-off.
func (s *crash) expired(finishedAt time.Time) bool { return finishedAt.Sub(s.updated) > CrashReset }

// nextCrash is the state after a restart at now of a container that exited at finishedAt.
func nextCrash(s crash, b BackOff, finishedAt, now time.Time) crash {
	delay := b.Initial
	if s.delay > 0 && !s.expired(finishedAt) {
		delay = b.grow(s.delay)
	}
	return crash{delay: delay, updated: now, used: now}
}
