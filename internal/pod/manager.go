package pod

import (
	"sync"

	v1 "k8s.io/api/core/v1"
)

// Manager (podManager) holds the desired pods: what the sources want, not what runs. The sync loop is its only writer.
// Pods are shared and must not be changed by readers.
type Manager struct {
	mu     sync.RWMutex
	byUID  map[UID]*v1.Pod      // guarded by mu; ordinary and static pods
	byName map[FullName]*v1.Pod // guarded by mu
}

// NewManager returns an empty manager.
func NewManager() *Manager {
	return &Manager{byUID: map[UID]*v1.Pod{}, byName: map[FullName]*v1.Pod{}}
}

// Set adds the pod or replaces the one with its UID.
func (m *Manager) Set(p *v1.Pod) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.byUID[p.UID] = p
	m.byName[FullNameOf(p)] = p
}

// Remove forgets the pod. A newer pod of the same full name stays.
func (m *Manager) Remove(p *v1.Pod) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.byUID, p.UID)
	if cur, ok := m.byName[FullNameOf(p)]; ok && cur.UID == p.UID {
		delete(m.byName, FullNameOf(p))
	}
}

// Get returns the pod with this UID.
func (m *Manager) Get(uid UID) (*v1.Pod, bool) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	p, ok := m.byUID[uid]
	return p, ok
}

// GetByFullName returns the pod with this full name.
func (m *Manager) GetByFullName(n FullName) (*v1.Pod, bool) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	p, ok := m.byName[n]
	return p, ok
}

// List returns all desired pods in no order.
func (m *Manager) List() []*v1.Pod {
	m.mu.RLock()
	defer m.mu.RUnlock()
	out := make([]*v1.Pod, 0, len(m.byUID))
	for _, p := range m.byUID {
		out = append(out, p)
	}
	return out
}
