// Package leftovers finds what there is of pods on this machine, whether the pods are wanted or
// not: an earlier agent may have left it.
//
// Owns: whether disk and cgroups were searched, which happens once.
// Reads: the newest observations, the folders of pods, the cgroups of pods.
// Never: ends or removes what it finds.
package leftovers

import (
	"log/slog"
	"slices"

	v1 "k8s.io/api/core/v1"

	"berth/internal/pod"
)

// Cgroups are the cgroups of pods.
type Cgroups interface {
	List() ([]pod.UID, error)
	// IsOccupied reports whether a process is in the pod's cgroup.
	IsOccupied(uid pod.UID) (bool, error)
	PodPath(uid pod.UID) string
}

// Statuses are those that earlier agents left on the disk.
type Statuses interface {
	Retain(known func(pod.UID) bool)
}

// Pods are the desired pods.
type Pods interface {
	Get(uid pod.UID) (*v1.Pod, bool)
}

// Config is what a Finder needs.
type Config struct {
	// Observed returns what the runtime holds of pods.
	Observed func() []*pod.Status
	// Folders return the pods that have a folder, each of its kind.
	Folders  []func() ([]pod.UID, error)
	Cgroups  Cgroups
	Statuses Statuses
	Pods     Pods
	// Settled is called when all that is wanted is known, before the disk is searched.
	Settled func()
	// SparesOthers leaves out pods of which there is only a cgroup in which something runs: it
	// belongs to another agent of this machine. Differs from the kubelet, which kills that: an
	// agent without a KubeletConfiguration may have been started beside one.
	SparesOthers bool
	Log          *slog.Logger
}

// Finder finds leftovers. It is for one goroutine at a time.
type Finder struct {
	Config
	searched bool // disk and cgroups
}

// New returns a Finder. It does no I/O.
func New(cfg Config) *Finder { return &Finder{Config: cfg} }

// Find returns what the runtime holds of pods and, the first time, what disk and cgroups do. It is
// called when all that is wanted is known.
func (f *Finder) Find() []*pod.Status {
	out := f.Observed()
	if f.searched {
		return out
	}
	f.searched = true
	f.Statuses.Retain(func(uid pod.UID) bool {
		_, wanted := f.Pods.Get(uid)
		return wanted
	})
	f.Settled()
	known := map[pod.UID]bool{}
	for _, s := range out {
		known[s.UID] = true
	}
	add := func(uids []pod.UID, err error) {
		if err != nil {
			f.Log.Warn("leftovers of earlier pods not found", "error", err)
		}
		for _, uid := range uids {
			if !known[uid] {
				known[uid] = true
				out = append(out, &pod.Status{UID: uid})
			}
		}
	}
	for _, find := range f.Folders {
		add(find())
	}
	inCgroups, err := f.Cgroups.List()
	if f.SparesOthers {
		inCgroups = slices.DeleteFunc(inCgroups, func(uid pod.UID) bool { return !known[uid] && f.isOthers(uid) })
	}
	add(inCgroups, err)
	return out
}

// isOthers reports whether the cgroup of a pod, of which neither runtime nor disk has anything,
// belongs to another agent: something runs in it.
func (f *Finder) isOthers(uid pod.UID) bool {
	occupied, err := f.Cgroups.IsOccupied(uid)
	if err == nil && !occupied {
		return false
	}
	f.Log.Warn("cgroup of a pod that is not this agent's left alone; agents on one machine need a --cgroup-root each",
		"cgroup", f.Cgroups.PodPath(uid), "error", err)
	return true
}
