package agent

import (
	"slices"

	"berth/internal/pod"
)

// leftovers returns what the runtime holds of pods and, the first time, what the disk does. The loop calls it, and the drain when the loop has
// stopped.
func (a *Agent) leftovers() []*pod.Status {
	out := a.pleg.Known()
	if a.scanned {
		return out
	}
	a.status.Retain(func(uid pod.UID) bool { // what the disk tells of pods that are gone
		_, wanted := a.pods.Get(uid)
		return wanted
	})
	a.scanned = true
	a.storage.volumes.Settled()
	known := map[pod.UID]bool{}
	for _, s := range out {
		known[s.UID] = true
	}
	add := func(uids []pod.UID, err error) {
		if err != nil {
			a.cfg.Log.Warn("leftovers of earlier pods not found", "error", err)
		}
		for _, uid := range uids {
			if !known[uid] {
				known[uid] = true
				out = append(out, &pod.Status{UID: uid})
			}
		}
	}
	add(a.syncer.OnDisk())
	add(a.runtime.OnDisk())
	inCgroups, err := a.facts.List()
	if a.cfg.Kubelet == nil {
		inCgroups = slices.DeleteFunc(inCgroups, func(uid pod.UID) bool { return !known[uid] && a.isOthers(uid) })
	}
	add(inCgroups, err)
	return out
}

// isOthers reports whether the cgroup of a pod, of which neither runtime nor disk has anything, is of another agent: something runs in it. The
// kubelet kills that; on its own, the agent may have been started beside one.
func (a *Agent) isOthers(uid pod.UID) bool {
	occupied, err := a.facts.IsOccupied(uid)
	if err == nil && !occupied {
		return false
	}
	a.cfg.Log.Warn("cgroup of a pod that is not this agent's left alone; agents on one machine need a --cgroup-root each", "cgroup", a.facts.PodPath(uid), "error", err)
	return true
}
