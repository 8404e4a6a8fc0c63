package pleg

import (
	"context"
	"time"

	"berth/internal/pod"
	"berth/internal/record/journal"
	"berth/internal/runtime/cri"
)

const (
	// readTimeout bounds one read of one pod: a pod whose runtime calls hang delays no others.
	readTimeout = time.Minute
	// mostReadings bounds concurrent reads for events and relists. Workers that read their own pod
	// are not limited by it.
	mostReadings = 256
	// maxSlotWait is how long a relist waits for one of those reads: hanging reads delay it no
	// longer.
	maxSlotWait = 100 * time.Millisecond
)

// entry is the newest observation of one pod (podCache). A pod that the runtime does not have has
// none, unless reading it failed.
type entry struct {
	status *pod.Status // nil until a read succeeded
	err    error       // of the newest read
}

// inflightRead is one read in progress. There is at most one per pod.
type inflightRead struct {
	reading pod.Reading
	done    chan struct{} // closed when the read is done
	status  *pod.Status   // set before done is closed
	err     error         // set before done is closed
	waiters int           // guarded by PLEG.mu
	reread  bool          // guarded by PLEG.mu; an event arrived since the read began
}

// seen is the pod in a relist that began at the mark; nil if it was not listed or there was no
// relist.
type seen struct {
	startedAt pod.Reading
	pod       *cri.RuntimePod
}

// BeginReading returns a point in the order of reads: an observation with a higher Reading began
// after the call.
func (g *PLEG) BeginReading() pod.Reading { return pod.Reading(g.readings.Add(1)) }

// Observe returns an observation of the pod whose read began after the mark, and reads the pod now
// if there is none. Concurrent callers share one read. It does not wait for events or timers, and
// returns early when ctx is done. A pod that the runtime does not have is an empty status.
func (g *PLEG) Observe(ctx context.Context, uid pod.UID, after pod.Reading) (*pod.Status, error) {
	for {
		g.mu.Lock()
		if e, ok := g.entries[uid]; ok && e.err == nil && e.status.Reading > after {
			g.mu.Unlock()
			return e.status, nil
		}
		f := g.inflight[uid]
		if f == nil {
			f = g.beginLocked(uid, seen{})
		}
		f.waiters++
		g.mu.Unlock()

		select {
		case <-f.done:
			if f.reading > after {
				return f.status, f.err
			}
		case <-ctx.Done():
			g.mu.Lock()
			f.waiters--
			g.mu.Unlock()
			return nil, ctx.Err()
		}
	}
}

// Hold suspends reads of the pod for events while its worker acts, since the worker reads the pod
// itself when it is done; otherwise one pod start causes five reads. The returned function ends the
// hold and reports whether events arrived: then the caller must Observe the pod again.
func (g *PLEG) Hold(uid pod.UID) (release func() bool) {
	g.mu.Lock()
	g.held[uid] = false
	g.mu.Unlock()
	return func() bool {
		g.mu.Lock()
		defer g.mu.Unlock()
		missed := g.held[uid]
		delete(g.held, uid)
		return missed
	}
}

// refresh reads the pod in the background, or once more if a read is in progress. It returns false
// if the limit of reads is reached.
func (g *PLEG) refresh(uid pod.UID, s seen) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if _, held := g.held[uid]; held {
		g.held[uid] = true
		return true
	}
	if f := g.inflight[uid]; f != nil {
		f.reread = true
		return true
	}
	if len(g.inflight) >= mostReadings {
		return false
	}
	g.beginLocked(uid, s)
	return true
}

// refreshInTurn is refresh that waits for a free slot, for maxSlotWait at most. It returns false
// when ctx is done.
func (g *PLEG) refreshInTurn(ctx context.Context, uid pod.UID, s seen) bool {
	var timeout <-chan time.Time
	for !g.refresh(uid, s) {
		if timeout == nil {
			timeout = time.After(maxSlotWait)
		}
		select {
		case <-g.readEnded:
		case <-timeout:
			g.mu.Lock()
			if g.inflight[uid] == nil {
				g.beginLocked(uid, s)
			}
			g.mu.Unlock()
			return true
		case <-ctx.Done():
			return false
		}
	}
	return true
}

// isFirstOverflow defers pods that could not be read to a relist, and reports whether they are the
// first since the last one.
func (g *PLEG) isFirstOverflow() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	first := !g.overflow
	g.overflow = true
	return first
}

