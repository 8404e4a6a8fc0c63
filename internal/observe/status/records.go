package status

import (
	"context"
	"log/slog"

	v1 "k8s.io/api/core/v1"

	"berth/internal/checkpoint"
	"berth/internal/pod"
	"berth/internal/pod/lifecycle"
)

// Records keeps statuses for the next agent: of static pods, since nobody else knows what a pod
// came to whose containers are gone, when it started, and when its conditions changed; and of pods
// that have ended, since the API server may not have heard of it.
type Records struct {
	manager *Manager
	file    *checkpoint.WarmTable[pod.UID, record]
	log     *slog.Logger
}

// record is what the next agent is told of a pod.
type record struct {
	v1.PodStatus `json:",inline"`
	// EvictionGrace is set of a pod that is evicted: how many seconds that grants it.
	EvictionGrace *int64 `json:"evictionGraceSeconds,omitempty"`
}

// keptVersion is the version of the file's form.
const keptVersion = 1

// NewKept returns what keeps the manager's statuses in the file at path.
func NewKept(m *Manager, path string, log *slog.Logger) *Records {
	return &Records{manager: m, log: log, file: checkpoint.NewTable(checkpoint.TableConfig[pod.UID, record]{
		Path: path, Version: keptVersion, What: "statuses of pods", Log: log, Changes: m.unkept, All: m.allToKeep, Get: m.toKeep,
	})}
}

// Load gives the manager what an earlier agent kept. It is called before the first Set. A file that
// cannot be read is set aside.
func (k *Records) Load() {
	content, err := k.file.Load()
	if err != nil {
		k.log.Warn(err.Error())
	}
	k.manager.mu.Lock()
	defer k.manager.mu.Unlock()
	k.manager.restored = make(map[pod.UID]v1.PodStatus, len(content))
	for uid, c := range content {
		k.manager.restored[uid] = c.PodStatus
		if c.EvictionGrace != nil && pod.IsTerminal(c.Phase) { // some versions kept it before the status
			k.manager.evicted[uid] = *c.EvictionGrace
		}
	}
}

// Run writes the file behind the changes, until ctx is done.
func (k *Records) Run(ctx context.Context) error { return k.file.Run(ctx) }

// Write has the statuses written as they are now, and waits until that was tried.
func (k *Records) Write(ctx context.Context) { k.file.Flush(ctx) }

// Health returns what cannot be written, since when and why, or nil.
func (k *Records) Health() error { return k.file.Health() }

// allToKeep returns the statuses that are kept, those of which nothing was seen yet included.
func (m *Manager) allToKeep() map[pod.UID]record {
	m.mu.RLock()
	defer m.mu.RUnlock()
	out := make(map[pod.UID]record, len(m.restored))
	for uid, s := range m.restored {
		out[uid] = m.recordLocked(uid, s)
	}
	for uid, e := range m.entries {
		if e.isKept() {
			out[uid] = m.recordLocked(uid, e.status)
		}
	}
	return out
}

// toKeep returns the status that is kept of a pod, if it is.
func (m *Manager) toKeep(uid pod.UID) (record, bool) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if e, ok := m.entries[uid]; ok {
		return m.recordLocked(uid, e.status), e.isKept()
	}
	s, ok := m.restored[uid]
	return m.recordLocked(uid, s), ok
}

// recordLocked adds what is kept beside the status. That a pod is evicted is kept with the status
// that it ends with: the next agent ends it, and could not tell why.
func (m *Manager) recordLocked(uid pod.UID, s v1.PodStatus) record {
	out := record{PodStatus: s}
	if grace, ok := m.evicted[uid]; ok && pod.IsTerminal(s.Phase) {
		out.EvictionGrace = &grace
	}
	return out
}

// isKept reports whether the next agent is to know the status. A static pod that was refused has no
// containers: it is judged anew. One that ended because the machine was turned off runs again when
// that is turned on.
func (e *entry) isKept() bool {
	if pod.IsStatic(e.pod) {
		return len(e.status.ContainerStatuses) > 0 && e.status.Reason != lifecycle.Terminated
	}
	return pod.IsTerminal(e.status.Phase)
}

// Retain drops what was kept of pods that are not among the known ones.
func (m *Manager) Retain(known func(pod.UID) bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for uid := range m.restored {
		if !known(uid) {
			delete(m.restored, uid)
			delete(m.evicted, uid)
			m.unkept.Put(uid)
		}
	}
}

// SetEvicted notes that the pod is evicted, with a grace period of so many seconds. It is kept with
// the status that is set next.
func (m *Manager) SetEvicted(uid pod.UID, grace int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.evicted[uid] = grace
	m.unkept.Put(uid)
}

// Evicted returns how many seconds the eviction of the pod grants it, and false if it is not being
// evicted, nor was by an earlier agent.
func (m *Manager) Evicted(uid pod.UID) (grace int64, ok bool) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	grace, ok = m.evicted[uid]
	return grace, ok
}
