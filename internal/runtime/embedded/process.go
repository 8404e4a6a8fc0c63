package embedded

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// record identifies the containerd process and what it was started with. The PID alone could be
// reused; with start time and boot ID it is unique.
type record struct {
	Version   int    `json:"version"`
	PID       int    `json:"pid"`
	StartTime uint64 `json:"startTime"` // clock ticks since boot
	BootID    string `json:"bootID"`
	Bundle    string `json:"bundle"` // hash of the bundle that it was started from
	Config    string `json:"config"` // hash of its configuration
}

// sameAs reports whether a containerd with this record may be adopted instead of starting one with
// the other.
func (r record) sameAs(other record) bool {
	return r.Bundle == other.Bundle && r.Config == other.Config
}

// process is a running containerd, our child or not.
type process struct {
	record record
	child  *exec.Cmd // nil if adopted
	reap   sync.Once
	began  time.Time // when it was started or adopted

	mu sync.Mutex // guards fd
	fd int        // pidfd, non-blocking, readable when the process has exited; -1 once closed
}

// findProcess returns the containerd that is running on the root directory, and nil if there is
// none. One without its own record, because the run directory was lost, is found too: its empty
// record equals no other, so that it is replaced.
func findProcess(p paths) (*process, error) {
	var r record
	if err := readJSON(p.record, &r); err == nil {
		found, err := openProcess(r.PID, func() (bool, error) { return isOurs(p, "/proc", r) })
		if found != nil {
			found.record = r
		}
		if found != nil || err != nil {
			return found, err
		}
	}
	all, err := pids("/proc")
	if err != nil {
		return nil, err
	}
	for _, pid := range all {
		found, err := openProcess(pid, func() (bool, error) { return runsContainerd(p, "/proc", pid) })
		if found != nil || err != nil {
			return found, err
		}
	}
	return nil, nil
}

// openProcess opens a process if right returns true, and else returns nil. The pidfd is opened
// first, so that right inspects the process that the pidfd refers to.
func openProcess(pid int, right func() (bool, error)) (*process, error) {
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if errors.Is(err, unix.ESRCH) || errors.Is(err, unix.EINVAL) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("open process %d: %w", pid, err)
	}
	found := &process{record: record{PID: pid}, fd: fd, began: time.Now()}
	if same, err := right(); err != nil || !same {
		return nil, errors.Join(err, found.close())
	}
	return found, nil
}

// runsContainerd reports whether a process runs containerd from one of our bundles. A process that
// must not be inspected is not ours.
func runsContainerd(p paths, proc string, pid int) (bool, error) {
	exe, err := executable(proc, pid)
	if isExited(err) || errors.Is(err, fs.ErrPermission) {
		return false, nil
	}
	return strings.HasPrefix(exe, real(p.bundles)+"/") && strings.HasSuffix(exe, "/containerd"), err
}

// isOurs reports whether the process with the record's PID is the recorded one.
func isOurs(p paths, proc string, r record) (bool, error) {
	boot, err := bootID()
	if err != nil {
		return false, err
	}
	start, err := startTime(proc, r.PID)
	if isExited(err) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if r.BootID != boot || r.StartTime != start {
		return false, nil
	}
	return runsContainerd(p, proc, r.PID)
}

// startProcess starts containerd in its own session and records it. It outlives this process: no
// parent-death signal, no terminal, no pipe that would break.
func startProcess(p paths, env []string, r record) (*process, error) {
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd := exec.Command(p.current+"/bin/containerd", "--config", p.config)
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = "/", env, log, log
	pidfd := -1
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, PidFD: &pidfd}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start containerd: %w", err)
	}
	started := &process{record: r, child: cmd, began: time.Now(), fd: -1}
	if err := started.identify(pidfd); err != nil {
		return nil, errors.Join(err, cmd.Process.Kill(), ignoreExit(cmd.Wait()), started.close())
	}
	if err := writeJSON(p.record, started.record); err != nil {
		return nil, errors.Join(err, started.terminate(context.Background(), 0), started.close())
	}
	return started, nil
}

