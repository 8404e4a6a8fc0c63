package volumes

import (
	"context"
	"slices"
	"strings"
	"sync"

	v1 "k8s.io/api/core/v1"

	"berth/internal/pod"
)

type publication struct {
	uid      pod.UID
	specName string
}

// csiState is the state of CSI volumes. State that must survive a restart is on disk.
type csiState struct {
	inUseChanged func() // called when the result of inUse has changed
	locks        *volumeLocks
	wake         chan struct{} // capacity 1: the reconciler has work

	mu             sync.Mutex
	users          map[csiID]map[pod.UID]bool // guarded by mu; pods that use the volume, or are about to
	staged         map[csiID]bool             // guarded by mu; volumes that may be staged; true: this agent staged it
	published      map[publication]bool       // guarded by mu; published by this agent
	disks          map[csiID]string           // guarded by mu; names of block volumes
	labels         map[csiID]*mountLabel      // guarded by mu; SELinux labels of mounted volumes
	attach         map[csiID]bool             // guarded by mu; whether a volume needs to be attached, if known
	unstaging      map[csiID]*unstaging       // guarded by mu
	republish      map[pod.UID]bool           // guarded by mu; pods with volumes that are republished periodically
	waiting        map[pod.UID]bool           // guarded by mu; pods that wait for a missing or failed driver
	unstaged       chan struct{}              // guarded by mu; closed and replaced after each unstaging
	nodeChanged    chan struct{}              // guarded by mu; closed and replaced when the Node has changed
	publishedInUse []v1.UniqueVolumeName      // guarded by mu; the result of inUse at the last call of inUseChanged
	known          bool                       // guarded by mu; earlier state is loaded
	settled        bool                       // guarded by mu; all desired pods are known
}

func newCSIState(inUseChanged func()) *csiState {
	return &csiState{
		inUseChanged: inUseChanged, locks: newVolumeLocks(), wake: make(chan struct{}, 1),
		users: map[csiID]map[pod.UID]bool{}, staged: map[csiID]bool{}, published: map[publication]bool{}, disks: map[csiID]string{},
		labels: map[csiID]*mountLabel{}, attach: map[csiID]bool{}, unstaging: map[csiID]*unstaging{},
		republish: map[pod.UID]bool{}, waiting: map[pod.UID]bool{}, unstaged: make(chan struct{}), nodeChanged: make(chan struct{}),
	}
}

// addUser records that the pod uses the volume, or is about to.
func (s *csiState) addUser(uid pod.UID, id csiID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.users[id] == nil {
		s.users[id] = map[pod.UID]bool{}
	}
	s.users[id][uid] = true
}

// release deletes the pod's entries: its volumes have been removed from its directory.
func (s *csiState) release(uid pod.UID) {
	s.mu.Lock()
	had := false
	for id, pods := range s.users {
		had = had || pods[uid]
		delete(pods, uid)
		if len(pods) == 0 {
			delete(s.users, id)
		}
	}
	for id, l := range s.labels {
		delete(l.pods, uid)
		if _, staged := s.staged[id]; !staged && len(l.pods) == 0 {
			delete(s.labels, id)
		}
	}
	for p := range s.published {
		if p.uid == uid {
			delete(s.published, p)
		}
	}
	delete(s.republish, uid)
	delete(s.waiting, uid)
	s.mu.Unlock()
	if had {
		s.wakeUp()
		s.publishInUse()
	}
}

func (s *csiState) wakeUp() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// locked calls f with mu held.
func (s *csiState) locked(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

// isPublished reports whether this agent has published the volume for the pod.
func (s *csiState) isPublished(uid pod.UID, specName string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.published[publication{uid, specName}]
}

// publishInUse calls inUseChanged if the result of inUse has changed.
func (s *csiState) publishInUse() {
	s.mu.Lock()
	now := s.inUse()
	changed := !slices.Equal(now, s.publishedInUse)
	s.publishedInUse = now
	s.mu.Unlock()
	if changed {
		s.inUseChanged()
	}
}

// inUse returns the volumes that must not be detached, sorted. The caller holds s.mu.
func (s *csiState) inUse() []v1.UniqueVolumeName {
	if !s.known {
		return nil
	}
	out := []v1.UniqueVolumeName{}
	for id, needs := range s.attach {
		_, staged := s.staged[id]
		switch {
		case !staged && len(s.users[id]) == 0:
			delete(s.attach, id)
		case needs:
			out = append(out, id.unique())
		}
	}
	slices.SortFunc(out, func(a, b v1.UniqueVolumeName) int { return strings.Compare(string(a), string(b)) })
	return out
}

// volumeLocks serializes operations on each volume.
type volumeLocks struct {
	mu      sync.Mutex
	volumes map[csiID]*volumeLock // guarded by mu
}

type volumeLock struct {
	held chan struct{} // capacity 1
	refs int           // holder and waiters; guarded by volumeLocks.mu
}

func newVolumeLocks() *volumeLocks { return &volumeLocks{volumes: map[csiID]*volumeLock{}} }

// lock waits for the lock of the volume.
func (l *volumeLocks) lock(ctx context.Context, id csiID) (unlock func(), err error) {
	l.mu.Lock()
	lock := l.volumes[id]
	if lock == nil {
		lock = &volumeLock{held: make(chan struct{}, 1)}
		l.volumes[id] = lock
	}
	lock.refs++
	l.mu.Unlock()
	release := func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if lock.refs--; lock.refs == 0 {
			delete(l.volumes, id)
		}
	}
	select {
	case lock.held <- struct{}{}:
		return func() { <-lock.held; release() }, nil
	case <-ctx.Done():
		release()
		return nil, context.Cause(ctx)
	}
}
