package lifecycle

import (
	"encoding/json"
	"fmt"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"

	"berth/internal/pod"
)

// The times of crash-loop back-off (Kubernetes documentation, "Pod Lifecycle", and KEP-4603).
const (
	CrashBase = 10 * time.Second
	CrashCap  = 300 * time.Second
	// CrashReset: a container that ended this long after its last restart starts anew at CrashBase.
	CrashReset = 10 * time.Minute
)

// CrashLoopKey identifies what is held back. Image and resources are part of it, so that a changed container is tried at once.
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

// crash is the back-off of one container.
type crash struct {
	delay   time.Duration
	updated time.Time // of the last restart
	// finish is the last finish time asked for that was in the future, seen the time at which it was first seen.
	finish, seen time.Time
	used         time.Time // of the last question or restart
}

// CrashLoop holds containers back that were restarted and ended again: the first restart is immediate, the next ones come 10 s,
// 20 s, 40 s … up to 300 s after the container's finish time. It is safe for concurrent use.
type CrashLoop struct {
	base, most time.Duration

	mu     sync.Mutex
	states map[CrashLoopKey]crash // guarded by mu
}

// NewCrashLoop returns back-offs with the default times.
func NewCrashLoop() *CrashLoop { return NewCappedCrashLoop(CrashCap) }

// NewCappedCrashLoop returns back-offs that never exceed most (crashLoopBackOff.maxContainerRestartPeriod, 1 s to 300 s). It lowers
// the first delay too if that is longer.
func NewCappedCrashLoop(most time.Duration) *CrashLoop {
	return &CrashLoop{base: min(CrashBase, most), most: most, states: map[CrashLoopKey]crash{}}
}

// Until returns the time before which the container that ended at finishedAt must not be restarted, and whether that is still to
// come. A finish time in the future, as the clock may have been set back, counts as the moment at which it was first asked about.
func (l *CrashLoop) Until(k CrashLoopKey, finishedAt, now time.Time) (until time.Time, wait bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s, ok := l.states[k]
	if !ok {
		return time.Time{}, false
	}
	finishedAt = s.pastFinish(finishedAt, now)
	if s.expired(finishedAt) {
		return time.Time{}, false
	}
	s.used = now
	l.states[k] = s
	until = finishedAt.Add(s.delay)
	return until, now.Before(until)
}

// Delay returns the length of the container's current back-off; 0 when it has none.
func (l *CrashLoop) Delay(k CrashLoopKey) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.states[k].delay
}

// Next notes that the container that ended at finishedAt is restarted now, and doubles the back-off for its next end.
func (l *CrashLoop) Next(k CrashLoopKey, finishedAt, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.states[k]
	l.states[k] = nextCrash(s, s.pastFinish(finishedAt, now), now, l.base, l.most)
}

// GC forgets the containers that nothing was heard of for CrashReset: a longer back-off than that does not exist.
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

// pastFinish returns finishedAt, or a substitute that stays the same when asked again if finishedAt is yet to come.
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
func nextCrash(s crash, finishedAt, now time.Time, base, most time.Duration) crash {
	delay := base
	if s.delay > 0 && !s.expired(finishedAt) {
		delay = min(2*s.delay, most)
	}
	return crash{delay: delay, updated: now, used: now}
}
