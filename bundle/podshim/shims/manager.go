// Package shims makes containerd run pods with pod shims: a sandbox controller and a task service
// in containerd's own process. Pods, containers and their exits survive containerd in the pod shims
// and in a directory for each pod, and are restored from there.
//
// Owns: the directory "keepers" in containerd's state directory, the pod shims, and the cgroups of
// their containers.
// Reads: the task directories that containerd creates.
// Never: reads a container's output, or follows a path of a container.
package shims

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/containerd/v2/core/events"
	"github.com/containerd/containerd/v2/core/events/exchange"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/containerd/ttrpc"
	"github.com/opencontainers/selinux/go-selinux"
	"golang.org/x/sys/unix"

	"berth/bundle/podshim/wire"
)

// namespace is the namespace of containerd's CRI.
const namespace = "k8s.io"

// Names that processes and records of running pods carry. They date from when a pod shim was called
// "keeper": the release before this one must find the pods of this one, and this one those of that.
const (
	stateDir            = "keepers"
	programName         = "keeper"
	previousSandboxerID = "keeper"
)

// sandboxerID is the ID of the sandbox controller.
const sandboxerID = "podshim"

// Manager has the pods of one containerd.
type Manager struct {
	programPath string // path of the pod shim's program
	state       string // containerd's state directory
	dir         string
	events      atomic.Pointer[exchange.Exchange] // containerd's, after it has loaded its plugins

	mu      sync.Mutex
	pods    map[string]*pod
	tasks   map[string]*task // without deleted ones
	program *os.File         // see sealedProgram
}

// New returns a Manager without pods. program is the path of the pod shim's program.
func New(program string) *Manager {
	return &Manager{programPath: program, pods: map[string]*pod{}, tasks: map[string]*task{}}
}

// Serve restores the pods of a state directory, and serves their tasks from then on. It must be
// called before containerd loads its plugins: the task plugin connects to each task that it finds,
// and removes one that does not respond.
func (m *Manager) Serve(state string) error {
	m.state, m.dir = state, filepath.Join(state, stateDir)
	// The state directory may not exist after a boot. It gets containerd's mode: root of a user
	// namespace must be able to access the bundles of its containers.
	if err := errors.Join(os.MkdirAll(state, 0o711), os.MkdirAll(m.dir, 0o700)); err != nil {
		return err
	}
	if err := m.lock(); err != nil {
		return err
	}
	m.removeHidden()
	entries, err := os.ReadDir(m.dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if !e.IsDir() {
			continue
		}
		if err := m.load(e.Name()); err != nil {
			return fmt.Errorf("pod %s: %w", e.Name(), err)
		}
	}
	return m.listen()
}

// sealedProgram returns the path of an in-memory copy of the pod shim's program, which all pods
// share. It is created for the first pod, so that containerd also runs where a copy is impossible.
// A container with an exec can open the program file of the process that becomes the exec, and
// could otherwise write to the host's file (CVE-2019-5736).
func (m *Manager) sealedProgram() (string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.program == nil {
		if err := m.seal(); err != nil {
			return "", fmt.Errorf("%s: %w", m.programPath, err)
		}
	}
	return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), m.program.Fd()), nil
}

// seal creates that copy.
func (m *Manager) seal() error {
	text, err := os.ReadFile(m.programPath)
	if err != nil {
		return err
	}
	f, err := sealedFile(programName, text, unix.MFD_EXEC)
	if errors.Is(err, unix.EINVAL) { // Linux before 6.3, where every memfd is executable
		f, err = sealedFile(programName, text, 0)
	}
	if err != nil {
		return fmt.Errorf("copy into memory (sysctl vm.memfd_noexec must not be 2): %w", err)
	}
	m.program = f // open for the lifetime of this process
	return nil
}

// lockPatience is how long to wait for a held lock: after a kill of containerd, it is released when
// the process, and children that it had just forked, have exited.
const lockPatience = 3 * time.Second

