package podworkers

import "slices"

// Pods are admitted one at a time, in the order in which they came: what a pod may have depends on what those before it got. A pod that
// waits for another of its name to end lets others pass. One for which room is being made lets nobody pass: what is freed for it is not for those
// behind it, and a refusal is for ever, so they are not judged before the room is there. What runs already never waits.

// isNext reports whether the worker's pod is the next to be admitted.
func (p *PodWorkers) isNext(w *worker) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.nextTicketLocked() == w
}

func (p *PodWorkers) nextTicketLocked() *worker {
	for _, t := range p.tickets {
		if p.firstOfNameLocked(t) {
			return t
		}
	}
	return nil
}

// firstOfNameLocked reports whether no other static pod of the worker's name came before.
func (p *PodWorkers) firstOfNameLocked(w *worker) bool { return !w.static || p.names[w.name][0] == w }

// dropTicket takes the worker out of the queue, if it is in it, and wakes the one whose turn it is thereby.
func (p *PodWorkers) dropTicket(w *worker) {
	p.mu.Lock()
	i := slices.Index(p.tickets, w)
	var next *worker
	if i >= 0 {
		before := p.nextTicketLocked()
		p.tickets = slices.Delete(p.tickets, i, i+1)
		if before == w {
			next = p.nextTicketLocked()
		}
	}
	p.mu.Unlock()
	if next != nil {
		next.poke()
	}
}
