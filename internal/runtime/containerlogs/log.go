package containerlogs

import (
	"errors"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/pod"
	"berth/internal/record/journal"
	"berth/internal/runtime/logs"
)

// containerLog is the log of one container incarnation.
type containerLog struct {
	subject   journal.Subject
	container string
	id        pod.ContainerID
	path      string
	// followsPath is pod.ContainerStatus.LogFollowsPath.
	followsPath bool
	exited      bool

	// inspectAt is the time of the next inspection of its size, zero for at the next write.
	// cleanUpAt is the time of the next cleanup, zero for never.
	inspectAt, cleanUpAt time.Time
	last                 measurement
	watched              bool // the next write will be reported, as watch
	watch                int

	due      bool // rotation is due
	rotating bool
	cleaning bool
	cancel   func() // cancels the cleanup

	renamed    bool // job.renamed
	failures   int
	unreadable bool      // logged that it cannot be inspected
	recordedAt time.Time // time of the last rotation in the journal
}

// measurement is the result of an inspection.
type measurement struct {
	at   time.Time
	size int64
	rate float64 // of growth, in bytes per second
}

func newContainerLog(s *pod.Status, c *pod.ContainerStatus) *containerLog {
	return &containerLog{
		subject:   journal.Subject{UID: s.UID, Namespace: s.Namespace, Name: s.Name},
		container: c.Name, id: c.ID, path: c.LogPath, followsPath: c.LogFollowsPath, cancel: func() {},
	}
}

func (l *containerLog) job() job {
	return job{uid: l.subject.UID, id: l.id, path: l.path, followsPath: l.followsPath, runs: !l.exited, renamed: l.renamed, failures: l.failures}
}

// next returns the next time after now at which the log needs an action.
func (l *containerLog) next(now time.Time) (next time.Time) {
	if l.rotating {
		return next
	}
	for _, t := range []time.Time{l.inspectAt, l.cleanUpAt} {
		if t.After(now) && (next.IsZero() || t.Before(next)) {
			next = t
		}
	}
	return next
}

// measure reads the size of the open log, and reports whether it has changed.
func (l *containerLog) measure(file *os.File, now time.Time) (changed bool, err error) {
	st, err := file.Stat()
	if err != nil {
		return false, err
	}
	if !st.Mode().IsRegular() {
		return false, errors.New("it is not a regular file")
	}
	if passed := now.Sub(l.last.at).Seconds(); !l.last.at.IsZero() && passed > 0 {
		l.last.rate = float64(st.Size()-l.last.size) / passed
	}
	changed = st.Size() != l.last.size
	l.last.size, l.last.at = st.Size(), now
	return changed, nil
}

// inspect reads the size of a log and decides: it is due, or inspected again at a time or at the
// next write.
func (m *Manager) inspect(l *containerLog, now time.Time) {
	l.inspectAt = time.Time{}
	if l.renamed {
		l.due = true
		return
	}
	file, err := logs.FilesOf(l.path).OpenFile(l.path, unix.O_PATH, 0)
	if errors.Is(err, fs.ErrNotExist) {
		l.due = true // the runtime must create it
		return
	}
	if err == nil {
		defer file.Close()
		err = m.inspectOpen(l, file, now)
	}
	if err == nil {
		return
	}
	if !errors.Is(err, unix.ELOOP) { // a link is Docker's, which rotates its logs itself
		l.inspectAt = now.Add(m.cfg.Limits.Interval)
	}
	if !l.unreadable {
		m.cfg.Log.Warn("the log of a container is not bounded", "log", l.path, "error", err)
	}
	l.unreadable = true
}

func (m *Manager) inspectOpen(l *containerLog, file *os.File, now time.Time) error {
	isFirst := l.last.at.IsZero()
	changed, err := l.measure(file, now)
	if err == nil && l.last.size < m.cfg.Limits.MaxSize && (isFirst || !changed) {
		m.watch(l, file)
		changed, err = l.measure(file, now) // it may have been written to just before
	}
	switch {
	case err != nil:
		return err
	case l.last.size >= m.cfg.Limits.MaxSize && l.last.size > 0:
		l.due = true
	case changed:
		l.inspectAt = roundUp(now.Add(inspectDelay(l.last.size, l.last.rate, m.cfg.Limits)))
	case !l.watched:
		l.inspectAt = roundUp(now.Add(m.cfg.Limits.Interval))
	}
	return nil
}

// watch arms the watch for the next write to the open log.
func (m *Manager) watch(l *containerLog, file *os.File) {
	if m.writes == nil {
		return
	}
	id, err := m.writes.Watch(file)
	if err != nil {
		if !m.watchFailed {
			m.cfg.Log.Warn("Cannot watch some container logs, checking their sizes each containerLogMonitorInterval", "error", err)
		}
		m.watchFailed = true
		return
	}
	m.unwatch(l)
	l.watch, l.watched = id, true
	m.watches[id] = l
}
