// Package rootlock has the locks that keep several agents on one machine apart.
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

// File is the lock file in the root directory.
const File = "berth.lock"

// Lock creates the root directory and locks it: two agents with one root would undo each other's
// work. The lock is released by unlock, or when the process exits.
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

// CgroupFolder is the directory of the lock files of cgroup roots on this machine.
const CgroupFolder = "/run/berth-cgroups"

// LockCgroups locks a cgroup root; its lock file is in folder. The values of shared cgroups depend
// on the pods of one agent, and two agents would overwrite each other's. The lock is released by
// unlock, or when the process exits. A kubelet does not take this lock.
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
		_ = os.Remove(file) // a remaining file does no harm
		f.Close()
	}, nil
}

// heldError means that another process holds the lock.
type heldError struct{ path, pid string }

func (e *heldError) Error() string { return fmt.Sprintf("lock %s: process %s has it", e.path, e.pid) }

// ended reports whether the process that took the lock has exited.
func (e *heldError) ended() bool {
	pid, err := strconv.Atoi(e.pid)
	return err == nil && pid > 0 && errors.Is(unix.Kill(pid, 0), unix.ESRCH)
}

// forkPatience is how long a lock may be held after its process has exited: a process that is
// killed while it starts another leaves a child that shares its files until it calls execve.
const forkPatience = 2 * time.Second

// lock creates and locks a file, and writes the PID to it. The lock is released when the file is
// closed, at the latest when the process exits. On a read-only file system it locks the existing
// file.
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

// lockOpen locks a file that was opened at the path. It returns false if the previous holder has
// removed the file meanwhile.
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
	// The PID is only for messages: a write error does not prevent locking.
	if n, err := f.WriteAt(fmt.Appendf(nil, "%d\n", os.Getpid()), 0); err == nil {
		_ = f.Truncate(int64(n))
	}
	return true, nil
}

// IsReadOnly reports whether the file system of a used root directory is read-only. It opens a file
// for writing, because neither access(2) nor statfs(2) report that the kernel has found an error in
// an ext4 file system.
func IsReadOnly(root string) bool {
	f, err := os.OpenFile(filepath.Join(root, File), os.O_WRONLY, 0)
	if err != nil {
		return errors.Is(err, unix.EROFS)
	}
	_ = f.Close() // nothing was written
	return false
}
