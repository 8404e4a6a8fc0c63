package status

import (
	"context"
	"log/slog"
	"maps"

	v1 "k8s.io/api/core/v1"

	"berth/internal/keep"
	"berth/internal/pod"
)

// Kept keeps statuses for the next agent: of static pods, since nobody else knows what a pod came to whose containers are gone, when it
// started, and when its conditions changed; and of pods that have ended, since the API server may not have heard of it.
type Kept struct {
	manager *Manager
	file    *keep.File[map[pod.UID]v1.PodStatus]
	log     *slog.Logger
}

// keptVersion is the version of the file's form.
const keptVersion = 1

// NewKept returns what keeps the manager's statuses in the file at path.
func NewKept(m *Manager, path string, log *slog.Logger) *Kept {
	return &Kept{manager: m, log: log, file: keep.New(keep.Config[map[pod.UID]v1.PodStatus]{
		Path: path, Version: keptVersion, What: "statuses of pods", Log: log, Content: m.toKeep,
	})}
}

// Load gives the manager what an earlier agent kept. It is called before the first Set. A file that cannot be read is set aside.
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
func (k *Kept) Run(ctx context.Context) error {
	changed, cancel := k.manager.Subscribe()
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- k.file.Run(ctx) }()
	for {
		select {
		case err := <-done:
			return err
		case <-changed.Wake():
			changed.Take()
			k.file.Changed()
		}
	}
}

// Write has the statuses written as they are now, and waits until that was tried.
func (k *Kept) Write(ctx context.Context) { k.file.Write(ctx) }

// toKeep returns the statuses of static pods, those of which nothing was seen yet included.
func (m *Manager) toKeep() (map[pod.UID]v1.PodStatus, error) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	out := maps.Clone(m.restored)
	if out == nil {
		out = map[pod.UID]v1.PodStatus{}
	}
	for uid, e := range m.entries {
		// A static pod that was refused has no containers. It is judged anew by the next agent.
		if pod.IsStatic(e.pod) && len(e.status.ContainerStatuses) > 0 || !pod.IsStatic(e.pod) && isTerminal(e.status.Phase) {
			out[uid] = e.status
		}
	}
	return out, nil
}

// Retain drops what was kept of pods that are not among the known ones.
func (m *Manager) Retain(known func(pod.UID) bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	maps.DeleteFunc(m.restored, func(uid pod.UID, _ v1.PodStatus) bool { return !known(uid) })
}
