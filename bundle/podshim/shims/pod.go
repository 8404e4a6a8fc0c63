package shims

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/containerd/log"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"berth/bundle/podshim/plan"
	"berth/bundle/podshim/wire"
)

// killedExitCode is the exit code of processes that were killed with their pod shim.
const killedExitCode = 128 + uint32(syscall.SIGKILL)

// replyTimeout is how long a pod shim may take for an immediate reply, before it counts as stuck.
// Only tests change it.
var replyTimeout = 30 * time.Second

// pod is a pod and its pod shim.
type pod struct {
	dir        string
	namespaces int               // clone flags of its own namespaces, until the pod shim has them
	mountLabel string            // of its files, until it is started
	sysctls    map[string]string // until they are set
	rootUID    *uint32           // until then: host UID of root in the pod's user namespace; nil without one
	exited     chan struct{}     // closed when the pod shim, and with it all of the pod, has exited
	forceStop  bool              // do not wait for a pod shim that does not respond, whatever it waits for

	mu       sync.Mutex
	record   podRecord
	link     *link
	pidfd    int // of the pod shim; -1 without one
	tasks    map[string]*task
	listed   map[string]bool // reported in the pod shim's list
	exitedAt time.Time
}

// task is a container of a pod, or an exec in one. Guarded by the pod's mu, except for immutable
// fields: of, process, and the record's ID, Bundle, Stdin, Stdout, Stderr, Terminal and Cgroup.
// After done is closed, its exit is also immutable.
type task struct {
	pod    *pod
	record taskRecord
	state  wire.State
	plan   *plan.Plan // until it is started, to describe errors
	done   chan struct{}
	onStop []func() // called when done is closed

	execs        map[string]*task  // of a container
	confined     *plan.Confinement // of a container that had an exec
	watchesOOM   bool              // for OOM kills
	reportedOOMs uint64            // the part of record.OOMs reported to this containerd
	saving       sync.Mutex        // guards its file

	parent    *task // the container of an exec
	process   *specs.Process
	requested bool // the exec was requested from the pod shim
}

func newPod(dir string) *pod {
	return &pod{dir: dir, exited: make(chan struct{}), pidfd: -1, tasks: map[string]*task{}, listed: map[string]bool{}}
}

// alive reports whether the pod shim has not exited.
func (p *pod) alive() bool {
	select {
	case <-p.exited:
		return false
	default:
		return true
	}
}

// connect connects to the pod shim and lists its containers. With an error other than
// syscall.ENOENT and syscall.ECONNREFUSED, the pod shim may be running.
func (p *pod) connect() error {
	l, err := dial(p.dir)
	if err != nil {
		return err
	}
	fds := make(chan int, 1) // pidfd of the pod shim
	go func() {
		l.read(p.handleReply)
		if fd, connected := <-fds; connected {
			p.thaw()
			p.awaitExit(fd)
			p.markExited()
		}
	}()
	defer close(fds)
	replied := make(chan struct{})
	go p.killStuck(p.record.Pid, replied)
	r, err := l.list()
	close(replied)
	if err != nil {
		l.conn.Close()
		return fmt.Errorf("list of containers: %w", err)
	}
	fd, err := unix.PidfdOpen(int(r.Pid), 0)
	if err != nil {
		l.conn.Close()
		return fmt.Errorf("podshim %d: %w", r.Pid, err)
	}
	p.mu.Lock()
	p.link, p.pidfd, p.record.Pid = l, fd, r.Pid
	p.mu.Unlock()
	fds <- fd
	return nil
}

