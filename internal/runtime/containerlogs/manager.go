package containerlogs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"sync"
	"time"

	"berth/internal/host/inotify"
	"berth/internal/pod"
	"berth/internal/record/journal"
)

// Runtime reopens container logs; *cri.Client implements it.
type Runtime interface {
	// ReopenContainerLog makes the runtime write the log to a new file at its path.
	ReopenContainerLog(ctx context.Context, id pod.ContainerID) error
}

// Writes reports the next write to a file; *inotify.Once implements it.
type Writes interface {
	Watch(file *os.File) (id int, err error)
	Forget(id int) error
	// Written reports the watches that saw a write, once each, or inotify.Overflow.
	Written() <-chan int
	Close() error
}

// Config configures a Manager.
type Config struct {
	Limits  Limits
	Runtime Runtime
	// Changed receives every pod whose observed state changed; Newest returns that state.
	Changed *pod.Inbox[pod.UID]
	Newest  func(uid pod.UID) (*pod.Status, bool)
	// Watch opens a Writes. If it fails, logs are inspected at each interval.
	Watch   func() (Writes, error)
	Journal *journal.Journal
	Log     *slog.Logger
}

// Manager enforces the limits of logs.
type Manager struct {
	cfg Config

	// All of these belong to Run's goroutine.
	began       time.Time
	writes      Writes // nil without inotify
	watchFailed bool   // logged that logs cannot be watched
	logs        map[pod.ContainerID]*containerLog
	watches     map[int]*containerLog
	rotating    int
	cleaning    int
	results     chan result
	workers     sync.WaitGroup
}

// result is the result of a job.
type result struct {
	log      *containerLog
	rotation bool // or cleanup
	outcome  outcome
}

// New returns a Manager that follows pods once Run is called.
func New(cfg Config) *Manager {
	return &Manager{cfg: cfg, logs: map[pod.ContainerID]*containerLog{}, watches: map[int]*containerLog{}, results: make(chan result)}
}

// Run enforces the limits of logs until ctx is done.
func (m *Manager) Run(ctx context.Context) error {
	m.began = time.Now()
	var written <-chan int
	if writes, err := m.cfg.Watch(); err != nil {
		m.cfg.Log.Warn("Cannot watch container logs, checking their sizes each containerLogMonitorInterval", "error", err)
	} else {
		m.writes, written = writes, writes.Written()
		defer writes.Close()
	}
	defer m.finish()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		if next := m.act(ctx); next.IsZero() {
			timer.Stop()
		} else {
			timer.Reset(time.Until(next))
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-timer.C:
		case <-m.cfg.Changed.Wake():
			for _, uid := range m.cfg.Changed.Take() {
				m.follow(uid)
			}
		case id, ok := <-written:
			if !ok {
				return errors.New("inotify has ended")
			}
			m.written(id)
		case r := <-m.results:
			m.finished(&r)
		}
	}
}

// finish waits for the workers: a renamed log must be reopened.
func (m *Manager) finish() {
	for _, l := range m.logs {
		l.cancel()
	}
	go func() {
		m.workers.Wait()
		close(m.results)
	}()
	for range m.results {
	}
}

// follow updates the logs of a pod's running and exited containers.
func (m *Manager) follow(uid pod.UID) {
	s, ok := m.cfg.Newest(uid)
	if !ok {
		s = &pod.Status{}
	}
	present := map[pod.ContainerID]bool{}
	for i := range s.Containers {
		c := &s.Containers[i]
		runs := c.State == pod.StateRunning
		if c.LogPath == "" || !runs && c.State != pod.StateExited {
			continue
		}
		present[c.ID] = true
		l, known := m.logs[c.ID]
		if !known {
			l = newContainerLog(s, c)
			m.logs[c.ID] = l
			if runs && c.StartedAt.Before(m.began) { // an earlier agent may have been interrupted
				l.cleanUpAt = m.began.Add(m.cfg.Limits.Interval)
			}
			l.inspectAt = m.began
		}
		if !runs && !l.exited {
			m.forget(l)
			l.exited, l.due = true, false
			l.inspectAt, l.cleanUpAt = time.Time{}, m.began
		}
	}
	for id, l := range m.logs {
		if l.subject.UID == uid && !present[id] {
			delete(m.logs, id)
			m.forget(l)
			l.cancel()
		}
	}
}

// forget removes the watch of a log.
func (m *Manager) forget(l *containerLog) {
	if !l.watched {
		return
	}
	if err := m.writes.Forget(l.watch); err != nil {
		m.cfg.Log.Warn("the watch of a log is not given up", "log", l.path, "error", err)
	}
	m.unwatch(l)
}

// unwatch records that a log is not watched any more.
func (m *Manager) unwatch(l *containerLog) {
	if l.watched {
		delete(m.watches, l.watch)
		l.watched = false
	}
}

