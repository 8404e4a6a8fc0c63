package allocation

import (
	"context"
	"maps"

	"berth/internal/checkpoint"
	"berth/internal/pod"
)

// Differs from the kubelet: the file is not its allocated_pods_state, which is rewritten completely
// for each pod (it is still read, and written for a kubelet that follows), and an unreadable file
// does not prevent the start of the agent. Running pods keep running by their specs, and are
// recorded again.

// fileVersion is the version of the file format.
const fileVersion = 1

func (a *Allocations) newFile() *checkpoint.WarmTable[pod.UID, record] {
	return checkpoint.NewTable(checkpoint.TableConfig[pod.UID, record]{
		Path: a.cfg.File, Version: fileVersion, What: "records of what pods were given", Log: a.cfg.Log, Changes: a.unsaved,
		All: func() map[pod.UID]record {
			a.mu.Lock()
			defer a.mu.Unlock()
			return maps.Clone(a.pods)
		},
		Get: func(uid pod.UID) (record, bool) {
			a.mu.Lock()
			defer a.mu.Unlock()
			r, known := a.pods[uid]
			return r, known
		},
	})
}

// Load reads the records of an earlier run, and of a kubelet that ran after it. It moves an
// unreadable file aside and continues without its records.
func (a *Allocations) Load() {
	kubelet := a.readKubelet()
	pods, err := a.file.Load()
	if err != nil {
		message := err.Error() + "; running pods are recorded again from their specs"
		a.cfg.Log.Warn(message)
		if a.cfg.SetAside != nil {
			a.cfg.SetAside(message)
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for uid, r := range mergeKubelet(pods, kubelet) {
		a.pods[uid] = r
		a.changed.Publish(uid)
	}
	for uid := range kubelet {
		a.unsaved.Put(uid)
	}
}

// Run writes the records asynchronously, and once more at the end, also to the kubelet's files. It
// blocks until ctx is done.
func (a *Allocations) Run(ctx context.Context) error {
	err := a.file.Writer.Run(ctx)
	if failed := a.writeKubelet(); failed != nil {
		a.cfg.Log.Warn(failed.Error())
	}
	return err
}

// Health returns a failure to persist the records, with its start time, or nil.
func (a *Allocations) Health() error { return a.file.Writer.Health() }
