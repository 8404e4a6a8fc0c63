// Package keepers has containerd run pods by keepers: a sandbox controller and a task service in
// containerd's own process. Pods, containers and their exits outlive containerd in the keepers and in
// a folder for each pod, and are taken back from there.
//
// Owns: the folder "keepers" in containerd's state directory, the keepers, and the cgroups of their
// containers.
// Reads: the folders of tasks that containerd makes.
// Never: reads a container's output, or follows a path of a container.
package keepers

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

	"berth/bundle/keeper/wire"
)

// namespace is where containerd's CRI has its containers.
const namespace = "k8s.io"

// Keepers are the pods of one containerd.
type Keepers struct {
	program string // the keeper's path
	state   string // containerd's state directory
	dir     string
	events  atomic.Pointer[exchange.Exchange] // containerd's, when it has loaded its plugins

	mu     sync.Mutex
	pods   map[string]*pod
	tasks  map[string]*task // without those that were deleted
	copied *os.File         // see sealed
}

// New returns keepers without pods. program is the path of the keeper program.
func New(program string) *Keepers {
	return &Keepers{program: program, pods: map[string]*pod{}, tasks: map[string]*task{}}
}

// Serve takes the pods of a state directory back, and answers for their tasks from then on. It must
// be called before containerd loads its plugins: the one for tasks connects to each task that it
// finds, and takes one that does not answer away.
func (k *Keepers) Serve(state string) error {
	k.state, k.dir = state, filepath.Join(state, "keepers")
	// The state directory as containerd makes it, which is not there yet after a boot: root of a user
	// namespace must get to the bundles of its containers.
	if err := errors.Join(os.MkdirAll(state, 0o711), os.MkdirAll(k.dir, 0o700)); err != nil {
		return err
	}
	if err := k.lock(); err != nil {
		return err
	}
	k.removeHidden()
	entries, err := os.ReadDir(k.dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if !e.IsDir() {
			continue
		}
		if err := k.load(e.Name()); err != nil {
			return fmt.Errorf("pod %s: %w", e.Name(), err)
		}
	}
	return k.listen()
}

// sealed is the path of a copy of the keeper's program in memory, one for all pods, which is made when the first
// pod needs it: a containerd without keepers runs where there can be none. A container with an exec can open the
// program file of what is about to become the exec, and would otherwise write to the host's (CVE-2019-5736).
func (k *Keepers) sealed() (string, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.copied == nil {
		if err := k.seal(); err != nil {
			return "", fmt.Errorf("%s: %w", k.program, err)
		}
	}
	return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), k.copied.Fd()), nil
}

// seal makes that copy.
func (k *Keepers) seal() error {
	text, err := os.ReadFile(k.program)
	if err != nil {
		return err
	}
	f, err := sealed("keeper", text, unix.MFD_EXEC)
	if errors.Is(err, unix.EINVAL) { // Linux before 6.3, where each may be executed
		f, err = sealed("keeper", text, 0)
	}
	if err != nil {
		return fmt.Errorf("copy into memory (sysctl vm.memfd_noexec must not be 2): %w", err)
	}
	k.copied = f // open as long as this process lives
	return nil
}

// lockPatience is how long a held lock is waited for: one of a containerd that was killed is given
// back a moment later if it, or a process that it had just forked, is still ending.
const lockPatience = 3 * time.Second

// lock keeps a second containerd with the same state away: a keeper heeds who connects last. The
// kernel gives the lock back when this process ends.
func (k *Keepers) lock() error {
	path := filepath.Join(k.dir, "lock")
	open := func() (int, error) { return unix.Open(path, unix.O_RDWR|unix.O_CREAT|unix.O_CLOEXEC, 0o600) }
	fd, err := open()
	if errors.Is(err, unix.EISDIR) { // something has damaged the file system
		log.L.Warnf("keeper: %s is a folder, and is removed", path)
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
		if err == nil {
			return nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) || time.Now().After(limit) {
			unix.Close(fd)
			return fmt.Errorf("%s: another containerd serves the pods of this state directory: %w", path, err)
		}
	}
}

func (k *Keepers) socket() string { return filepath.Join(k.dir, "task.sock") }

// address is where containerd finds the task service.
func (k *Keepers) address() string { return "ttrpc+unix://" + k.socket() }

func (k *Keepers) listen() error {
	if err := os.RemoveAll(k.socket()); err != nil { // a folder may be in its place
		return err
	}
	l, err := net.Listen("unix", k.socket())
	if err != nil {
		return err
	}
	if err := os.Chmod(k.socket(), 0o600); err != nil {
		return err
	}
	server, err := ttrpc.NewServer()
	if err != nil {
		return err
	}
	taskapi.RegisterTTRPCTaskService(server, &tasks{k})
	go func() {
		if err := server.Serve(context.Background(), l); err != nil {
			log.L.Errorf("keeper: task service: %s", err)
		}
	}()
	return nil
}

