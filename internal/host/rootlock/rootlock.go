// Package rootlock has the locks by which agents of one machine keep out of each other's way.
//
// Owns: the lock file in a root directory, the lock files of cgroup roots.
// Reads: nothing else.
// Never: holds a lock longer than the process lives.
package rootlock

import (
	"errors"
	"fmt"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// File is the file in the root directory whose lock an agent holds.
const File = "berth.lock"

// Lock makes the root directory and takes the lock on it: two agents on one root would each undo
// what the other does. The lock ends with the process.
func Lock(root string) (unlock func(), err error) {
	if err := os.MkdirAll(root, 0o750); err != nil {
		return nil, fmt.Errorf("root directory: %w", err)
	}
	f, err := lock(filepath.Join(root, File))
	if held, ok := errors.AsType[*heldError](err); ok {
		return nil, fmt.Errorf("root directory %s: another agent uses it (pid %s); stop it with \"berth stop\", or give this one its own --root-dir and --run-dir", root, held.pid)
	}
	if err != nil {
		return nil, err
	}
	return func() { f.Close() }, nil
}

// CgroupFolder is where the agents of this machine have the locks on their cgroup roots.
const CgroupFolder = "/run/berth-cgroups"

// LockCgroups takes the lock on a cgroup root, whose file is in the folder: the shares and limits
// of the cgroups that pods have in common follow from the pods of one agent, and two would each
// write theirs. It ends with the process. A kubelet takes no such lock.
func LockCgroups(folder, root string) (unlock func(), err error) {
	root = path.Clean("/" + root)
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return nil, fmt.Errorf("lock of cgroup root %s: %w", root, err)
	}
	file := filepath.Join(folder, url.PathEscape(root))
	f, err := lock(file)
	if held, ok := errors.AsType[*heldError](err); ok {
		return nil, fmt.Errorf("cgroup root %s: another agent uses it (pid %s); give this one its own --cgroup-root", root, held.pid)
	}
	if err != nil {
		return nil, err
	}
	return func() {
		_ = os.Remove(file) // the next agent of this root takes it as it is if it stays
		f.Close()
	}, nil
}

// heldError is that another process has the lock.
type heldError struct{ path, pid string }

func (e *heldError) Error() string { return fmt.Sprintf("lock %s: process %s has it", e.path, e.pid) }

// ended reports whether the process that took the lock is gone.
func (e *heldError) ended() bool {
	pid, err := strconv.Atoi(e.pid)
	return err == nil && pid > 0 && errors.Is(unix.Kill(pid, 0), unix.ESRCH)
}

// forkPatience is how long the lock of a process that has ended may still be held: a process that
// is killed while it starts another leaves a child which has all its files open until it executes
// its program.
const forkPatience = 2 * time.Second

// lock takes the lock on a file, which it makes, and writes the process id into it. The lock ends
// when the file is closed, at the latest with the process. On a read-only file system the file is
// locked as it is.
func lock(path string) (*os.File, error) {
	for limit := time.Now().Add(forkPatience); ; {
		f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|unix.O_CLOEXEC, 0o600)
		if errors.Is(err, unix.EROFS) {
			f, err = os.OpenFile(path, os.O_RDONLY|unix.O_CLOEXEC, 0)
		}
		if errors.Is(err, unix.EISDIR) || errors.Is(err, unix.ELOOP) {
			return nil, fmt.Errorf("lock: %w (remove it, if no agent runs: it must be a file)", err)
		}
		if err != nil {
			return nil, fmt.Errorf("lock: %w", err)
		}
		ours, err := lockOpen(f, path)
		if err == nil && ours {
			return f, nil
		}
		f.Close()
		if held, ok := errors.AsType[*heldError](err); ok && held.ended() && time.Now().Before(limit) {
			<-time.After(10 * time.Millisecond)
			continue
		}
		if err != nil {
			return nil, err
		}
	}
}

// lockOpen takes the lock on a file that was opened by the path. It is false if who had the lock
// before has removed the file meanwhile.
func lockOpen(f *os.File, path string) (ours bool, err error) {
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		pid, _ := os.ReadFile(path)
		return false, &heldError{path, strings.TrimSpace(string(pid))}
	}
	if err != nil {
		return false, fmt.Errorf("lock %s: %w", path, err)
	}
	opened, err := f.Stat()
	if err != nil {
		return false, fmt.Errorf("lock %s: %w", path, err)
	}
	if there, err := os.Stat(path); err != nil || !os.SameFile(opened, there) {
		return false, nil
	}
	// The number is for messages alone: a disk that takes none keeps nobody from the lock.
	if n, err := f.WriteAt(fmt.Appendf(nil, "%d\n", os.Getpid()), 0); err == nil {
		_ = f.Truncate(int64(n))
	}
	return true, nil
}

// IsReadOnly reports whether the file system of a root directory that agents have used takes no
// writes. An ext4 in which the kernel has found an error says so only to who writes: neither
// access(2) nor statfs(2) do.
func IsReadOnly(root string) bool {
	f, err := os.OpenFile(filepath.Join(root, File), os.O_WRONLY, 0)
	if err != nil {
		return errors.Is(err, unix.EROFS)
	}
	_ = f.Close() // nothing was written
	return false
}
