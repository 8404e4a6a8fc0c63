package pod

import (
	"sync"

	v1 "k8s.io/api/core/v1"
)

// Manager (podManager) holds the desired pods, whether they run or not. The sync loop is its only
// writer. It is safe for concurrent use. Pods are shared and must not be changed by readers.
type Manager struct {
	changed Publisher[UID] // publishes with mu held

	mu      sync.RWMutex
	pods    index // guarded by mu; ordinary and static pods
	mirrors index // guarded by mu; mirror pods
}

// index finds pods by UID and by full name.
type index struct {
	byUID  map[UID]*v1.Pod
	byName map[FullName]*v1.Pod
}

func newIndex() index { return index{byUID: map[UID]*v1.Pod{}, byName: map[FullName]*v1.Pod{}} }

func (i index) set(p *v1.Pod) {
	i.byUID[p.UID] = p
	i.byName[FullNameOf(p)] = p
}

// remove removes the pod; a newer pod of the same full name stays.
func (i index) remove(p *v1.Pod) {
	delete(i.byUID, p.UID)
	if cur, ok := i.byName[FullNameOf(p)]; ok && cur.UID == p.UID {
		delete(i.byName, FullNameOf(p))
	}
}

func (i index) list() []*v1.Pod {
	out := make([]*v1.Pod, 0, len(i.byUID))
	for _, p := range i.byUID {
		out = append(out, p)
	}
	return out
}

// NewManager returns an empty manager.
func NewManager() *Manager { return &Manager{pods: newIndex(), mirrors: newIndex()} }

func (m *Manager) indexOf(p *v1.Pod) index {
	if IsMirror(p) {
		return m.mirrors
	}
	return m.pods
}

// Subscribe returns an inbox that receives every pod and mirror pod that is set or removed. Call it
// before any is set.
func (m *Manager) Subscribe() *Inbox[UID] {
	in, _ := m.changed.Subscribe()
	return in
}

// Set adds the pod or mirror pod, or replaces the one with its UID.
func (m *Manager) Set(p *v1.Pod) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.indexOf(p).set(p)
	m.changed.Publish(p.UID)
}

// Remove removes the pod or mirror pod. A newer one of the same full name stays.
func (m *Manager) Remove(p *v1.Pod) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.indexOf(p).remove(p)
	m.changed.Publish(p.UID)
}

// Get returns the pod with this UID, but not a mirror pod.
func (m *Manager) Get(uid UID) (*v1.Pod, bool) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	p, ok := m.pods.byUID[uid]
	return p, ok
}

// GetByFullName returns the pod with this full name, but not a mirror pod.
func (m *Manager) GetByFullName(n FullName) (*v1.Pod, bool) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	p, ok := m.pods.byName[n]
	return p, ok
}

// Mirror returns the mirror pod with this full name.
func (m *Manager) Mirror(n FullName) (*v1.Pod, bool) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	p, ok := m.mirrors.byName[n]
	return p, ok
}

// TranslateUID returns the static pod's UID for that of its mirror pod, and any other UID
// unchanged: clients of the API identify a static pod by its mirror pod's UID.
func (m *Manager) TranslateUID(uid UID) UID {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if mirror, ok := m.mirrors.byUID[uid]; ok {
		if p, ok := m.pods.byName[FullNameOf(mirror)]; ok {
			return p.UID
		}
	}
	return uid
}

// List returns all desired pods, without mirror pods, in no order.
func (m *Manager) List() []*v1.Pod {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.pods.list()
}

// Mirrors returns all mirror pods in no order.
func (m *Manager) Mirrors() []*v1.Pod {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.mirrors.list()
}
