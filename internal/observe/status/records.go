package status

import (
	"context"
	"log/slog"

	v1 "k8s.io/api/core/v1"

	"berth/internal/checkpoint"
	"berth/internal/pod"
	"berth/internal/pod/lifecycle"
)

// Records persists statuses for the next agent: of static pods, since nothing else records their
// results after their containers are removed, their start times and transition times; and of
// terminated pods, since the API server may not have the status.
type Records struct {
	manager *Manager
	file    *checkpoint.WarmTable[pod.UID, record]
	log     *slog.Logger
}

// record is the persisted state of a pod.
type record struct {
	v1.PodStatus `json:",inline"`
	// EvictionGrace is set for an evicted pod: its grace period in seconds.
	EvictionGrace *int64 `json:"evictionGraceSeconds,omitempty"`
}

const checkpointVersion = 1

// NewKept returns Records of the manager's statuses in the file at path.
func NewKept(m *Manager, path string, log *slog.Logger) *Records {
	return &Records{manager: m, log: log, file: checkpoint.NewTable(checkpoint.TableConfig[pod.UID, record]{
		Path: path, Version: checkpointVersion, What: "statuses of pods", Log: log, Changes: m.unsaved, All: m.allRecords, Get: m.record,
	})}
}

// Load restores the persisted statuses of an earlier agent. It must be called before the first Set.
// An unreadable file is set aside.
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
		if c.EvictionGrace != nil && pod.IsTerminal(c.Phase) { // some versions wrote it before the status
			k.manager.evicted[uid] = *c.EvictionGrace
		}
	}
}

// Run writes changes to the file until ctx is done.
func (k *Records) Run(ctx context.Context) error { return k.file.Writer.Run(ctx) }

// Write writes the current statuses, and waits until that was tried.
func (k *Records) Write(ctx context.Context) { k.file.Writer.Flush(ctx) }

// Health returns why and since when the file cannot be written, or nil.
func (k *Records) Health() error { return k.file.Writer.Health() }

// allRecords returns the statuses to persist, including restored ones that were not observed yet.
func (m *Manager) allRecords() map[pod.UID]record {
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

// record returns the status to persist for a pod, if any.
func (m *Manager) record(uid pod.UID) (record, bool) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if e, ok := m.entries[uid]; ok {
		return m.recordLocked(uid, e.status), e.isKept()
	}
	s, ok := m.restored[uid]
	return m.recordLocked(uid, s), ok
}

// recordLocked adds the eviction grace period, which is persisted with the terminal status: the
// next agent terminates the pod and could not derive the reason.
func (m *Manager) recordLocked(uid pod.UID, s v1.PodStatus) record {
	out := record{PodStatus: s}
	if grace, ok := m.evicted[uid]; ok && pod.IsTerminal(s.Phase) {
		out.EvictionGrace = &grace
	}
	return out
}

// isKept reports whether the status is persisted. A rejected static pod has no containers: it is
// admitted again. One that a node shutdown terminated runs again after the boot.
func (e *entry) isKept() bool {
	if pod.IsStatic(e.pod) {
		return len(e.status.ContainerStatuses) > 0 && e.status.Reason != lifecycle.Terminated
	}
	return pod.IsTerminal(e.status.Phase)
}

// Retain drops restored statuses of pods that are not known.
func (m *Manager) Retain(known func(pod.UID) bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for uid := range m.restored {
		if !known(uid) {
			delete(m.restored, uid)
			delete(m.evicted, uid)
			m.unsaved.Put(uid)
		}
	}
}

// SetEvicted records that the pod is evicted, with this grace period in seconds. It is persisted
// with the next status.
func (m *Manager) SetEvicted(uid pod.UID, grace int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.evicted[uid] = grace
	m.unsaved.Put(uid)
}

// Evicted returns the grace period of the pod's eviction in seconds, and false if neither this nor
// an earlier agent evicted it.
func (m *Manager) Evicted(uid pod.UID) (grace int64, ok bool) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	grace, ok = m.evicted[uid]
	return grace, ok
}