// reconnect connects to a pod shim that another containerd has started. It kills one whose socket
// was deleted, because that cannot be reached any more.
func (p *pod) reconnect() error {
	err := p.connect()
	var st unix.Stat_t
	if err == nil || !isExited(err) || unix.Lstat(filepath.Join(p.dir, "socket"), &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFSOCK {
		return err // nothing listens: it has exited
	}
	processes, listErr := os.ReadDir("/proc")
	if listErr != nil {
		return listErr
	}
	for _, e := range processes {
		if pid, parseErr := strconv.ParseUint(e.Name(), 10, 32); parseErr == nil {
			p.killProcess(uint32(pid), "has no socket any more")
		}
	}
	return err
}

// thaw thaws paused containers, whose processes were killed with their pod shim, so that they exit.
func (p *pod) thaw() {
	p.mu.Lock()
	all := slices.Collect(maps.Values(p.tasks))
	p.mu.Unlock()
	for _, t := range all {
		if err := t.thaw(); err != nil {
			log.L.Errorf("podshim: container %s: %s", t.record.ID, err)
		}
	}
}

// awaitExit waits until the pod shim has exited. Its connection closes before that, and before the
// kernel has killed the pod's other processes.
func (p *pod) awaitExit(fd int) {
	defer unix.Close(fd)
	began := time.Now()
	for time.Since(began) < replyTimeout {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(replyTimeout.Milliseconds()))
		if n > 0 || err != nil && !errors.Is(err, unix.EINTR) {
			return
		}
	}
	log.L.Errorf("podshim: pod %s: the pod shim does not exit", filepath.Base(p.dir))
}

// markExited records that the pod has exited with its pod shim.
func (p *pod) markExited() {
	p.killShared()
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.alive() {
		return
	}
	p.exitedAt, p.pidfd, p.link = time.Now(), -1, nil
	for _, t := range p.tasks {
		for _, e := range t.execs {
			e.markKilled(p.exitedAt)
		}
		t.markKilled(p.exitedAt)
	}
	close(p.exited)
}

// markStopped is called, with the lock held, when a task has stopped.
func (t *task) markStopped() {
	close(t.done)
	for _, f := range t.onStop {
		f()
	}
	t.onStop = nil
}

// callOnStop calls a function when the task has stopped. It must not acquire the lock.
func (t *task) callOnStop(f func()) {
	t.pod.mu.Lock()
	defer t.pod.mu.Unlock()
	if t.state == wire.Stopped {
		f()
		return
	}
	t.onStop = append(t.onStop, f)
}

// markKilled records that a container or exec was killed with its pod shim.
func (t *task) markKilled(at time.Time) {
	if t.state != wire.Stopped {
		t.state, t.record.Status, t.record.Exited = wire.Stopped, killedExitCode, at.UnixNano()
		t.markStopped()
	}
}

// handleReply records a message of the pod shim about a container or an exec.
func (p *pod) handleReply(r wire.Reply) {
	p.mu.Lock()
	defer p.mu.Unlock()
	t := p.tasks[r.ID]
	if r.Exec == "" && r.Op == wire.Listed {
		p.listed[r.ID] = true
	} else if r.Exec != "" && t != nil {
		if r.Op == wire.Listed && t.execs[r.Exec] == nil { // started by a former containerd
			e := newExec(t, r.Exec)
			e.requested = true
			t.execs[r.Exec] = e
		}
		t = t.execs[r.Exec]
	}
	if t == nil || r.State == 0 || r.State > wire.Stopped || t.state == wire.Stopped {
		return
	}
	t.state, t.record.Pid, t.record.Status, t.record.Started, t.record.Exited = r.State, r.Pid, r.Status, r.Started, r.Exited
	if r.Step == wire.ReasonOOM && r.Op >= wire.Exited { // systemd may have removed the cgroup with the kernel's count
		t.record.OOMs = max(t.record.OOMs, 1)
	}
	if t.state == wire.Stopped {
		t.markStopped()
	}
}

// call sends a request about a container to the pod shim.
func (p *pod) call(q wire.Request, pl *plan.Plan, f *files) (wire.Reply, error) {
	p.mu.Lock()
	l := p.link
	p.mu.Unlock()
	if l == nil {
		return wire.Reply{}, errExited
	}
	return l.call(q, pl, f)
}

