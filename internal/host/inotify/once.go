package inotify

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// Overflow is told in place of a watch when the kernel had no room to tell: any file may have been
// written to.
const Overflow = -1

// Once tells of the next write to a file, and then no more until it is asked again: a file that is
// written to all the time costs no more than one that is not.
type Once struct {
	file    *os.File // of the inotify instance
	written chan int
	stop    chan struct{}
	once    sync.Once
	done    sync.WaitGroup
}

// OpenOnce opens an inotify instance that watches nothing yet.
func OpenOnce() (*Once, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("open inotify: %w", explain(err))
	}
	o := &Once{file: os.NewFile(uintptr(fd), "inotify"), written: make(chan int), stop: make(chan struct{})}
	o.done.Go(o.forward)
	return o, nil
}

// Watch asks for the next write to an open file, and returns by which number it will be told. A
// file has the same number for as long as it is watched.
func (o *Once) Watch(file *os.File) (id int, err error) {
	rc, err := o.file.SyscallConn()
	if err != nil {
		return 0, err
	}
	path := "/proc/self/fd/" + strconv.Itoa(int(file.Fd()))
	if e := rc.Control(func(fd uintptr) { id, err = unix.InotifyAddWatch(int(fd), path, unix.IN_MODIFY|unix.IN_ONESHOT) }); e != nil {
		return 0, e
	}
	return id, explain(err)
}

// Forget gives up a watch. One that was told already is no error.
func (o *Once) Forget(id int) error {
	rc, err := o.file.SyscallConn()
	if err != nil {
		return err
	}
	if e := rc.Control(func(fd uintptr) { _, err = unix.InotifyRmWatch(int(fd), uint32(id)) }); e != nil {
		return e
	}
	if errors.Is(err, unix.EINVAL) {
		return nil
	}
	return err
}

// Written tells which watches saw a write, or Overflow. It is closed when nothing more can be told.
func (o *Once) Written() <-chan int { return o.written }

// Close ends all watches and returns when the goroutine behind them is gone.
func (o *Once) Close() error {
	o.once.Do(func() { close(o.stop) })
	err := o.file.Close()
	o.done.Wait()
	return err
}

func (o *Once) forward() {
	defer close(o.written)
	buf := make([]byte, 64*syscall.SizeofInotifyEvent)
	for {
		n, err := o.file.Read(buf)
		if err != nil {
			return
		}
		for b := buf[:n]; len(b) >= syscall.SizeofInotifyEvent; {
			// struct inotify_event: int wd; uint32_t mask, cookie, len; char name[len] (inotify(7))
			wd, mask, length := int32(binary.NativeEndian.Uint32(b)), binary.NativeEndian.Uint32(b[4:]), binary.NativeEndian.Uint32(b[12:])
			b = b[min(len(b), syscall.SizeofInotifyEvent+int(length)):]
			if mask&(unix.IN_MODIFY|unix.IN_Q_OVERFLOW) == 0 {
				continue // that the watch has ended
			}
			select {
			case o.written <- int(wd):
			case <-o.stop:
				return
			}
		}
	}
}
