package mounts

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	mount "k8s.io/mount-utils"

	"berth/internal/host/safepath"
)

const (
	// MountLimit is the timeout of mounting a network filesystem. mount.nfs stops retrying after
	// two minutes (nfs(5), retry) and reports the reason, unless the kernel waits for a server to
	// which it was connected before.
	MountLimit = 3 * time.Minute
	// unmountLimit is how long the unmount of a network filesystem waits for its server, before it
	// is forced.
	unmountLimit = time.Minute
	// answerLimit is the timeout of a server's answer, when something else keeps the filesystem
	// busy.
	answerLimit = 15 * time.Second
)

// errNoAnswer means that a server did not answer in time.
var errNoAnswer = errors.New("the server does not answer")

// MountRemote mounts a network filesystem, or another one that needs a helper of mount(8), at the
// target; it returns an error when ctx is done. mount(8) accepts only paths, so it mounts in a
// directory that containers cannot access, from which the mount is moved to the target.
func (m *Mounter) MountRemote(ctx context.Context, source, target, fsType string, options []string) (err error) {
	if err := os.MkdirAll(m.passage, 0o700); err != nil {
		return err
	}
	dir, err := os.MkdirTemp(m.passage, "")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, leave(dir)) }()
	args := mount.MakeMountArgs(source, dir, fsType, options)
	out, err := runFor(ctx, MountLimit, nil, "mount", args...)
	if err != nil {
		return fmt.Errorf("%smount failed: %w\nMounting command: mount\nMounting arguments: %s\nOutput: %s", advise(os.DirFS("/"), fsType, string(out)), err, strings.Join(args, " "), out)
	}
	tree, err := unix.OpenTree(unix.AT_FDCWD, dir, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return fmt.Errorf("open_tree: %w", err)
	}
	defer unix.Close(tree)
	return m.attach(tree, target, parseOptions(nil))
}

// leave unmounts a temporary mount, without its server, and removes the directory.
func leave(dir string) error {
	if err := unix.Unmount(dir, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil && !errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("unmount %s: %w", dir, err)
	}
	if err := unix.Rmdir(dir); err != nil {
		return &fs.PathError{Op: "rmdir", Path: dir, Err: err}
	}
	return nil
}

// Sweep removes temporary mounts of an agent that was killed.
func (m *Mounter) Sweep() error {
	entries, err := os.ReadDir(m.passage)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, e := range entries {
		err = errors.Join(err, leave(filepath.Join(m.passage, e.Name())))
	}
	return err
}

// UnmountRemote unmounts a network filesystem. If the server does not answer, operations that wait
// for it fail, and unwritten data are lost: they may keep the filesystem busy, and then the next
// attempt succeeds.
func (m *Mounter) UnmountRemote(target string) error {
	err := m.files.In(target, func(parent int, name string) error {
		err := child(unmountLimit, parent, childUnmount, name)
		gone := errors.Is(err, errNoAnswer)
		if err != nil && !gone {
			gone = errors.Is(child(answerLimit, parent, childAsk, name), errNoAnswer)
		}
		if gone {
			err = child(unmountLimit, parent, childForce, name)
		}
		return err
	})
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("unmount %s: %w", target, err)
	}
	return nil
}

// Hidden commands of this program: an operation that waits for a server in the kernel ends only
// with its process.
const (
	childUnmount = "__unmount"
	childForce   = "__unmount-by-force"
	childAsk     = "__ask-server"
)

// parentFD is the child's descriptor of the directory.
const parentFD = 3

// RunChild runs a hidden command if args (as os.Args) name one, and returns the exit code. The main
// function of a program that uses UnmountRemote must call it first.
func RunChild(args []string) (handled bool, exitCode int) {
	if len(args) != 3 {
		return false, 0
	}
	var err error
	switch name := args[2]; args[1] {
	case childUnmount:
		err = unmountAt(parentFD, name, 0)
	case childForce:
		err = unmountAt(parentFD, name, unix.MNT_FORCE)
	case childAsk:
		err = askServer(parentFD, name)
	default:
		return false, 0
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return true, 1
	}
	return true, 0
}

// askServer calls statfs of the mount on the name in the directory, which its server must answer.
func askServer(parent int, name string) error {
	fd, err := unix.Openat(parent, name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return &fs.PathError{Op: "open", Path: name, Err: err}
	}
	defer unix.Close(fd)
	var st unix.Statfs_t
	return unix.Fstatfs(fd, &st)
}

// child runs this program with a hidden command for the mount on the name in the directory. The
// error is the output of the child.
func child(limit time.Duration, parent int, command, name string) error {
	dir, err := unix.FcntlInt(uintptr(parent), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(dir), safepath.Self(dir))
	defer f.Close()
	// /proc/self/exe is the running program, even if its file was replaced or removed.
	out, err := runFor(context.Background(), limit, f, "/proc/self/exe", command, name)
	if said := strings.TrimSpace(string(out)); err != nil && said != "" && !errors.Is(err, errNoAnswer) {
		return errors.New(said)
	}
	return err
}

// runFor runs a program that waits for a server, with an optional file descriptor, and returns its
// output. When ctx is done or the limit has passed, it kills the process group, which aborts waits
// in the kernel.
func runFor(ctx context.Context, limit time.Duration, handed *os.File, name string, args ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("given up after %s: %w", limit, errNoAnswer))
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	if handed != nil {
		cmd.ExtraFiles = []*os.File{handed}
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error {
		if err := unix.Kill(-cmd.Process.Pid, unix.SIGKILL); !errors.Is(err, unix.ESRCH) {
			return err
		}
		return os.ErrProcessDone
	}
	out, err := cmd.CombinedOutput()
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return out, err
}