// lock excludes a second containerd with the same state: a pod shim serves the last connection. The
// kernel releases the lock when this process exits.
func (m *Manager) lock() error {
	path := filepath.Join(m.dir, "lock")
	open := func() (int, error) { return unix.Open(path, unix.O_RDWR|unix.O_CREAT|unix.O_CLOEXEC, 0o600) }
	fd, err := open()
	if errors.Is(err, unix.EISDIR) { // the file system was damaged
		log.L.Warnf("podshim: %s is a directory: removing it", path)
		if err := os.RemoveAll(path); err != nil {
			return err
		}
		fd, err = open()
	}
	if err != nil {
		return &os.PathError{Op: "open", Path: path, Err: err}
	}
	for limit := time.Now().Add(lockPatience); ; time.Sleep(20 * time.Millisecond) {
		err := unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB)
		switch {
		case err == nil:
			return nil
		case errors.Is(err, unix.EINTR):
		case !errors.Is(err, unix.EWOULDBLOCK):
			unix.Close(fd)
			return &os.PathError{Op: "lock", Path: path, Err: err}
		case time.Now().After(limit):
			unix.Close(fd)
			return fmt.Errorf("%s: another containerd serves the pods of this state directory: %w", path, err)
		}
	}
}

func (m *Manager) socket() string { return filepath.Join(m.dir, "task.sock") }

// address returns the address of the task service.
func (m *Manager) address() string { return "ttrpc+unix://" + m.socket() }

func (m *Manager) listen() error {
	if err := os.RemoveAll(m.socket()); err != nil { // it may be a directory
		return err
	}
	l, err := net.Listen("unix", m.socket())
	if err != nil {
		return err
	}
	if err := os.Chmod(m.socket(), 0o600); err != nil {
		return err
	}
	server, err := ttrpc.NewServer()
	if err != nil {
		return err
	}
	taskapi.RegisterTTRPCTaskService(server, &tasks{m})
	go func() {
		if err := server.Serve(context.Background(), l); err != nil {
			log.L.Errorf("podshim: task service: %s", err)
		}
	}()
	return nil
}

// taskDir returns containerd's directory with one directory for each task of a pod.
func (m *Manager) taskDir() string {
	return filepath.Join(m.state, "io.containerd.runtime.v2.task", namespace)
}

// removeHidden removes the directories of tasks that containerd was deleting when it was killed: it
// renames a directory first, and does not retry.
func (m *Manager) removeHidden() {
	hidden, err := filepath.Glob(filepath.Join(m.taskDir(), ".[0-9a-f]*"))
	if err != nil {
		panic(err) // the pattern is invalid
	}
	for _, dir := range hidden {
		var at, below unix.Stat_t
		if unix.Lstat(dir, &at) == nil && unix.Lstat(filepath.Join(dir, "rootfs"), &below) == nil && at.Dev != below.Dev {
			continue // it contains a mount
		}
		if err := os.RemoveAll(dir); err != nil {
			log.L.Warnf("podshim: %s", err)
		}
	}
}

// load restores one pod. Its errors must not be ignored: the pod shim may be running.
func (m *Manager) load(id string) error {
	p := newPod(filepath.Join(m.dir, id))
	err := readRecord(podFile(p.dir), &p.record)
	if errors.Is(err, os.ErrNotExist) { // the pod was never reported
		return p.removeIncomplete()
	}
	if err == nil && p.record.ID != id {
		err = fmt.Errorf("%s: %w: it is of pod %q", podFile(p.dir), errDamaged, p.record.ID)
	}
	if err == nil {
		err = p.readTasks()
	}
	if err == nil {
		err = p.checkFiles()
	}
	if errors.Is(err, errDamaged) {
		log.L.Errorf("podshim: pod %s is ended: %s", id, err)
		return m.stopPod(context.Background(), id)
	}
	if err != nil {
		return err
	}
	selinux.ReserveLabel(p.record.Label)
	err = p.reconnect()
	if err != nil && !isExited(err) {
		return err
	}
	if err != nil {
		p.thaw()
		p.markExited()
	}
	for _, t := range slices.Collect(maps.Values(p.tasks)) { // killed tasks remove themselves from the map
		if err := m.restore(t); err != nil {
			return fmt.Errorf("container %s: %w", t.record.ID, err)
		}
	}
	m.pods[id] = p
	return nil
}