// taskDir is where containerd has a folder for each task of a pod.
func (k *Keepers) taskDir() string {
	return filepath.Join(k.state, "io.containerd.runtime.v2.task", namespace)
}

// removeHidden takes away the folders of tasks that containerd was deleting when it was killed: it
// renames a folder first, and does not look at it again.
func (k *Keepers) removeHidden() {
	hidden, err := filepath.Glob(filepath.Join(k.taskDir(), ".[0-9a-f]*"))
	if err != nil {
		panic(err) // the pattern is wrong
	}
	for _, dir := range hidden {
		var at, below unix.Stat_t
		if unix.Lstat(dir, &at) == nil && unix.Lstat(filepath.Join(dir, "rootfs"), &below) == nil && at.Dev != below.Dev {
			continue // something is mounted there
		}
		if err := os.RemoveAll(dir); err != nil {
			log.L.Warnf("keeper: %s", err)
		}
	}
}

// load takes one pod back. An error is one that must not be passed over: its keeper may run.
func (k *Keepers) load(id string) error {
	p := newPod(filepath.Join(k.dir, id))
	err := readRecord(podFile(p.dir), &p.record)
	if errors.Is(err, os.ErrNotExist) { // nobody was told of it
		return p.undo()
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
		log.L.Errorf("keeper: pod %s is ended: %s", id, err)
		return k.end(context.Background(), id)
	}
	if err != nil {
		return err
	}
	selinux.ReserveLabel(p.record.Label)
	err = p.reconnect()
	if err != nil && !noKeeper(err) {
		return err
	}
	if err != nil {
		p.thaw()
		p.gone()
	}
	for _, t := range slices.Collect(maps.Values(p.tasks)) { // which those take themselves from that are ended
		if err := k.restore(t); err != nil {
			return fmt.Errorf("container %s: %w", t.record.ID, err)
		}
	}
	k.pods[id] = p
	return nil
}

// noKeeper reports whether an error of connect says that there is no keeper (any more).
func noKeeper(err error) bool {
	return errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ENOENT) || errors.Is(err, errGone)
}

// undo takes a pod away whose start was cut off.
func (p *pod) undo() error {
	err := p.reconnect()
	if err == nil {
		err = p.stop()
	}
	if err != nil && !noKeeper(err) {
		return err
	}
	return os.RemoveAll(p.dir)
}

// readTasks reads the files of a pod's tasks, as far as they can be read.
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
			t.ended()
		}
		p.tasks[t.record.ID] = t
	}
	return errors.Join(errs...)
}

// restore makes a task known again.
func (k *Keepers) restore(t *task) error {
	p := t.pod
	p.mu.Lock()
	known := p.listed[t.record.ID] || !p.alive()
	p.mu.Unlock()
	switch {
	case t.record.Deleted:
		if err := k.remake(t); err != nil {
			return err
		}
	case !known: // containerd was killed before it asked the keeper
		p.mu.Lock()
		delete(p.tasks, t.record.ID)
		p.mu.Unlock()
		return t.discard()
	case !t.findable(): // containerd takes it for ended, and starts another one in its place
		go t.endForgotten()
		return nil
	default:
		t.hold()
	}
	k.tasks[t.record.ID] = t
	return nil
}

// remake makes the folder again by which containerd knows a task, if it was deleted: containerd
// may not have written down the exit yet. It finds a stopped task then, and writes its exit down.
func (k *Keepers) remake(t *task) error {
	dir := t.record.Bundle
	if _, err := os.Stat(dir); err == nil {
		return nil
	}
	if err := os.MkdirAll(filepath.Join(dir, "rootfs"), 0o711); err != nil {
		return err
	}
	for name, text := range map[string]string{
		"shim-binary-path": k.program,
		"sandbox":          filepath.Base(t.pod.dir),
		"bootstrap.json":   fmt.Sprintf(`{"version":3,"address":%q,"protocol":"ttrpc"}`, "unix://"+k.socket()),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			return err
		}
	}
	return nil
}

// pod returns the pod of an id.
func (k *Keepers) pod(id string) (*pod, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if p := k.pods[id]; p != nil {
		return p, nil
	}
	return nil, fmt.Errorf("sandbox %s: %w", id, errdefs.ErrNotFound)
}

// forget takes away the file of an exit that containerd has written down: it has deleted the
// container.
func (k *Keepers) forget(id string) {
	k.mu.Lock()
	pods, runs := slices.Collect(maps.Values(k.pods)), k.tasks[id] != nil
	k.mu.Unlock()
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
		if err := t.discard(); err != nil {
			log.L.Errorf("keeper: container %s: %s", id, err)
		}
	}
}

// publish tells containerd's other parts what happened.
func (k *Keepers) publish(topic string, event events.Event) {
	to := k.events.Load()
	if to == nil {
		return
	}
	if err := to.Publish(namespaces.WithNamespace(context.Background(), namespace), topic, event); err != nil {
		log.L.Errorf("keeper: event %s: %s", topic, err)
	}
}
