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

// Manager (statusManager) stores the newest status of each pod. It is safe for concurrent use.
type Manager struct {
	log     *slog.Logger
	journal *journal.Journal
	// unsaved gets the pods whose persisted record may be out of date, with mu held, before readers
	// can see the status.
	unsaved *pod.Inbox[pod.UID]
	changed pod.Publisher[pod.UID]

	mu       sync.RWMutex
	entries  map[pod.UID]entry        // guarded by mu
	restored map[pod.UID]v1.PodStatus // guarded by mu; persisted by an earlier agent, of pods without an entry
	evicted  map[pod.UID]int64        // guarded by mu; the grace periods of evicted pods, in seconds
}

// entry is the state of one pod. Its status is shared with readers and never modified, only
// replaced.
type entry struct {
	pod      *v1.Pod // as of the newest status
	status   v1.PodStatus
	snapshot *v1.Pod   // the pod with that status; nil until first read
	began    time.Time // see Manager.Began
	finished bool
}

// NewManager returns a Manager without pods. Changes are written to the journal, rejected statuses
// to log.
func NewManager(log *slog.Logger, j *journal.Journal) *Manager {
	return &Manager{
		log: log, journal: j, unsaved: pod.NewInbox[pod.UID](),
		entries: map[pod.UID]entry{}, evicted: map[pod.UID]int64{},
	}
}

// Get returns the pod's newest status, which may be one persisted by an earlier agent, and whether
// there is one. The status is shared and must not be modified.
func (m *Manager) Get(uid pod.UID) (v1.PodStatus, bool) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if e, ok := m.entries[uid]; ok {
		return e.status, true
	}
	s, ok := m.restored[uid]
	return s, ok
}

// Began returns when the start time in the pod's newest status was, zero if there is none. Setting
// the clock after this agent first saw the start time does not affect it.
//
// Differs from the kubelet, where a pod with activeDeadlineSeconds terminates when the clock is set
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

// WithStatus returns the pod with its newest reported status; without one it returns the pod
// itself. Statuses of an earlier agent are used only if terminal: a pod that ran then must be
// observed first. The result is shared and must not be modified; it is the same object as long as
// pod and status are.
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
	case e.snapshot == nil:
		e.snapshot = withStatus(p, e.status)
		m.entries[p.UID] = e
	}
	return e.snapshot
}

func withStatus(p *v1.Pod, s v1.PodStatus) *v1.Pod {
	out := *p
	out.Status = s
	return &out
}

// seen returns the pod's newest status if this agent has set it: one of an earlier agent may be out
// of date, for example after a reboot.
func (m *Manager) seen(uid pod.UID) (v1.PodStatus, bool) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	e, ok := m.entries[uid]
	return e.status, ok
}

// Finished reports whether the pod was Terminated: nothing of it runs or holds resources, and its
// API object can be deleted.
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

// Count returns the number of pods and of ready pods.
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

// Pod returns the pod as of its newest status, for terminating pods that are no longer desired. The
// pod is shared and must not be modified.
func (m *Manager) Pod(uid pod.UID) (*v1.Pod, bool) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	e, ok := m.entries[uid]
	return e.pod, ok
}

// Notify publishes a key to every subscriber: a pod's UID, or "" for other changes that they show.
func (m *Manager) Notify(uid pod.UID) {
	m.changed.Publish(uid)
}

// Subscribe returns an inbox that gets the UID of each pod whose status changes or is removed, and
// a function that cancels the subscription. Changes after Subscribe returns are not missed, but may
// be merged; a slow reader blocks nothing.
func (m *Manager) Subscribe() (changed *pod.Inbox[pod.UID], cancel func()) {
	return m.changed.Subscribe()
}

// Set makes s the pod's newest status; the pod's own status is the previous one if none is known.
// It sets what depends on the previous status: start time and transition times. A terminal phase is
// final. A status in which a terminated container that must not be restarted runs again is
// rejected, and one without changes is dropped.
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

// Terminated records that the pod has terminated and released its resources: containers whose exit
// was not observed are reported as terminated, and the pod as Failed unless its phase is terminal.
// A static pod keeps its phase, since it may be restarted.
func (m *Manager) Terminated(p *v1.Pod) {
	m.update(p, func(e *entry) error {
		e.status = settle(p, e.status, terminatedStatus(p, e.status), metav1.Now())
		e.finished = true
		return nil
	})
}

// Remove deletes the pod. Subscribers are also notified of one without a status: it may have been
// shown while terminating.
func (m *Manager) Remove(uid pod.UID) {
	m.mu.Lock()
	delete(m.entries, uid)
	delete(m.restored, uid)
	delete(m.evicted, uid)
	m.unsaved.Put(uid)
	m.mu.Unlock()
	m.changed.Publish(uid)
}

// update replaces the pod's entry with the result of change, unless change fails, and publishes a
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
		before.pod, before.snapshot = p, nil
	}
	after := before
	after.snapshot = nil
	err := change(&after)
	if !known && err == nil {
		after.began = onClockOf(time.Now(), after.status.StartTime.Time)
	}
	differs := err == nil && (!known || !equality.Semantic.DeepEqual(before.status, after.status))
	finished := err == nil && after.finished && !before.finished
	switch {
	case differs:
		m.entries[p.UID] = after
		m.unsaved.Put(p.UID)
	case err == nil:
		before.finished = after.finished
		m.entries[p.UID] = before // readers share one copy
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
	if differs || finished { // a finished pod may be deleted from the API server even with an unchanged status
		m.changed.Publish(p.UID)
	}
}
