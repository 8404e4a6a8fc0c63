package status

import (
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth/internal/pod"
	"berth/internal/record/journal"
)

// Manager (statusManager) keeps the newest status of each pod. It is safe for concurrent use.
type Manager struct {
	log     *slog.Logger
	journal *journal.Journal
	// unkept names the pods of which what is to be kept may be another than in the file. It is told
	// with mu held, before anybody sees the status.
	unkept  *pod.Inbox[pod.UID]
	changed pod.Publisher[pod.UID]

	mu       sync.RWMutex
	entries  map[pod.UID]entry        // guarded by mu
	restored map[pod.UID]v1.PodStatus // guarded by mu; what an earlier agent kept of pods that have no entry yet
	evicted  map[pod.UID]int64        // guarded by mu; the grace periods of pods that are evicted, in seconds
}

// entry is what is known of one pod. Its status is shared with readers and never changed, only
// replaced.
type entry struct {
	pod      *v1.Pod // as of the newest status
	status   v1.PodStatus
	shown    *v1.Pod   // the pod with that status; nil until somebody reads it
	began    time.Time // see Manager.Began
	finished bool
}

// NewManager returns a manager that knows no pod. Changes are written to the journal, refusals to
// log.
func NewManager(log *slog.Logger, j *journal.Journal) *Manager {
	return &Manager{
		log: log, journal: j, unkept: pod.NewInbox[pod.UID](),
		entries: map[pod.UID]entry{}, evicted: map[pod.UID]int64{},
	}
}

// Get returns the pod's newest status, which may be what an earlier agent kept, and whether there
// is one. The status is shared and must not be changed.
func (m *Manager) Get(uid pod.UID) (v1.PodStatus, bool) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if e, ok := m.entries[uid]; ok {
		return e.status, true
	}
	s, ok := m.restored[uid]
	return s, ok
}

// Began returns when the start time in the pod's newest status was, zero if there is none. A clock
// that is set after this agent first saw the start time does not change how long ago that was.
//
// Differs from the kubelet: there a pod with activeDeadlineSeconds ends when the clock is set
// ahead.
func (m *Manager) Began(uid pod.UID) time.Time {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if e, ok := m.entries[uid]; ok {
		return e.began
	}
	if start := m.restored[uid].StartTime; start != nil {
		return start.Time
	}
	return time.Time{}
}

// WithStatus returns the pod with its newest status as readers are told it; without one it returns
// the pod itself. Of what an earlier agent kept these are the ends of pods alone: of a pod that ran
// then, this agent says nothing before it has looked. What is returned is shared and must not be
// changed: as long as pod and status are the same, so is it.
func (m *Manager) WithStatus(p *v1.Pod) *v1.Pod {
	m.mu.Lock()
	defer m.mu.Unlock()
	e, ok := m.entries[p.UID]
	switch {
	case !ok:
		if s := m.restored[p.UID]; pod.IsTerminal(s.Phase) {
			return withStatus(p, s)
		}
		return p
	case e.pod != p:
		return withStatus(p, e.status)
	case e.shown == nil:
		e.shown = withStatus(p, e.status)
		m.entries[p.UID] = e
	}
	return e.shown
}

func withStatus(p *v1.Pod, s v1.PodStatus) *v1.Pod {
	out := *p
	out.Status = s
	return &out
}

// seen returns the pod's newest status if it is of this agent: what an earlier one kept says what
// was, and after a reboot nothing of it may be.
func (m *Manager) seen(uid pod.UID) (v1.PodStatus, bool) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	e, ok := m.entries[uid]
	return e.status, ok
}

// Finished reports whether the pod was Terminated: nothing of it runs or is held any more, and its
// API object may go.
func (m *Manager) Finished(uid pod.UID) bool {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.entries[uid].finished
}

// UIDs returns the pods that have a status.
func (m *Manager) UIDs() []pod.UID {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return slices.Collect(maps.Keys(m.entries))
}

