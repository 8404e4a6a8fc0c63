// Package pleg is the pod lifecycle event generator: it detects changed pods in the runtime and
// stores the newest observation of each (podCache).
//
// Owns: the podCache; the reader of the runtime's event stream; the relist.
// Reads: the runtime, through ListPods, ReadPod and Events.
// Never: takes an event for a fact, acts on a pod, or lets one slow pod delay another.
//
// A runtime event is a wake-up. The pod is then read, and the observation is stamped with the
// beginning of the read, so that late, duplicate or reordered events do no harm. Changes without
// events (exits while the runtime was down, failed starts) are found by a full relist: after the
// stream opens, a second later, and rarely otherwise; every second if the runtime has no events. A
// flood of events costs at most one read in progress and one pending per named pod, and at most
// mostReadings in total; the rest is left to a relist.
package pleg

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"berth/internal/health"
	"berth/internal/pod"
	"berth/internal/record/journal"
	"berth/internal/runtime/cri"
)

const (
	// relistPeriod is the period of full relists if the runtime has events.
	relistPeriod = 5 * time.Minute
	// secondRelist follows the relist at the opening of the stream: the runtime does not
	// acknowledge a subscription, so that early events may be lost.
	secondRelist = time.Second
	// pollPeriod is the period of full relists if the runtime has no events (generic PLEG).
	pollPeriod = time.Second
	// retryPeriod is the delay between attempts to open the stream of a runtime that returns
	// errors; an unavailable runtime is waited for.
	retryPeriod = time.Second
	// mostFailures is the number of consecutive stream failures after which a runtime counts as one
	// without events.
	mostFailures = 5
	// stallAfter is how long a relist or read may take before it is reported.
	stallAfter = 10 * time.Second
)

// Runtime is the part of the runtime that PLEG uses; *cri.Observer implements it.
type Runtime interface {
	ListPods(ctx context.Context) (map[pod.UID]*cri.RuntimePod, error)
	ReadPod(ctx context.Context, uid pod.UID, prev *pod.Status, listed *cri.RuntimePod) (*pod.Status, error)
	Events(ctx context.Context, opened func(), put func(pod.UID)) error
}

// PLEG generates pod lifecycle events: wake-ups that name a changed pod.
type PLEG struct {
	runtime Runtime
	journal *journal.Journal
	log     *slog.Logger

	inbox    *pod.Inbox[pod.UID]    // pods named by runtime events; "" requests a relist
	changed  *pod.Inbox[pod.UID]    // pods whose observation changed, unless a worker waited for it
	observed pod.Publisher[pod.UID] // the same, even if a worker waited for it
	metrics  *metrics

	restored  chan struct{} // capacity 1
	relisted  chan struct{} // closed after the first successful relist
	readings  atomic.Uint64
	reads     sync.WaitGroup // reads in flight
	readEnded chan struct{}  // capacity 1; a read has completed
	stream    stream
	health    health.Latch // why the last relist failed

	mu       sync.Mutex
	entries  map[pod.UID]entry         // guarded by mu; podCache
	inflight map[pod.UID]*inflightRead // guarded by mu
	held     map[pod.UID]bool          // guarded by mu; value: an event arrived meanwhile
	overflow bool                      // guarded by mu; an event's pod was not read because of the limit
	listing  *listing                  // guarded by mu; the relist in progress, or nil
}

type listing struct {
	began    time.Time
	waitsFor func() string
}

// stream is the state of the event stream.
type stream struct {
	opened  atomic.Bool // since a relist began
	open    atomic.Bool
	polling atomic.Bool // the runtime has no events
	changed chan struct{}
	ended   chan struct{} // capacity 1
	health  health.Latch  // why there is no stable stream
}