// isExited reports whether an error of connect means that there is no pod shim (any more).
func isExited(err error) bool {
	return errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ENOENT) || errors.Is(err, errExited)
}

// removeIncomplete removes a pod whose start was interrupted.
func (p *pod) removeIncomplete() error {
	err := p.reconnect()
	if err == nil {
		err = p.stop()
	}
	if err != nil && !isExited(err) {
		return err
	}
	return os.RemoveAll(p.dir)
}

// readTasks reads the records of a pod's tasks, as far as they are readable.
func (p *pod) readTasks() error {
	files, err := filepath.Glob(taskFile(p.dir, "*"))
	if err != nil {
		return err
	}
	var errs []error
	for _, file := range files {
		t := &task{pod: p, done: make(chan struct{}), execs: map[string]*task{}}
		err := readRecord(file, &t.record)
		if err == nil && (taskFile(p.dir, t.record.ID) != file || t.record.Cgroup == "") {
			err = fmt.Errorf("%s: %w: it is of task %q in cgroup %q", file, errDamaged, t.record.ID, t.record.Cgroup)
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if t.record.Deleted {
			t.state = wire.Stopped
			t.markStopped()
		}
		p.tasks[t.record.ID] = t
	}
	return errors.Join(errs...)
}

// restore restores a task.
func (m *Manager) restore(t *task) error {
	p := t.pod
	p.mu.Lock()
	known := p.listed[t.record.ID] || !p.alive()
	p.mu.Unlock()
	switch {
	case t.record.Deleted:
		if err := m.recreateDir(t); err != nil {
			return err
		}
	case !known: // containerd was killed before it sent the request to the pod shim
		p.mu.Lock()
		delete(p.tasks, t.record.ID)
		p.mu.Unlock()
		return t.removeFiles()
	case !t.hasBootstrapFile(): // containerd treats it as exited, and starts another one
		go t.killForgotten()
		return nil
	default:
		t.holdFIFOs()
	}
	m.tasks[t.record.ID] = t
	return nil
}

// recreateDir recreates a task's deleted directory, by which containerd finds the task: containerd
// may not have persisted the exit yet. It then finds a stopped task, and persists its exit.
func (m *Manager) recreateDir(t *task) error {
	dir := t.record.Bundle
	if _, err := os.Stat(dir); err == nil {
		return nil
	}
	if err := os.MkdirAll(filepath.Join(dir, "rootfs"), 0o711); err != nil {
		return err
	}
	for name, text := range map[string]string{
		"shim-binary-path": m.programPath,
		"sandbox":          filepath.Base(t.pod.dir),
		"bootstrap.json":   fmt.Sprintf(`{"version":3,"address":%q,"protocol":"ttrpc"}`, "unix://"+m.socket()),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			return err
		}
	}
	return nil
}

// pod returns the pod with an ID.
func (m *Manager) pod(id string) (*pod, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if p := m.pods[id]; p != nil {
		return p, nil
	}
	return nil, fmt.Errorf("sandbox %s: %w", id, errdefs.ErrNotFound)
}

// removeExit removes the record of an exit that containerd has persisted: it has deleted the
// container.
func (m *Manager) removeExit(id string) {
	m.mu.Lock()
	pods, runs := slices.Collect(maps.Values(m.pods)), m.tasks[id] != nil
	m.mu.Unlock()
	for _, p := range pods {
		p.mu.Lock()
		t := p.tasks[id]
		if t != nil && t.state == wire.Stopped && !runs {
			delete(p.tasks, id)
		} else {
			t = nil
		}
		p.mu.Unlock()
		if t == nil {
			continue
		}
		if err := t.removeFiles(); err != nil {
			log.L.Errorf("podshim: container %s: %s", id, err)
		}
	}
}

// publish publishes an event in containerd.
func (m *Manager) publish(topic string, event events.Event) {
	to := m.events.Load()
	if to == nil {
		return
	}
	if err := to.Publish(namespaces.WithNamespace(context.Background(), namespace), topic, event); err != nil {
		log.L.Errorf("podshim: event %s: %s", topic, err)
	}
}
