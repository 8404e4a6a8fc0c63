package admission

import (
	"maps"

	v1 "k8s.io/api/core/v1"

	"berth/internal/pod"
)

// account is what the active pods ask of the node, each and in all, so that a pod is judged without
// a look at all others. Whatever says whether a pod is active, and with which resources, names the
// pods of which it says something else; only these are looked at again.
type account struct {
	cfg   *Config
	moved []*pod.Inbox[pod.UID]
	asks  map[pod.UID]ask
	sum   amounts // of asks
}

// ask is what a version of a pod asks of the node. Pods are never changed, so that it holds for the
// same pointer.
type ask struct {
	of      *v1.Pod
	amounts amounts
}

func newAccount(cfg *Config) account {
	moved := []*pod.Inbox[pod.UID]{cfg.Pods.Subscribe(), cfg.States.Subscribe(), cfg.Allocations.Subscribe()}
	if cfg.Observed != nil {
		moved = append(moved, cfg.Observed.Subscribe())
	}
	for _, p := range cfg.Pods.List() {
		moved[0].Put(p.UID) // nobody names those that are there already
	}
	return account{cfg: cfg, moved: moved, asks: map[pod.UID]ask{}, sum: amounts{}}
}

// others returns what all active pods but this one ask for.
func (a *account) others(uid pod.UID) amounts {
	for _, inbox := range a.moved {
		for _, moved := range inbox.Take() {
			a.update(moved)
		}
	}
	out := maps.Clone(a.sum)
	out.subtract(a.asks[uid].amounts)
	return out
}

// update brings the account up to date with one pod.
func (a *account) update(uid pod.UID) {
	old, now := a.asks[uid], ask{}
	if p, desired := a.cfg.Pods.Get(uid); desired && a.cfg.isActive(uid) {
		now.of = a.cfg.Allocations.Apply(p)
	}
	switch now.of {
	case old.of:
		return
	case nil:
		delete(a.asks, uid)
	default:
		now.amounts = requestsOf(now.of)
		a.asks[uid] = now
	}
	a.sum.subtract(old.amounts)
	a.sum.add(now.amounts)
}

// isActive reports whether the desired pod takes part of the node: it was admitted, or found
// running, and has not ended. What had ended when this agent began is neither, though its worker
// may still be looking at it.
func (cfg *Config) isActive(uid pod.UID) bool {
	if l, known := cfg.States.Get(uid); known && l.State >= pod.Terminated {
		return false
	}
	if cfg.Allocations.IsCurrent(uid) {
		return true
	}
	if cfg.Observed == nil {
		return false
	}
	seen, ok := cfg.Observed.Newest(uid)
	return ok && seen.Active()
}