// notify wakes Run without blocking.
func (s *stream) notify() {
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

// startPolling records that the runtime has no events, and reports whether that is a change.
func (s *stream) startPolling() (isNew bool) {
	if isNew = s.polling.CompareAndSwap(false, true); isNew {
		s.notify()
	}
	return isNew
}

// stopPolling records that the runtime has events, and reports whether that is a change.
func (s *stream) stopPolling() (isNew bool) {
	if isNew = s.polling.CompareAndSwap(true, false); isNew {
		s.health.Set(nil)
		s.notify()
	}
	return isNew
}

// New returns a PLEG that has not read the runtime yet. Hanging calls are recorded in the journal
// of the affected pod. Metrics are registered with r unless it is nil.
func New(runtime Runtime, j *journal.Journal, log *slog.Logger, r prometheus.Registerer) *PLEG {
	g := &PLEG{
		runtime: runtime, journal: j, log: log, metrics: newMetrics(r),
		inbox: pod.NewInbox[pod.UID](), changed: pod.NewInbox[pod.UID](),
		restored: make(chan struct{}, 1), relisted: make(chan struct{}), readEnded: make(chan struct{}, 1),
		stream:  stream{changed: make(chan struct{}, 1), ended: make(chan struct{}, 1)},
		entries: map[pod.UID]entry{}, inflight: map[pod.UID]*inflightRead{}, held: map[pod.UID]bool{},
	}
	g.health.Set(errors.New("pleg has yet to be successful"))
	return g
}

// Changed returns the inbox of the pods whose observation changed.
func (g *PLEG) Changed() *pod.Inbox[pod.UID] { return g.changed }

// Subscribe returns an inbox that gets every pod whose observation changed, even if a worker waited
// for it.
func (g *PLEG) Subscribe() *pod.Inbox[pod.UID] {
	in, _ := g.observed.Subscribe()
	return in
}

// Refresh schedules a read of the pod, after a change in what a read adds to the runtime's status.
// It does not block.
func (g *PLEG) Refresh(uid pod.UID) { g.inbox.Put(uid) }

// Restored has an element when the runtime has recovered: passes that failed meanwhile can be
// retried.
func (g *PLEG) Restored() <-chan struct{} { return g.restored }

// Relisted is closed after the first list of the runtime's pods: from then on Known is complete.
func (g *PLEG) Relisted() <-chan struct{} { return g.relisted }

// Health returns nil while relisting works, else the cause: the last relist failed, or the call in
// which the present one hangs.
func (g *PLEG) Health() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if l := g.listing; l != nil && time.Since(l.began) >= stallAfter {
		stalled := time.Since(l.began).Round(time.Second)
		err := fmt.Errorf("pleg was last seen active %s ago; threshold is %s: the container runtime has not answered %s for %s", stalled, stallAfter, l.waitsFor(), stalled)
		return health.Since(err, l.began)
	}
	return g.health.Err()
}

// StreamHealth returns nil while the runtime sends events, else the cause.
func (g *PLEG) StreamHealth() error { return g.stream.health.Err() }

// Streaming reports whether the runtime's event stream is open.
func (g *PLEG) Streaming() bool { return g.stream.open.Load() }

// Broke has an element after the runtime's event stream has ended, for example when the runtime
// exits.
func (g *PLEG) Broke() <-chan struct{} { return g.stream.ended }

// Run watches the runtime until ctx is done.
func (g *PLEG) Run(ctx context.Context) error {
	var tasks sync.WaitGroup
	defer g.reads.Wait()
	defer tasks.Wait()
	tasks.Go(func() { g.follow(ctx) })

	timer := time.NewTimer(0) // the first relist is immediate
	defer timer.Stop()
	var (
		listed      = make(chan struct{}, 1)
		listing     bool // a relist is in progress
		immediately bool // another one follows immediately
		second      bool // the next relist is the one after the opening of the stream
	)
	relistNow := func() {
		immediately = true
		if !listing {
			timer.Reset(0)
		}
	}
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-g.stream.changed:
			relistNow()
		case <-timer.C:
			immediately, listing = false, true
			if g.stream.opened.Swap(false) {
				second = true
			} else if second {
				second = false
				if g.stream.open.Load() && g.stream.stopPolling() {
					g.log.Info("the container runtime offers events")
				}
			}
			tasks.Go(func() {
				g.relist(ctx)
				listed <- struct{}{}
			})
		case <-listed:
			listing = false
			wait := g.nextRelist()
			if second {
				wait = secondRelist
			}
			if immediately {
				wait = 0
			}
			timer.Reset(wait)
		case <-g.inbox.Wake():
			for _, uid := range g.inbox.Take() {
				if uid == "" {
					relistNow()
				} else if !g.refresh(uid, seen{}) && g.isFirstOverflow() && !listing {
					timer.Reset(pollPeriod)
				}
			}
		}
	}
}

// nextRelist returns the delay until the next relist, unless one is requested earlier.
func (g *PLEG) nextRelist() time.Duration {
	g.mu.Lock()
	overflow := g.overflow
	g.mu.Unlock()
	switch {
	case g.health.Err() != nil:
		return retryPeriod
	case overflow, g.stream.polling.Load():
		return pollPeriod
	}
	return relistPeriod
}

