package oom

import (
	"context"
	"log/slog"
	"maps"
	"sync"

	"berth/internal/checkpoint"
	"berth/internal/pod"
	"berth/internal/pod/lifecycle"
	"berth/internal/runtime/cri"
)

const fileVersion = 1

// Kills are the reported kills of existing containers. They are persisted, so that no kill is
// reported twice.
type Kills struct {
	log  *slog.Logger
	file *checkpoint.WarmFile[reported]

	mu     sync.Mutex
	boot   string                     // guarded by mu; of this kernel
	seq    uint64                     // guarded by mu; of the last relevant record of the kernel log
	counts map[pod.ContainerID]uint64 // guarded by mu
}

type reported struct {
	Boot  string                     `json:"boot"`
	Seq   uint64                     `json:"seq"`
	Kills map[pod.ContainerID]uint64 `json:"kills"`
}

// NewKills returns Kills that are persisted in the file at path. It does no I/O.
func NewKills(path string, log *slog.Logger) *Kills {
	k := &Kills{log: log, counts: map[pod.ContainerID]uint64{}}
	k.file = checkpoint.NewFile(checkpoint.FileConfig[reported]{
		Path: path, Version: fileVersion, What: "reported kills", Content: k.content, Log: log,
	})
	return k
}

func (k *Kills) content() reported {
	k.mu.Lock()
	defer k.mu.Unlock()
	return reported{Boot: k.boot, Seq: k.seq, Kills: maps.Clone(k.counts)}
}

// Health returns why and since when the file cannot be written, or nil.
func (k *Kills) Health() error { return k.file.Writer.Health() }

// load restores what an earlier agent reported. It returns that agent's position in the kernel log,
// and its counts. Those of another boot are invalid.
func (k *Kills) load(boot string) (seq uint64, counts map[pod.ContainerID]uint64) {
	r, err := k.file.Load()
	if err != nil {
		k.log.Warn("OOM kills may be reported twice after a restart", "error", err)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.boot = boot
	if boot == "" || r.Boot != boot {
		return 0, nil
	}
	k.seq = r.Seq
	return r.Seq, r.Kills
}

// Count returns the number of reported kills of the container's processes.
func (k *Kills) Count(id pod.ContainerID) uint64 {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.counts[id]
}

// add counts newly reported kills.
func (k *Kills) add(id pod.ContainerID, n uint64) {
	k.mu.Lock()
	k.counts[id] += n
	k.mu.Unlock()
	k.file.Changed()
}

// set sets the count of kills that need no report.
func (k *Kills) set(id pod.ContainerID, n uint64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if n > 0 {
		k.counts[id] = n
	}
}

func (k *Kills) forget(id pod.ContainerID) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.counts, id)
}

// setSeq sets the position in the kernel log.
func (k *Kills) setSeq(n uint64) {
	k.mu.Lock()
	k.seq = n
	k.mu.Unlock()
	k.file.Changed()
}

// exitKilled is the exit code of a process killed by SIGKILL.
const exitKilled = 128 + 9

// amend sets the reason of containers that exited by a kill: a runtime may see the exit before the
// kill.
func (k *Kills) amend(s *pod.Status) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for i := range s.Containers {
		c := &s.Containers[i]
		if c.State == pod.StateExited && c.ExitCode == exitKilled && (c.Reason == "" || c.Reason == lifecycle.Error) && k.counts[c.ID] > 0 {
			c.Reason = lifecycle.OOMKilled
		}
	}
}

// Runtime is the container runtime as PLEG uses it.
type Runtime interface {
	ListPods(ctx context.Context) (map[pod.UID]*cri.RuntimePod, error)
	ReadPod(ctx context.Context, uid pod.UID, prev *pod.Status, listed *cri.RuntimePod) (*pod.Status, error)
	Events(ctx context.Context, opened func(), put func(pod.UID)) error
}

// amended is a Runtime whose statuses have the reasons of killed containers.
type amended struct {
	Runtime
	kills *Kills
}

// Amend returns the runtime with statuses in which a killed container has the reason even if the
// runtime does not know it.
func (k *Kills) Amend(r Runtime) Runtime { return amended{r, k} }

// ReadPod reads one pod.
func (r amended) ReadPod(ctx context.Context, uid pod.UID, prev *pod.Status, listed *cri.RuntimePod) (*pod.Status, error) {
	s, err := r.Runtime.ReadPod(ctx, uid, prev, listed)
	if err == nil {
		r.kills.amend(s)
	}
	return s, err
}
