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
	// MountLimit is how long the mount of a network filesystem may take. mount.nfs gives up by
	// itself after two minutes (nfs(5), retry) and says why, unless the kernel waits for a server
	// that it has known before.
	MountLimit = 3 * time.Minute
	// unmountLimit is how long the unmount of a network filesystem may wait for its server, before
	// it is done without.
	unmountLimit = time.Minute
	// answerLimit is how long a server may take to answer, when something else keeps the filesystem
	// from being unmounted.
	answerLimit = 15 * time.Second
)

// errNoAnswer says that a server did not answer in time.
var errNoAnswer = errors.New("the server does not answer")

// MountRemote mounts what a server has, or what else the kernel cannot mount by itself, at the
// target, and gives up when ctx is done. mount(8), which has a program for each of these and takes
// paths alone, mounts it where no container is; from there it comes to its place.
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

// leave unmounts what was mounted in passing, without its server, and removes the directory.
func leave(dir string) error {
	if err := unix.Unmount(dir, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil && !errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("unmount %s: %w", dir, err)
	}
	if err := unix.Rmdir(dir); err != nil {
		return &fs.PathError{Op: "rmdir", Path: dir, Err: err}
	}
	return nil
}

// Sweep removes what an agent that was killed has left half way.
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

// UnmountRemote unmounts what a server has. Where that does not answer, what waits for it fails,
// and what was not written there is lost: it may be what keeps the filesystem busy, and then the
// next try succeeds.
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

// Hidden commands of this program: what waits for a server in the kernel is given up only by the
// end of the process that waits.
const (
	childUnmount = "__unmount"
	childForce   = "__unmount-by-force"
	childAsk     = "__ask-server"
)

// parentFD is the descriptor that a child finds the directory under.
const parentFD = 3

// RunChild does the work of a hidden command if args (as os.Args) name one, and returns the exit
// code to end with. The main function of a program that uses UnmountRemote calls it before anything
// else.
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

// askServer asks the server of what is mounted on the name in the directory how full that is.
func askServer(parent int, name string) error {
	fd, err := unix.Openat(parent, name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return &fs.PathError{Op: "open", Path: name, Err: err}
	}
	defer unix.Close(fd)
	var st unix.Statfs_t
	return unix.Fstatfs(fd, &st)
}

// child runs this program again with a hidden command for what is mounted on the name in the
// directory. The error is what the child said.
func child(limit time.Duration, parent int, command, name string) error {
	dir, err := unix.FcntlInt(uintptr(parent), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(dir), safepath.Self(dir))
	defer f.Close()
	// The link is the program that runs, even if the file of its name was replaced or removed
	// meanwhile.
	out, err := runFor(context.Background(), limit, f, "/proc/self/exe", command, name)
	if said := strings.TrimSpace(string(out)); err != nil && said != "" && !errors.Is(err, errNoAnswer) {
		return errors.New(said)
	}
	return err
}

// runFor runs a program that waits for a server, with a file that it is handed, if any, and returns
// what it said. When ctx is done, or the limit is over, it is killed with the programs that it
// runs: what they wait for in the kernel is then given up.
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
