package shims

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/selinux/go-selinux"
	"golang.org/x/sys/unix"

	"berth/bundle/podshim/plan"
	"berth/bundle/podshim/wire"
)

// files are the descriptors that are sent with a plan, indexed by wire.Stdin and so on; 0 is none.
type files [wire.FDCount]int

func (f *files) close() {
	for _, fd := range f {
		if fd > 0 {
			unix.Close(fd)
		}
	}
}

// openFiles opens containerd's FIFOs of the task, until ctx is done. An exec without a terminal has
// their ends itself. The pod shim holds the opposite ends, so that the exec does not read EOF
// before containerd has connected, and is not killed by SIGPIPE after containerd has exited. Other
// output is forwarded by the pod shim. The process's own ends get the SELinux label of the
// container's files, if any: it could not use containerd's.
func (t *task) openFiles(ctx context.Context, label string) (*files, error) {
	f := &files{}
	for i, path := range []string{t.record.Stdin, t.record.Stdout, t.record.Stderr} {
		if path == "" || i == wire.Stderr && t.record.Terminal {
			continue
		}
		pathFD, err := openFIFO(path)
		switch {
		case err != nil:
		case i != wire.Stdin && (t.parent == nil || t.record.Terminal):
			f[wire.CopyStdout+i-wire.Stdout] = pathFD
		default:
			if label != "" {
				err = selinux.SetFileLabel(path, label)
			}
			if err == nil {
				err = f.openEnds(ctx, i, pathFD)
			}
			unix.Close(pathFD)
		}
		if err != nil {
			f.close()
			return nil, &os.PathError{Op: "open", Path: path, Err: err}
		}
	}
	if err := f.addOutput(t); err != nil {
		f.close()
		return nil, err
	}
	return f, nil
}

// addOutput makes the pod shim read the process's output if it is logged or from a terminal. The
// shim's own reads never block it.
func (f *files) addOutput(t *task) error {
	if t.record.Terminal {
		f[wire.TerminalInput], f[wire.Stdin] = f[wire.Stdin], 0
		if f[wire.TerminalInput] == 0 {
			return nil
		}
		return unix.SetNonblock(f[wire.TerminalInput], true)
	}
	for i := wire.Stdout; t.parent == nil && i <= wire.Stderr; i++ {
		var ends [2]int
		if err := unix.Pipe2(ends[:], unix.O_CLOEXEC); err != nil {
			return fmt.Errorf("pipe: %w", err)
		}
		f[wire.ReadStdout+i-wire.Stdout], f[i] = ends[0], ends[1]
		if err := unix.SetNonblock(ends[0], true); err != nil {
			return fmt.Errorf("pipe: %w", err)
		}
	}
	return nil
}

// addStartCgroup makes the process start in its cgroup, if there is only cgroup v2: a later move
// costs milliseconds.
func (f *files) addStartCgroup(groups []plan.Cgroup) (err error) {
	dir, ok := plan.OnlyCgroup(groups)
	if !ok {
		return nil
	}
	if f[wire.StartCgroup], err = unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err != nil {
		return &os.PathError{Op: "open", Path: dir, Err: err}
	}
	return nil
}

// addMemoryEvents makes the pod shim read the kernel's OOM kill count when the container exits.
func (f *files) addMemoryEvents(groups []plan.Cgroup) {
	if dir, ok := plan.OnlyCgroup(groups); ok {
		if fd, err := unix.Open(filepath.Join(dir, "memory.events"), unix.O_RDONLY|unix.O_CLOEXEC, 0); err == nil { // else memory is not limited
			f[wire.MemoryEvents] = fd
		}
	}
}

// openFIFO opens a FIFO with O_PATH, without being one of its ends.
func openFIFO(path string) (int, error) {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFIFO {
		unix.Close(fd)
		return 0, fmt.Errorf("is no FIFO, and the pod shim supports no other streams: %w", errdefs.ErrInvalidArgument)
	}
	return fd, nil
}

// openEnds opens both ends of a FIFO: one for the process, one to hold. For output it waits until
// containerd reads: the content of a FIFO is lost with its last end, and the process may be
// short-lived.
func (f *files) openEnds(ctx context.Context, i, pathFD int) (err error) {
	if i == wire.Stdin {
		if f[i], err = openEnd(pathFD, unix.O_RDONLY); err == nil {
			f[wire.PeerStdin], err = openEnd(pathFD, unix.O_WRONLY)
		}
		return err
	}
	if f[i], err = awaitReader(ctx, pathFD); err == nil {
		f[wire.PeerStdin+i], err = openEnd(pathFD, unix.O_RDONLY)
	}
	return err
}

// openEnd opens an end of a FIFO without blocking: the writing end only if there is a reader.
func openEnd(pathFD, mode int) (int, error) {
	fd, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", pathFD), mode|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	if err := unix.SetNonblock(fd, false); err != nil { // the process uses this end
		unix.Close(fd)
		return 0, err
	}
	return fd, nil
}

// awaitReader opens the writing end of a FIFO when there is a reader. If containerd has given up,
// it removes the FIFO.
func awaitReader(ctx context.Context, pathFD int) (int, error) {
	for wait := time.Millisecond; ; wait = min(2*wait, 50*time.Millisecond) {
		fd, err := openEnd(pathFD, unix.O_WRONLY)
		if !errors.Is(err, unix.ENXIO) {
			return fd, err
		}
		var st unix.Stat_t
		if err := unix.Fstat(pathFD, &st); err != nil || st.Nlink == 0 {
			return 0, fmt.Errorf("no process reads the output: %w", os.ErrNotExist)
		}
		select {
		case <-ctx.Done():
			return 0, fmt.Errorf("no process reads the output: %w", ctx.Err())
		case <-time.After(wait):
		}
	}
}