// Count returns how many pods there are, and how many of them are ready.
func (m *Manager) Count() (pods, ready int) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	for _, e := range m.entries {
		if isReady(&e.status) {
			ready++
		}
	}
	return len(m.entries), ready
}

// Pod returns the pod as it was when its status was last set, for pods that are not desired any
// more but still end. The pod is shared and must not be changed.
func (m *Manager) Pod(uid pod.UID) (*v1.Pod, bool) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	e, ok := m.entries[uid]
	return e.pod, ok
}

// Notify tells every subscriber of the key: of a pod, or, with "", of something else that they
// show.
func (m *Manager) Notify(uid pod.UID) {
	m.changed.Publish(uid)
}

// Subscribe returns an inbox that gets the UID of each pod whose status changes or goes, and the
// function that ends this. Changes after Subscribe returned are never missed, but many may be one;
// a slow reader holds nobody up.
func (m *Manager) Subscribe() (changed *pod.Inbox[pod.UID], cancel func()) {
	return m.changed.Subscribe()
}

// Set makes s the pod's newest status; the pod's own status stands in for one that is not known
// yet. It sets what depends on the status before: start time and times of transition. A terminal
// phase stays. A status that brings a container back to life which must not be restarted is
// refused, and one that changes nothing is dropped.
func (m *Manager) Set(p *v1.Pod, s v1.PodStatus) {
	s = *s.DeepCopy()
	m.update(p, func(e *entry) error {
		if err := checkTransitions(p, &e.status, &s); err != nil {
			return err
		}
		e.status = settle(p, e.status, s, metav1.Now())
		return nil
	})
}

// Terminated notes that the pod has ended for good and that everything it held is freed: what was
// not seen to end is reported as ended, and the pod as Failed unless it is terminal already. A
// static pod keeps its phase, since it may come back.
func (m *Manager) Terminated(p *v1.Pod) {
	m.update(p, func(e *entry) error {
		e.status = settle(p, e.status, terminatedStatus(p, e.status), metav1.Now())
		e.finished = true
		return nil
	})
}

// Remove forgets the pod. Subscribers are told also of one without a status: it may have been shown
// as it ended.
func (m *Manager) Remove(uid pod.UID) {
	m.mu.Lock()
	delete(m.entries, uid)
	delete(m.restored, uid)
	delete(m.evicted, uid)
	m.unkept.Put(uid)
	m.mu.Unlock()
	m.changed.Publish(uid)
}

// update replaces the pod's entry by what change makes of it, unless change fails, and tells of a
// difference.
func (m *Manager) update(p *v1.Pod, change func(e *entry) error) {
	m.mu.Lock()
	before, known := m.entries[p.UID]
	if !known {
		before.status = p.Status
		if s, ok := m.restored[p.UID]; ok {
			before.status = s
		}
	}
	if before.pod != p {
		before.pod, before.shown = p, nil
	}
	after := before
	after.shown = nil
	err := change(&after)
	if !known && err == nil {
		after.began = onClockOf(time.Now(), after.status.StartTime.Time)
	}
	differs := err == nil && (!known || !equality.Semantic.DeepEqual(before.status, after.status))
	finished := err == nil && after.finished && !before.finished
	switch {
	case differs:
		m.entries[p.UID] = after
		m.unkept.Put(p.UID)
	case err == nil:
		before.finished = after.finished
		m.entries[p.UID] = before // readers keep sharing one copy
	}
	if err == nil {
		delete(m.restored, p.UID)
	}
	m.mu.Unlock()

	if err != nil {
		m.log.Error("pod status refused", "pod", pod.Describe(p), "error", err)
		return
	}
	if differs {
		for _, e := range changes(p, &before.status, &after.status) {
			m.journal.Record(e)
		}
		if isReady(&after.status) && !isReady(&before.status) {
			m.journal.Reach(journal.Subject{UID: p.UID, Namespace: p.Namespace, Name: p.Name}, journal.Ready, "")
		}
	}
	if differs || finished { // a pod that has finished may go from the API server, though its status says no more than before
		m.changed.Publish(p.UID)
	}
}