// stop stops the pod shim, and with it all of the pod. It kills a pod shim that does not respond.
func (p *pod) stop() error {
	p.mu.Lock()
	l := p.link
	p.mu.Unlock()
	if l == nil {
		p.markExited()
		return nil
	}
	slow := time.AfterFunc(replyTimeout, p.kill)
	defer slow.Stop()
	if _, err := l.call(wire.Request{Op: wire.Stop}, nil, nil); err != nil && !errors.Is(err, errExited) {
		return err
	}
	<-p.exited
	return nil
}

// kill kills a pod shim that does not respond.
func (p *pod) kill() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.pidfd >= 0 {
		log.L.Warnf("podshim: pod %s: the pod shim does not respond: killing it", filepath.Base(p.dir))
		if err := unix.PidfdSendSignal(p.pidfd, unix.SIGKILL, nil, 0); err != nil {
			log.L.Errorf("podshim: pod %s: kill the pod shim: %s", filepath.Base(p.dir), err)
		}
	}
}

// killStuck kills a pod shim that does not respond to a restarted containerd. One that waits for
// the disk with the pod's logs gets the same time again after the wait.
func (p *pod) killStuck(pid uint32, replied <-chan struct{}) {
	for waited, waiting := true, false; waiting || waited; {
		select {
		case <-replied:
			return
		case <-time.After(replyTimeout):
		}
		waited, waiting = waiting, !p.forceStop && waitsForDisk(pid)
		if waiting {
			log.L.Warnf("podshim: pod %s: the pod shim, process %d, waits for the disk with the pod's logs, and containerd waits for the pod shim", filepath.Base(p.dir), pid)
		}
	}
	p.killProcess(pid, "does not respond")
}

// killProcess kills a pod shim of which only the PID is known: the process must belong to this pod.
func (p *pod) killProcess(pid uint32, reason string) {
	fd, err := unix.PidfdOpen(int(pid), 0)
	if err != nil {
		return
	}
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if args := strings.Split(string(b), "\x00"); err != nil || len(args) < 3 || args[2] != filepath.Join(p.dir, "shm") {
		unix.Close(fd)
		return
	}
	log.L.Warnf("podshim: pod %s: the pod shim, process %d, %s: killing it", filepath.Base(p.dir), pid, reason)
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil {
		log.L.Errorf("podshim: pod %s: kill the pod shim: %s", filepath.Base(p.dir), err)
	}
	p.awaitExit(fd)
}

// waitsForDisk reports whether a process is in uninterruptible sleep.
func waitsForDisk(pid uint32) bool {
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)) // empty: it has exited
	_, state, _ := strings.Cut(string(b), ") ")
	return strings.HasPrefix(state, "D")
}

// snapshot returns the record and state of the task.
func (t *task) snapshot() (taskRecord, wire.State) {
	t.pod.mu.Lock()
	defer t.pod.mu.Unlock()
	return t.record, t.state
}

func (t *task) file() string { return taskFile(t.pod.dir, t.record.ID) }

// holdFIFOs keeps the FIFOs from which containerd reads the output open until the task exits: one
// without a writer blocks a thread of containerd, and the pod shim opens them only when there is
// output.
func (t *task) holdFIFOs() {
	for _, path := range []string{t.record.Stdout, t.record.Stderr} {
		if path == "" {
			continue
		}
		fd, err := unix.Open(path, unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
		if err != nil {
			log.L.Warnf("podshim: container %s: output %s: %s", t.record.ID, path, err)
			continue
		}
		t.callOnStop(func() { unix.Close(fd) })
	}
}

// removeFiles removes what is left of a task that the pod shim does not have.
func (t *task) removeFiles() error {
	t.saving.Lock()
	defer t.saving.Unlock()
	err := removeCgroup(t.record.Cgroup)
	if e := os.Remove(t.file()); e != nil && !errors.Is(e, os.ErrNotExist) {
		err = errors.Join(err, e)
	}
	return err
}
