package shims

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/containerd/cgroups/v3/cgroup1"
	"github.com/containerd/containerd/api/events"
	"github.com/containerd/containerd/v2/core/runtime"
	"github.com/containerd/log"
	"golang.org/x/sys/unix"

	"berth/bundle/podshim/wire"
)

// watchOOM reports OOM kills in the container to containerd from now on, including those that
// happened while containerd was not running. It is called when containerd waits for the container,
// because its CRI listens to events by then.
func (t *task) watchOOM(m *Manager) {
	t.pod.mu.Lock()
	again := t.watchesOOM
	t.watchesOOM = true
	stopped := t.state == wire.Stopped
	t.pod.mu.Unlock()
	if again || stopped {
		return
	}
	g, err := cgroupAt(t.record.Cgroup)
	var f *os.File
	if err == nil {
		f, err = g.watchMemory()
	}
	if err != nil {
		log.L.Warnf("podshim: container %s: OOM kills are only reported at its exit: %s", t.record.ID, err)
		return
	}
	t.callOnStop(func() { f.Close() })
	go func() {
		buf := make([]byte, 16*unix.SizeofInotifyEvent)
		for m.reportOOM(t, g); ; {
			if _, err := f.Read(buf); err != nil || !g.Exists() {
				return
			}
			m.awaitOOM(t, g)
		}
	}()
}

// awaitOOM reports announced OOM kills. With cgroup v1, the kernel announces them before the kill,
// and to all cgroups below the one that is out of memory: most of a pod's containers lose no
// process.
func (m *Manager) awaitOOM(t *task, g *cgroup) {
	for wait := time.Millisecond; !m.reportOOM(t, g) && !unified() && wait < 2*time.Second; wait *= 2 {
		select {
		case <-t.done: // reported at the exit
			return
		case <-time.After(wait):
		}
	}
}

// watchMemory returns a file that becomes readable at an event of the cgroup's memory.
func (g *cgroup) watchMemory() (*os.File, error) {
	if !unified() {
		m, err := g.v1()
		if err != nil {
			return nil, err
		}
		fd, err := m.RegisterMemoryEvent(cgroup1.OOMEvent())
		if err != nil {
			return nil, err
		}
		if err := unix.SetNonblock(int(fd), true); err != nil {
			return nil, errors.Join(err, unix.Close(int(fd)))
		}
		return os.NewFile(fd, "memory.oom_control"), nil
	}
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, err
	}
	file := filepath.Join(g.Path(""), "memory.events")
	if _, err := unix.InotifyAddWatch(fd, file, unix.IN_MODIFY); err != nil {
		return nil, errors.Join(&os.PathError{Op: "watch", Path: file, Err: err}, unix.Close(fd))
	}
	return os.NewFile(uintptr(fd), file), nil
}

// reportOOM reports OOM kills that the cgroup has counted and that are not reported yet, and
// returns whether there were any.
func (m *Manager) reportOOM(t *task, g *cgroup) (more bool) {
	n, err := g.OOMKillCount()
	if err != nil {
		n = 0 // the cgroup was deleted
	}
	return m.reportOOMCount(t, n)
}

// reportOOMCount publishes an event if there are unreported OOM kills, with the kernel's count n,
// and persists the count. After a restart, kills are reported again, because the former containerd
// may have been killed before it persisted them.
func (m *Manager) reportOOMCount(t *task, n uint64) (more bool) {
	t.pod.mu.Lock()
	before := t.record.OOMs
	now := max(n, before)
	more = now > t.reportedOOMs
	t.record.OOMs, t.reportedOOMs = now, now
	t.pod.mu.Unlock()
	if more {
		m.publish(runtime.TaskOOMEventTopic, &events.TaskOOM{ContainerID: t.record.ID})
	}
	if now == before {
		return more
	}
	if err := t.save(); err != nil {
		log.L.Errorf("podshim: container %s: %s", t.record.ID, err)
	}
	return more
}

// reportFinalOOM reports the OOM kills until the exit.
func (m *Manager) reportFinalOOM(t *task) {
	g, err := cgroupAt(t.record.Cgroup)
	if err != nil {
		log.L.Errorf("podshim: container %s: %s", t.record.ID, err)
		return
	}
	m.reportOOM(t, g)
}

// save writes the task's record, unless the task was deleted.
func (t *task) save() error {
	t.saving.Lock()
	defer t.saving.Unlock()
	t.pod.mu.Lock()
	r, known := t.record, t.pod.tasks[t.record.ID] == t
	t.pod.mu.Unlock()
	if !known {
		return nil
	}
	if err := writeRecord(t.file(), r); err != nil {
		return fmt.Errorf("file of the task: %w", err)
	}
	return nil
}
