package podworkers

import (
	"slices"

	"berth/internal/pod"
)

// queue is the order in which pods may start.
//
// Pods are admitted one at a time, in the order in which they came: what a pod may have depends on
// what those before it got. A pod that waits for another of its name to end lets others pass. One
// that waits for capacity lets nobody pass: what is freed for it is not for those behind it, and a
// refusal is for ever, so they are not judged before. What runs already never waits.
type queue struct {
	names   map[pod.FullName][]*worker // static pods in order of arrival: the first may start
	waiting []*worker                  // for admission, in order of arrival
}

// isFirst reports whether no other static pod of the worker's name came before.
func (q *queue) isFirst(w *worker) bool { return !w.static || q.names[w.name][0] == w }

// next returns the worker whose pod is the next to be admitted, or nil.
func (q *queue) next() *worker {
	if i := slices.IndexFunc(q.waiting, q.isFirst); i >= 0 {
		return q.waiting[i]
	}
	return nil
}

// admitted takes the worker from those that wait, and returns the one that is next thereby, or nil.
func (q *queue) admitted(w *worker) (next *worker) {
	i := slices.Index(q.waiting, w)
	if i < 0 {
		return nil
	}
	before := q.next()
	q.waiting = slices.Delete(q.waiting, i, i+1)
	if before != w {
		return nil
	}
	return q.next()
}

// leave takes the worker from those of its name, and returns the one that is first thereby, or nil.
func (q *queue) leave(w *worker) (next *worker) {
	if !w.static {
		return nil
	}
	others := slices.DeleteFunc(q.names[w.name], func(other *worker) bool { return other == w })
	if len(others) == 0 {
		delete(q.names, w.name)
		return nil
	}
	q.names[w.name] = others
	return others[0]
}

// FirstOfName returns the static pod of this name that runs, or ends; the others of the name wait
// for it.
func (p *PodWorkers) FirstOfName(n pod.FullName) (pod.UID, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if pods := p.queue.names[n]; len(pods) > 0 {
		return pods[0].uid, true
	}
	return "", false
}