// written handles a write event of a watch.
func (m *Manager) written(id int) {
	if id == inotify.Overflow {
		for _, l := range m.watches {
			l.inspectAt = time.Now()
		}
		return
	}
	l, ok := m.watches[id]
	if !ok {
		return // the watch was removed meanwhile
	}
	m.unwatch(l)
	if l.inspectAt.IsZero() { // it was idle until now: its growth rate is unknown
		l.last.at = time.Now()
		l.inspectAt = roundUp(l.last.at.Add(minInspectInterval))
	}
}

// roundUp rounds a time up to the next twentieth of a second, to inspect many logs per wake-up.
func roundUp(t time.Time) time.Time {
	const grid = time.Second / 20
	return t.Add(grid - 1).Truncate(grid)
}

// act inspects logs that are due, and starts jobs. It returns the time of its next call at the
// latest, zero for never.
func (m *Manager) act(ctx context.Context) (next time.Time) {
	now := time.Now()
	for _, l := range m.logs {
		if !l.rotating && !l.inspectAt.IsZero() && !l.inspectAt.After(now) {
			m.inspect(l, now)
		}
		switch {
		case l.rotating:
		case l.due && l.cleaning:
			l.cancel() // its result triggers another act
		case l.due:
			if m.rotating < m.cfg.Limits.Workers {
				m.startRotating(ctx, l)
			}
		case !l.cleaning && !l.cleanUpAt.IsZero() && !l.cleanUpAt.After(now) && m.cleaning < m.cfg.Limits.Workers:
			m.startCleanup(ctx, l)
		}
		if at := l.next(now); !at.IsZero() && (next.IsZero() || at.Before(next)) {
			next = at
		}
	}
	return next
}

func (m *Manager) startRotating(ctx context.Context, l *containerLog) {
	m.rotating++
	l.due, l.rotating = false, true
	m.forget(l) // the next file is another one
	j := l.job()
	m.workers.Go(func() { m.results <- result{l, true, m.rotate(ctx, j)} })
}

func (m *Manager) startCleanup(ctx context.Context, l *containerLog) {
	m.cleaning++
	l.cleaning, l.cleanUpAt = true, time.Time{}
	ctx, l.cancel = context.WithCancel(ctx)
	j := l.job()
	m.workers.Go(func() { m.results <- result{l, false, m.cleanUp(ctx, j)} })
}

// finished handles the result of a job.
func (m *Manager) finished(r *result) {
	l, now := r.log, time.Now()
	if !r.rotation {
		m.cleaning--
		l.cancel()
		l.cleaning = false
		if r.outcome.err != nil && !errors.Is(r.outcome.err, context.Canceled) && !errors.Is(r.outcome.err, fs.ErrNotExist) { // the directory is removed with its pod
			m.record(l, "the rotated files of the log stay as they are", "", r.outcome.err)
		}
		return
	}
	m.rotating--
	l.rotating, l.renamed = false, r.outcome.renamed
	if r.outcome.err == nil {
		l.failures, l.last.size, l.last.at = 0, 0, now
		l.inspectAt, l.cleanUpAt = roundUp(now.Add(inspectDelay(0, l.last.rate, m.cfg.Limits))), now.Add(m.cfg.Limits.Interval)
	} else {
		l.failures++
		l.inspectAt = now.Add(min(m.cfg.Limits.Interval, time.Second<<min(l.failures-1, 10)))
		m.recordFailure(l, r)
	}
	if r.outcome.rotated {
		m.recordRotated(l, now)
	}
	if l.exited {
		l.due, l.inspectAt, l.cleanUpAt = false, time.Time{}, now
	}
}

// recordInterval is the minimum interval between journal entries on a log that is rotated
// repeatedly.
const recordInterval = 10 * time.Minute

func (m *Manager) recordRotated(l *containerLog, now time.Time) {
	if !l.recordedAt.IsZero() && now.Sub(l.recordedAt) < recordInterval {
		return
	}
	l.recordedAt = now
	m.record(l, "rotate the log", fmt.Sprintf("it has reached containerLogMaxSize, %d bytes; the last %d files are kept", m.cfg.Limits.MaxSize, m.cfg.Limits.MaxFiles), nil)
}

// recordFailure records the second consecutive failure: the first may be due to a container that
// has just exited.
func (m *Manager) recordFailure(l *containerLog, r *result) {
	switch {
	case r.outcome.emptied:
		m.record(l, "empty the log", fmt.Sprintf("it cannot be rotated, and has reached %d bytes", m.cfg.Limits.total()), r.outcome.err)
	case l.failures == 2:
		m.record(l, "the log is not rotated, and grows", "", r.outcome.err)
	}
}

func (m *Manager) record(l *containerLog, decision, why string, err error) {
	e := journal.Entry{Subject: l.subject, Container: l.container, Component: "logs", Decision: decision, Why: why}
	if err != nil {
		e.Error = err.Error()
	}
	m.cfg.Journal.Record(e)
}
