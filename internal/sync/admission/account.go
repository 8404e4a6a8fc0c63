package admission

import (
	"maps"

	v1 "k8s.io/api/core/v1"

	"berth/internal/pod"
)

// account holds the requests of the active pods, each and in total, so that admission does not scan
// all pods. The stores that decide whether a pod is active, and with which resources, report
// changed pods; only these are computed again.
type account struct {
	cfg      *Config
	changed  []*pod.Inbox[pod.UID]
	requests map[pod.UID]podRequests
	sum      amounts // of requests
}

// podRequests holds the requests of one version of a pod. Pods are immutable, so it is valid for
// the same pointer.
type podRequests struct {
	of      *v1.Pod
	amounts amounts
}

func newAccount(cfg *Config) account {
	changed := []*pod.Inbox[pod.UID]{cfg.Pods.Subscribe(), cfg.States.Subscribe(), cfg.Allocations.Subscribe(), cfg.Observed.Subscribe()}
	for _, p := range cfg.Pods.List() {
		changed[0].Put(p.UID) // existing pods are not reported
	}
	return account{cfg: cfg, changed: changed, requests: map[pod.UID]podRequests{}, sum: amounts{}}
}

// others returns the total requests of all active pods except this one.
func (a *account) others(uid pod.UID) amounts {
	for _, inbox := range a.changed {
		for _, uid := range inbox.Take() {
			a.update(uid)
		}
	}
	out := maps.Clone(a.sum)
	out.subtract(a.requests[uid].amounts)
	return out
}

func (a *account) update(uid pod.UID) {
	old, now := a.requests[uid], podRequests{}
	if p, desired := a.cfg.Pods.Get(uid); desired && a.cfg.isActive(uid) {
		now.of = a.cfg.Allocations.Apply(p)
	}
	switch now.of {
	case old.of:
		return
	case nil:
		delete(a.requests, uid)
	default:
		now.amounts = requestsOf(now.of)
		a.requests[uid] = now
	}
	a.sum.subtract(old.amounts)
	a.sum.add(now.amounts)
}

// isActive reports whether the desired pod uses resources of the node: it was admitted or found
// running, and has not terminated. A pod that had terminated before this agent started is not
// active, though its worker may still process it.
func (cfg *Config) isActive(uid pod.UID) bool {
	if l, known := cfg.States.Get(uid); known && l.State >= pod.Terminated {
		return false
	}
	if cfg.Allocations.IsCurrent(uid) {
		return true
	}
	seen, ok := cfg.Observed.Newest(uid)
	return ok && seen.Active()
}
