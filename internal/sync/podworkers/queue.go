package podworkers

import (
	"slices"

	"berth/internal/pod"
)

// queue is the order in which pods may start.
//
// Pods are admitted one at a time, in order of arrival, since available resources depend on the
// pods admitted before. A pod that waits for another of its name to terminate does not block
// others. A pod that waits for capacity blocks all pods behind it: the freed capacity is reserved
// for it, and a rejection is permanent, so the others are not admitted before. Pods that already
// run never wait.
type queue struct {
	names   map[pod.FullName][]*worker // static pods in order of arrival: the first may start
	waiting []*worker                  // for admission, in order of arrival
}

// isFirst reports whether the worker's pod is the oldest static pod of its name.
func (q *queue) isFirst(w *worker) bool { return !w.static || q.names[w.name][0] == w }

// next returns the worker whose pod is admitted next, or nil.
func (q *queue) next() *worker {
	if i := slices.IndexFunc(q.waiting, q.isFirst); i >= 0 {
		return q.waiting[i]
	}
	return nil
}

// admitted removes the worker from the queue. It returns the worker that becomes next by this, or
// nil.
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

// remove removes the worker from its name's list. It returns the worker that becomes first by this,
// or nil.
func (q *queue) remove(w *worker) (next *worker) {
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

// FirstOfName returns the running or terminating static pod of this name; other pods of the name
// wait for it.
func (p *PodWorkers) FirstOfName(n pod.FullName) (pod.UID, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if pods := p.queue.names[n]; len(pods) > 0 {
		return pods[0].uid, true
	}
	return "", false
}