// identify completes the record of a process just started.
func (c *process) identify(pidfd int) (err error) {
	c.record.Version, c.record.PID = 1, c.child.Process.Pid
	if pidfd < 0 {
		if pidfd, err = unix.PidfdOpen(c.record.PID, 0); err != nil {
			return fmt.Errorf("open process %d: %w", c.record.PID, err)
		}
	}
	c.fd = pidfd
	if err := unix.SetNonblock(pidfd, true); err != nil {
		return err
	}
	if c.record.StartTime, err = startTime("/proc", c.record.PID); err != nil {
		return err
	}
	c.record.BootID, err = bootID()
	return err
}

// wait blocks until the process has exited, and returns its exit status, or until ctx is done, and
// returns its error. It occupies no thread: the pidfd is polled by the Go runtime. It may be called
// concurrently.
func (c *process) wait(ctx context.Context) (how string, err error) {
	fd, err := c.dup()
	if err != nil {
		return "", fmt.Errorf("process %d: %w", c.record.PID, err)
	}
	if fd == nil {
		return "let go of", nil
	}
	defer fd.Close()
	conn, err := fd.SyscallConn()
	if err != nil {
		return "", err
	}
	stop := context.AfterFunc(ctx, func() { _ = fd.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	var pollErr error
	err = conn.Read(func(fd uintptr) bool {
		ready, err := poll(int(fd))
		pollErr = err
		return ready || err != nil
	})
	switch {
	case pollErr != nil:
		return "", fmt.Errorf("process %d: poll: %w", c.record.PID, pollErr)
	case err != nil && ctx.Err() != nil:
		return "", ctx.Err()
	case err != nil:
		return "", fmt.Errorf("process %d: %w", c.record.PID, err)
	}
	return c.exitStatus(), nil
}

// dup returns a descriptor for one waiter, with its own deadline; nil if the process was closed.
func (c *process) dup() (*os.File, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.fd < 0 {
		return nil, nil
	}
	fd, err := unix.FcntlInt(uintptr(c.fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), "pidfd"), nil
}

// poll reports, without blocking, whether the process of a pidfd has exited.
func poll(fd int) (bool, error) {
	for {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
		if err != unix.EINTR {
			return n > 0, err
		}
	}
}

// exitStatus reaps our child and returns its exit status; that of other processes is unknown.
func (c *process) exitStatus() string {
	how := "not our child, its exit status is unknown"
	if c.child != nil {
		c.reap.Do(func() { _ = c.child.Wait() })
		how = c.child.ProcessState.String()
	}
	return how
}

// terminate sends SIGTERM, and SIGKILL after patience, and returns when the process has exited.
// Shims and containers keep running.
func (c *process) terminate(ctx context.Context, patience time.Duration) error {
	if patience > 0 {
		if err := c.signal(unix.SIGTERM); err != nil {
			return err
		}
		patient, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		if _, err := c.wait(patient); err == nil {
			return nil
		}
	}
	if err := c.signal(unix.SIGKILL); err != nil {
		return err
	}
	// Exit after SIGKILL is imminent, so a cancelled ctx must not interrupt the wait.
	_, err := c.wait(context.WithoutCancel(ctx))
	return err
}

func (c *process) signal(sig unix.Signal) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.fd < 0 {
		return nil
	}
	err := unix.PidfdSendSignal(c.fd, sig, nil, 0)
	if err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("process %d: send %v: %w", c.record.PID, sig, err)
	}
	return nil
}

// close releases the process without killing it; waiters are not affected. Idempotent.
func (c *process) close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.fd < 0 {
		return nil
	}
	fd := c.fd
	c.fd = -1
	return unix.Close(fd)
}

// ignoreExit drops errors that only report the exit status.
func ignoreExit(err error) error {
	if _, ok := errors.AsType[*exec.ExitError](err); ok {
		return nil
	}
	return err
}
