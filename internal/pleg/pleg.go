// Package pleg is the pod lifecycle event generator: it learns from the runtime which pods changed and keeps the newest observation of each (podCache).
//
// Owns: the podCache; the reader of the runtime's event stream; the relist.
// Reads: the runtime, through ListPods, ReadPod and Events.
// Never: takes an event for a fact, acts on a pod, or lets one slow pod hold up another.
//
// A runtime event is a wake-up. The pod is then read, and the observation is stamped with the beginning of the reading, so that an event
// which comes late, twice or out of order does no harm. What events do not tell (exits while the runtime was down, failed
// starts) is found by a full relist: after the stream opens, a second later, and rarely otherwise; every second where the
// runtime has no events.
package pleg

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"berth/internal/cri"
	"berth/internal/pod"
)

const (
	// relistPeriod is the full relist where the runtime has events.
	relistPeriod = 5 * time.Minute
	// secondRelist follows the one at the opening of the stream: the runtime does not acknowledge a subscription, so that events of its
	// first moments may be lost.
	secondRelist = time.Second
	// pollPeriod is the full relist where the runtime has no events (generic PLEG).
	pollPeriod = time.Second
	// retryPeriod spaces attempts to open the stream of a runtime that answers with errors; a runtime that is down is waited for.
	retryPeriod = time.Second
)

// Runtime is what PLEG needs of the runtime; *cri.Client provides it.
type Runtime interface {
	ListPods(ctx context.Context) (map[pod.UID]*cri.RuntimePod, error)
	ReadPod(ctx context.Context, uid pod.UID, prev *pod.Status) (*pod.Status, error)
	Events(ctx context.Context, opened func(), put func(pod.UID)) error
}

// PLEG generates pod lifecycle events: wake-ups that name a changed pod.
type PLEG struct {
	runtime Runtime
	log     *slog.Logger

	inbox    *pod.Inbox[pod.UID] // what the runtime's events name; "" asks for a relist
	changed  *pod.Inbox[pod.UID] // pods whose observation changed
	restored chan struct{}       // capacity 1
	relisted chan struct{}       // closed after the first successful relist
	once     sync.Once
	readings atomic.Uint64
	reads    sync.WaitGroup // readings in flight

	mu      sync.Mutex
	entries map[pod.UID]entry   // guarded by mu; podCache
	flights map[pod.UID]*flight // guarded by mu
	held    map[pod.UID]bool    // guarded by mu; value: something happened meanwhile
	health  error               // guarded by mu; why the last relist failed
}

// New returns a PLEG that has not looked at the runtime yet.
func New(runtime Runtime, log *slog.Logger) *PLEG {
	return &PLEG{
		runtime: runtime, log: log,
		inbox: pod.NewInbox[pod.UID](), changed: pod.NewInbox[pod.UID](),
		restored: make(chan struct{}, 1), relisted: make(chan struct{}),
		entries: map[pod.UID]entry{}, flights: map[pod.UID]*flight{}, held: map[pod.UID]bool{},
		health: errors.New("pleg has yet to be successful"),
	}
}

// Changed is where the pods appear whose observation changed.
func (g *PLEG) Changed() *pod.Inbox[pod.UID] { return g.changed }

// Restored has an element when the runtime is back after it could not be reached: passes that failed meanwhile are worth trying again.
func (g *PLEG) Restored() <-chan struct{} { return g.restored }

// Relisted is closed once the runtime was listed for the first time: from then on Known is complete.
func (g *PLEG) Relisted() <-chan struct{} { return g.relisted }

// Health returns nil while relisting works, else why it does not.
func (g *PLEG) Health() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.health
}

// Run follows the runtime until ctx is done.
func (g *PLEG) Run(ctx context.Context) error {
	opened := make(chan struct{}, 1)
	var stream sync.WaitGroup
	polling := make(chan bool, 1)
	stream.Go(func() { g.follow(ctx, opened, polling) })
	defer g.reads.Wait()
	defer stream.Wait()

	timer := time.NewTimer(0) // the first relist is at once
	defer timer.Stop()
	period, second := relistPeriod, false
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-opened:
			second = true
			timer.Reset(0)
		case poll := <-polling:
			period = relistPeriod
			if poll {
				period = pollPeriod
			}
			timer.Reset(0)
		case <-timer.C:
			g.relist(ctx)
			next := period
			switch {
			case second:
				next, second = min(secondRelist, period), false
			case g.Health() != nil:
				next = min(retryPeriod, period)
			}
			timer.Reset(next)
		case <-g.inbox.Wake():
			for _, uid := range g.inbox.Take() {
				if uid == "" {
					timer.Reset(0)
					continue
				}
				g.refresh(uid)
			}
		}
	}
}

// follow keeps one event stream open. Its goroutine does nothing but receive and put: a stalled reader stalls the runtime.
func (g *PLEG) follow(ctx context.Context, opened chan<- struct{}, polling chan bool) {
	poll := false
	set := func(v bool) {
		if v == poll {
			return
		}
		poll = v
		select {
		case polling <- v:
		case <-ctx.Done():
		}
	}
	for ctx.Err() == nil {
		err := g.runtime.Events(ctx, func() {
			select {
			case opened <- struct{}{}:
			default:
			}
		}, func(uid pod.UID) {
			set(false)
			g.inbox.Put(uid)
		})
		if ctx.Err() != nil {
			return
		}
		wait := time.Duration(0)
		switch {
		case errors.Is(err, cri.ErrUnimplemented):
			if !poll {
				g.log.Info("the container runtime offers no events: relisting every second")
			}
			set(true)
			wait = relistPeriod // it may be replaced by one that does
		case errors.Is(err, cri.ErrUnavailable):
			g.log.Warn("container runtime event stream broke", "error", err)
			g.setHealth(err)
			wait = 50 * time.Millisecond
		default:
			g.log.Warn("container runtime event stream broke", "error", err)
			wait = retryPeriod
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
		}
	}
}

// relist compares what the runtime lists with the cache and reads every pod that differs.
func (g *PLEG) relist(ctx context.Context) {
	pods, err := g.runtime.ListPods(ctx)
	if ctx.Err() != nil {
		return
	}
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
		g.refresh(uid)
	}
	g.once.Do(func() {
		for _, uid := range read {
			if _, err := g.Observe(ctx, uid, 0); err != nil {
				g.log.Warn("first reading of a pod failed", "uid", uid, "error", err)
			}
		}
		close(g.relisted)
	})
}

func (g *PLEG) setHealth(err error) {
	g.mu.Lock()
	before := g.health
	g.health = err
	g.mu.Unlock()
	if err == nil && before != nil {
		select {
		case g.restored <- struct{}{}:
		default:
		}
	}
}