// follow maintains one event stream. Its goroutine only receives and puts: a stalled reader stalls
// the runtime.
func (g *PLEG) follow(ctx context.Context) {
	failures := 0
	for ctx.Err() == nil {
		began, openedAt := time.Now(), time.Time{}
		err := g.runtime.Events(ctx, func() {
			openedAt = time.Now()
			g.metrics.streamOpened(openedAt.Sub(began))
			g.stream.open.Store(true)
			g.stream.opened.Store(true)
			if !g.stream.polling.Load() { // a stream that broke repeatedly must prove stable first
				g.stream.health.Set(nil)
			}
			g.stream.notify()
		}, func(uid pod.UID) {
			g.stream.stopPolling()
			g.inbox.Put(uid)
		})
		g.stream.open.Store(false)
		if ctx.Err() != nil {
			return
		}
		if openedAt.IsZero() {
			g.metrics.streamsFailed.Inc()
		} else {
			select {
			case g.stream.ended <- struct{}{}:
			default:
			}
		}
		g.stream.health.Set(fmt.Errorf("the event stream of the container runtime: %w", err))
		wait := retryPeriod
		switch {
		case errors.Is(err, cri.ErrUnimplemented):
			if g.stream.startPolling() {
				g.log.Info("the container runtime offers no events: relisting every second")
			}
			failures, wait = 0, relistPeriod // the runtime may be replaced by one with events
		case errors.Is(err, cri.ErrUnavailable):
			g.log.Warn("container runtime event stream broke", "error", err)
			g.setHealth(err)
			failures, wait = 0, 50*time.Millisecond
		default:
			g.log.Warn("container runtime event stream broke", "error", err)
			if failures++; !openedAt.IsZero() && time.Since(openedAt) > secondRelist {
				failures = 1
			}
			if failures >= mostFailures {
				if g.stream.startPolling() {
					g.log.Warn("the container runtime's event stream keeps breaking: relisting every second", "failures", failures)
				}
				wait = relistPeriod
			}
		}
		pod.Pause(ctx, wait)
	}
}

// relist compares the runtime's list with the cache and reads every pod that differs.
func (g *PLEG) relist(ctx context.Context) {
	began := time.Now()
	mark := g.BeginReading()
	pods, err := g.list(ctx)
	if ctx.Err() != nil {
		return
	}
	g.metrics.relisted(began)
	g.setHealth(err)
	if err != nil {
		g.log.Warn("relist failed", "error", err)
		return
	}
	var read []pod.UID
	g.mu.Lock()
	for uid, p := range pods {
		if e, ok := g.entries[uid]; !ok || e.err != nil || e.status == nil || !p.Matches(e.status) {
			read = append(read, uid)
		}
	}
	for uid := range g.entries {
		if pods[uid] == nil {
			read = append(read, uid)
		}
	}
	g.mu.Unlock()
	for _, uid := range read {
		if !g.refreshInTurn(ctx, uid, seen{mark, pods[uid]}) {
			return
		}
	}
	pods = nil // large on a large node, and the reads may take a while
	if g.hasRelisted() {
		return
	}
	for _, uid := range read {
		if _, err := g.Observe(ctx, uid, 0); err != nil {
			g.log.Warn("first reading of a pod failed", "uid", uid, "error", err)
		}
	}
	close(g.relisted)
}

func (g *PLEG) hasRelisted() bool {
	select {
	case <-g.relisted:
		return true
	default:
		return false
	}
}

// list lists the runtime's pods, and reports a runtime that does not respond.
func (g *PLEG) list(ctx context.Context) (map[pod.UID]*cri.RuntimePod, error) {
	ctx, waitsFor := cri.WithTrace(ctx)
	g.mu.Lock()
	g.overflow = false // pods not read until now differ from the list
	g.listing = &listing{time.Now(), waitsFor}
	g.mu.Unlock()
	stalled := time.AfterFunc(stallAfter, func() {
		g.log.Warn("the container runtime stalls: the relist waits", "call", waitsFor(), "for", stallAfter)
	})
	defer func() {
		stalled.Stop()
		g.mu.Lock()
		g.listing = nil
		g.mu.Unlock()
	}()
	return g.runtime.ListPods(ctx)
}

func (g *PLEG) setHealth(err error) {
	if before := g.health.Set(err); err == nil && before != nil {
		g.noteOutage(before)
		select {
		case g.restored <- struct{}{}:
		default:
		}
	}
}
