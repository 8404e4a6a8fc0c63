package allocation

import (
	"context"
	"maps"

	"berth/internal/checkpoint"
	"berth/internal/pod"
)

// Differs from the kubelet: the file is not its allocated_pods_state, which is written whole for
// each pod (it is read and left to a kubelet all the same), and a file that cannot be read does not
// keep the agent from starting. What runs goes on by its spec, and is recorded anew.

// fileVersion is the version of the file's form.
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

// Load reads the records of an earlier run, and of a kubelet after it. A file that cannot be
// understood is set aside, and there are no records then.
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
	for uid, r := range takeOver(pods, kubelet) {
		a.pods[uid] = r
		a.changed.Publish(uid)
	}
	for uid := range kubelet {
		a.unsaved.Put(uid)
	}
}

// Run writes the records behind the pods' backs, and once more at the end, also for a kubelet. It
// blocks until ctx is done.
func (a *Allocations) Run(ctx context.Context) error {
	err := a.file.Run(ctx)
	if failed := a.leaveToKubelet(); failed != nil {
		a.cfg.Log.Warn(failed.Error())
	}
	return err
}

// Health returns what cannot be written, since when and why, or nil.
func (a *Allocations) Health() error { return a.file.Health() }
