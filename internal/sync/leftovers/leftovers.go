// Package leftovers finds the pods that have state on this machine, desired or not: an earlier
// agent may have left it.
//
// Owns: whether disk and cgroups were searched, which happens once.
// Reads: the newest observed states, the pod directories, the pod cgroups.
// Never: terminates or removes what it finds.
package leftovers

import (
	"log/slog"
	"slices"

	v1 "k8s.io/api/core/v1"

	"berth/internal/pod"
)

// Cgroups provides the cgroups of pods.
type Cgroups interface {
	List() ([]pod.UID, error)
	// IsOccupied reports whether a process is in the pod's cgroup.
	IsOccupied(uid pod.UID) (bool, error)
	PodPath(uid pod.UID) string
}

// Statuses holds the statuses that earlier agents persisted.
type Statuses interface {
	Retain(known func(pod.UID) bool)
}

// Pods are the desired pods.
type Pods interface {
	Get(uid pod.UID) (*v1.Pod, bool)
}

// Config holds the dependencies of a Finder.
type Config struct {
	// Observed returns the runtime's pods.
	Observed func() []*pod.Status
	// Folders return the pods with a directory, one function for each type of directory.
	Folders  []func() ([]pod.UID, error)
	Cgroups  Cgroups
	Statuses Statuses
	Pods     Pods
	// Settled is called when all desired pods are known, before the disk is searched.
	Settled func()
	// SparesOthers skips pods that only have a cgroup with running processes: it belongs to another
	// agent on this machine. Differs from the kubelet, which kills them: an agent without a
	// KubeletConfiguration may have been started beside another one.
	SparesOthers bool
	Log          *slog.Logger
}

// Finder finds leftovers. It is not safe for concurrent use.
type Finder struct {
	Config
	searched bool // disk and cgroups
}

// New returns a Finder. It does no I/O.
func New(cfg Config) *Finder { return &Finder{Config: cfg} }

// Find returns the runtime's pods and, on the first call, also those on disk and in cgroups. Call
// it once all desired pods are known.
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

// isOthers reports whether the cgroup of a pod that neither runtime nor disk has belongs to another
// agent: a process runs in it, or that is unknown.
func (f *Finder) isOthers(uid pod.UID) bool {
	occupied, err := f.Cgroups.IsOccupied(uid)
	if err == nil && !occupied {
		return false
	}
	f.Log.Warn("cgroup of a pod that is not this agent's left alone; agents on one machine need a --cgroup-root each",
		"cgroup", f.Cgroups.PodPath(uid), "error", err)
	return true
}
