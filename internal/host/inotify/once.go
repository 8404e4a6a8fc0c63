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

// Overflow is sent in place of a watch ID when the kernel's queue was full: any file may have been
// written to.
const Overflow = -1

// Once reports the next write to a file, and then nothing until the watch is renewed: a file that
// is written to continuously costs no more than an idle one.
type Once struct {
	file    *os.File // the inotify instance
	written chan int
	stop    chan struct{}
	once    sync.Once
	done    sync.WaitGroup
}

// OpenOnce opens an inotify instance without watches.
func OpenOnce() (*Once, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("open inotify: %w", explain(err))
	}
	o := &Once{file: os.NewFile(uintptr(fd), "inotify"), written: make(chan int), stop: make(chan struct{})}
	o.done.Go(o.forward)
	return o, nil
}

// Watch watches for the next write to an open file, and returns the ID that Written will send. A
// file has the same ID while it is watched.
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

// Forget removes a watch. A watch that has fired already is not an error.
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

// Written returns the channel of the IDs of watches that saw a write, or Overflow. It is closed
// when the instance has failed or was closed.
func (o *Once) Written() <-chan int { return o.written }

// Close removes all watches and returns when the goroutine has exited.
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
				continue // the end of the watch
			}
			select {
			case o.written <- int(wd):
			case <-o.stop:
				return
			}
		}
	}
}
