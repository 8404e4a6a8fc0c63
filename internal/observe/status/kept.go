package status

import (
	"context"
	"log/slog"
	"maps"

	v1 "k8s.io/api/core/v1"

	"berth/internal/checkpoint"
	"berth/internal/pod"
)

// Kept keeps statuses for the next agent: of static pods, since nobody else knows what a pod came
// to whose containers are gone, when it started, and when its conditions changed; and of pods that
// have ended, since the API server may not have heard of it.
type Kept struct {
	manager *Manager
	file    *checkpoint.WarmTable[pod.UID, v1.PodStatus]
	log     *slog.Logger
}

// keptVersion is the version of the file's form.
const keptVersion = 1

// NewKept returns what keeps the manager's statuses in the file at path.
func NewKept(m *Manager, path string, log *slog.Logger) *Kept {
	return &Kept{manager: m, log: log, file: checkpoint.NewTable(checkpoint.TableConfig[pod.UID, v1.PodStatus]{
		Path: path, Version: keptVersion, What: "statuses of pods", Log: log, Changes: m.unkept, All: m.allToKeep, Get: m.toKeep,
	})}
}

// Load gives the manager what an earlier agent kept. It is called before the first Set. A file that
// cannot be read is set aside.
func (k *Kept) Load() {
	statuses, err := k.file.Load()
	if err != nil {
		k.log.Warn(err.Error())
	}
	k.manager.mu.Lock()
	defer k.manager.mu.Unlock()
	k.manager.restored = statuses
}

// Run writes the file behind the changes, until ctx is done.
func (k *Kept) Run(ctx context.Context) error { return k.file.Run(ctx) }

// Write has the statuses written as they are now, and waits until that was tried.
func (k *Kept) Write(ctx context.Context) { k.file.Flush(ctx) }

// Health returns what cannot be written, since when and why, or nil.
func (k *Kept) Health() error { return k.file.Health() }

// allToKeep returns the statuses that are kept, those of which nothing was seen yet included.
func (m *Manager) allToKeep() map[pod.UID]v1.PodStatus {
	m.mu.RLock()
	defer m.mu.RUnlock()
	out := maps.Clone(m.restored)
	if out == nil {
		out = map[pod.UID]v1.PodStatus{}
	}
	for uid, e := range m.entries {
		if e.isKept() {
			out[uid] = e.status
		}
	}
	return out
}

// toKeep returns the status that is kept of a pod, if it is.
func (m *Manager) toKeep(uid pod.UID) (v1.PodStatus, bool) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if e, ok := m.entries[uid]; ok {
		return e.status, e.isKept()
	}
	s, ok := m.restored[uid]
	return s, ok
}

// isKept reports whether the next agent is to know the status. A static pod that was refused has no
// containers: it is judged anew.
func (e *entry) isKept() bool {
	if pod.IsStatic(e.pod) {
		return len(e.status.ContainerStatuses) > 0
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
			m.unkept.Put(uid)
		}
	}
}