// beginLocked starts a read. It starts with the relist's data, unless the pod was read since: this
// saves half of the calls of an agent that starts with many pods, and those that get slower with
// the number of pods.
func (g *PLEG) beginLocked(uid pod.UID, s seen) *inflightRead {
	prev := g.entries[uid].status
	if s.pod == nil || prev != nil && prev.Reading > s.startedAt {
		s = seen{startedAt: g.BeginReading()}
	}
	f := &inflightRead{reading: s.startedAt, done: make(chan struct{})}
	g.inflight[uid] = f
	g.reads.Go(func() {
		// Not bound to a caller's context: others may wait for this read too.
		ctx, cancel := context.WithTimeout(context.Background(), readTimeout)
		defer cancel()
		ctx, waitsFor := cri.WithTrace(ctx)
		began := time.Now()
		stalled := time.AfterFunc(stallAfter, func() { g.reportStall(uid, prev, waitsFor()) })
		g.finish(uid, f, func() (*pod.Status, error) { return g.runtime.ReadPod(ctx, uid, prev, s.pod) })
		stalled.Stop()
		g.metrics.readDuration.Observe(time.Since(began).Seconds())
		select {
		case g.readEnded <- struct{}{}:
		default:
		}
	})
	return f
}

// reportStall records which call delays the read of a pod.
func (g *PLEG) reportStall(uid pod.UID, prev *pod.Status, call string) {
	s := journal.Subject{UID: uid}
	if prev != nil {
		s.Namespace, s.Name = prev.Namespace, prev.Name
	}
	g.journal.Record(journal.Entry{
		Subject: s, Component: "pleg", Decision: "wait for the container runtime", Took: stallAfter,
		Error: "the container runtime does not answer " + call + " for this pod; other pods do not wait for it",
	})
}

func (g *PLEG) finish(uid pod.UID, f *inflightRead, read func() (*pod.Status, error)) {
	f.status, f.err = read()
	if f.status != nil {
		f.status.Reading = f.reading
	}

	g.mu.Lock()
	old := g.entries[uid]
	changed := g.storeLocked(uid, old, f)
	// A worker that waits for the read acts on it itself.
	notify := changed && f.waiters == 0
	delete(g.inflight, uid)
	if f.reread {
		g.beginLocked(uid, seen{})
	}
	g.mu.Unlock()
	close(f.done)
	if notify {
		g.changed.Put(uid)
	}
	if changed {
		g.observed.Publish(uid)
	}
}

func (g *PLEG) storeLocked(uid pod.UID, old entry, f *inflightRead) (changed bool) {
	if f.err != nil {
		g.entries[uid] = entry{status: old.status, err: f.err}
		return old.err == nil
	}
	inheritIPs(old.status, f.status)
	if len(f.status.Sandboxes) == 0 && len(f.status.Containers) == 0 {
		delete(g.entries, uid)
		return old.err != nil || old.status != nil
	}
	g.entries[uid] = entry{status: f.status}
	return old.err != nil || old.status == nil || differs(old.status, f.status)
}

// inheritIPs preserves the addresses of a pod after its sandbox has exited: status.podIPs of a
// finished pod stay.
func inheritIPs(old, now *pod.Status) {
	if old != nil && len(now.IPs) == 0 && now.ReadySandbox() == nil && len(now.Sandboxes) > 0 {
		now.IPs = old.IPs
	}
}

func differs(a, b *pod.Status) bool {
	if len(a.Sandboxes) != len(b.Sandboxes) || len(a.Containers) != len(b.Containers) {
		return true
	}
	for i := range a.Sandboxes {
		if a.Sandboxes[i].ID != b.Sandboxes[i].ID || a.Sandboxes[i].Ready != b.Sandboxes[i].Ready {
			return true
		}
	}
	for i := range a.Containers {
		if a.Containers[i].ID != b.Containers[i].ID || a.Containers[i].State != b.Containers[i].State ||
			a.Containers[i].Reason != b.Containers[i].Reason {
			return true
		}
	}
	return false
}

// Known returns the newest observations of the pods in the runtime.
func (g *PLEG) Known() []*pod.Status {
	g.mu.Lock()
	defer g.mu.Unlock()
	out := make([]*pod.Status, 0, len(g.entries))
	for _, e := range g.entries {
		if e.status != nil {
			out = append(out, e.status)
		}
	}
	return out
}

// Newest returns the newest observation of the pod, and false if the runtime has nothing of it.
func (g *PLEG) Newest(uid pod.UID) (*pod.Status, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	e, ok := g.entries[uid]
	return e.status, ok && e.status != nil
}
