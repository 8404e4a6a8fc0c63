package keepers

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

	"berth/bundle/keeper/plan"
	"berth/bundle/keeper/wire"
)

// files are the descriptors that go with a plan, by wire.Stdin and its like; 0 is none.
type files [wire.Files]int

func (f *files) close() {
	for _, fd := range f {
		if fd > 0 {
			unix.Close(fd)
		}
	}
}

// open opens the FIFOs that containerd has for the task, until the context ends. An exec without a terminal has their ends itself,
// and the keeper the others: it must not get the end of its input before containerd is there, and not be
// killed by what it writes after containerd has gone. The output of others goes by the keeper. What the process has
// itself gets the SELinux label of the container's files, if they have one: it could not use containerd's.
func (t *task) open(ctx context.Context, label string) (*files, error) {
	f := &files{}
	for i, path := range []string{t.record.Stdin, t.record.Stdout, t.record.Stderr} {
		if path == "" || i == wire.Stderr && t.record.Terminal {
			continue
		}
		place, err := fifo(path)
		switch {
		case err != nil:
		case i != wire.Stdin && (t.of == nil || t.record.Terminal):
			f[wire.CopyStdout+i-wire.Stdout] = place
		default:
			if label != "" {
				err = selinux.SetFileLabel(path, label)
			}
			if err == nil {
				err = f.ends(ctx, i, place)
			}
			unix.Close(place)
		}
		if err != nil {
			f.close()
			return nil, &os.PathError{Op: "open", Path: path, Err: err}
		}
	}
	if err := f.read(t); err != nil {
		f.close()
		return nil, err
	}
	return f, nil
}

// read has the keeper read what the process writes, if that is to be logged, or by its terminal. What the keeper
// reads itself does not keep it waiting.
func (f *files) read(t *task) error {
	if t.record.Terminal {
		f[wire.Typed], f[wire.Stdin] = f[wire.Stdin], 0
		if f[wire.Typed] == 0 {
			return nil
		}
		return unix.SetNonblock(f[wire.Typed], true)
	}
	for i := wire.Stdout; t.of == nil && i <= wire.Stderr; i++ {
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

// enter has the process begin in its cgroup, where that is of version 2 and there is no other: to go there later
// costs milliseconds.
func (f *files) enter(groups []plan.Cgroup) (err error) {
	dir, ok := plan.OnlyCgroup(groups)
	if !ok {
		return nil
	}
	if f[wire.Into], err = unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err != nil {
		return &os.PathError{Op: "open", Path: dir, Err: err}
	}
	return nil
}

// count has the keeper look whom the kernel has killed for want of memory, when the container ends.
func (f *files) count(groups []plan.Cgroup) {
	if dir, ok := plan.OnlyCgroup(groups); ok {
		if fd, err := unix.Open(filepath.Join(dir, "memory.events"), unix.O_RDONLY|unix.O_CLOEXEC, 0); err == nil { // else memory is not limited
			f[wire.MemoryEvents] = fd
		}
	}
}

// fifo opens the place of a FIFO, without being one of its ends.
func fifo(path string) (int, error) {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFIFO {
		unix.Close(fd)
		return 0, fmt.Errorf("is no FIFO, and the keeper takes no other streams: %w", errdefs.ErrInvalidArgument)
	}
	return fd, nil
}

// ends opens both ends of a FIFO: one for the process, one to be held. Output waits for containerd to read it:
// what is in a FIFO goes with its last end, and the process may be a short one.
func (f *files) ends(ctx context.Context, i, place int) (err error) {
	if i == wire.Stdin {
		if f[i], err = end(place, unix.O_RDONLY); err == nil {
			f[wire.HeldStdin], err = end(place, unix.O_WRONLY)
		}
		return err
	}
	if f[i], err = awaitReader(ctx, place); err == nil {
		f[wire.HeldStdin+i], err = end(place, unix.O_RDONLY)
	}
	return err
}

// end opens an end of a FIFO at once: the writing one if there is a reader.
func end(place, mode int) (int, error) {
	fd, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", place), mode|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	if err := unix.SetNonblock(fd, false); err != nil { // the process has this end
		unix.Close(fd)
		return 0, err
	}
	return fd, nil
}

// awaitReader opens the writing end of a FIFO when there is a reader, which containerd is soon, if it has not given
// up: it takes the FIFO away then.
func awaitReader(ctx context.Context, place int) (int, error) {
	for wait := time.Millisecond; ; wait = min(2*wait, 50*time.Millisecond) {
		fd, err := end(place, unix.O_WRONLY)
		if !errors.Is(err, unix.ENXIO) {
			return fd, err
		}
		var st unix.Stat_t
		if err := unix.Fstat(place, &st); err != nil || st.Nlink == 0 {
			return 0, fmt.Errorf("nobody reads the output: %w", os.ErrNotExist)
		}
		select {
		case <-ctx.Done():
			return 0, fmt.Errorf("nobody reads the output: %w", ctx.Err())
		case <-time.After(wait):
		}
	}
}
