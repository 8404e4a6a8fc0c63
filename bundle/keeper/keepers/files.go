package keepers

import (
	"fmt"
	"os"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

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

// open opens the FIFOs that containerd has for the task. An exec without a terminal has their ends itself,
// and the keeper the others: it must not get the end of its input before containerd is there, and not be
// killed by what it writes after containerd has gone. The output of others goes by the keeper.
func (t *task) open() (*files, error) {
	f := &files{}
	for i, path := range []string{t.record.Stdin, t.record.Stdout, t.record.Stderr} {
		if path == "" || i == wire.Stderr && t.record.Terminal {
			continue
		}
		place, err := fifo(path)
		switch {
		case err != nil:
		case i != wire.Stdin && (t.of == nil || t.record.Terminal):
			f[wire.HeldStdin+i] = place
		default:
			err = f.ends(i, place)
			unix.Close(place)
		}
		if err != nil {
			f.close()
			return nil, &os.PathError{Op: "open", Path: path, Err: err}
		}
	}
	return f, nil
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

// ends opens both ends of a FIFO: one for the process, one to be held.
func (f *files) ends(i, place int) error {
	own, held := unix.O_WRONLY, unix.O_RDONLY
	if i == wire.Stdin {
		own, held = held, own
	}
	at := fmt.Sprintf("/proc/self/fd/%d", place)
	// While it is open for both, the other end is there, and an open does not wait.
	both, err := unix.Open(at, unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(both)
	for to, mode := range map[int]int{i: own, wire.HeldStdin + i: held} {
		if f[to], err = unix.Open(at, mode|unix.O_CLOEXEC, 0); err != nil {
			return err
		}
	}
	return nil
}
