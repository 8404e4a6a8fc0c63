package oom

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// recordBytes is more than the longest record.
const recordBytes = 16 << 10

// logPause is the time between two looks at the kernel log, unless a counter tells of a kill. The
// log has a record for every network interface that comes or goes and much else that is nothing to
// us: the agent is not to be woken by each.
const logPause = time.Second

// Log reads /dev/kmsg, where every reader has a place of its own.
func (host) Log(ctx context.Context, after uint64, now <-chan struct{}, put func(Record)) error {
	const path = "/dev/kmsg"
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open %s: %w", path, err)
	}
	defer unix.Close(fd)
	w, err := newWaker(fd)
	if err != nil {
		return fmt.Errorf("read %s: %w", path, err)
	}
	defer w.close()
	defer context.AfterFunc(ctx, w.close)()
	l := logReader{fd: fd, after: after, caughtUp: after > 0, put: put, buf: make([]byte, recordBytes)}
	var told time.Time // when now last told of something
	for {
		if err := l.read(ctx); err != nil {
			return fmt.Errorf("read %s: %w", path, err)
		}
		pause := logPause
		if time.Since(told) < logPause {
			pause = 0 // the record may be one of the next
		}
		select {
		case <-time.After(pause):
		case <-now:
			told = time.Now()
		case <-ctx.Done():
			return ctx.Err()
		}
		err := w.wait()
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			return fmt.Errorf("wait for %s: %w", path, err)
		}
	}
}

// logReader is a reader's place in the kernel log.
type logReader struct {
	fd          int
	after, last uint64
	caughtUp    bool // what was there at the beginning was read, or is wanted
	put         func(Record)
	buf         []byte
}

// read hands over what there is to read, or less when ctx is done.
func (l *logReader) read(ctx context.Context) error {
	for ctx.Err() == nil {
		n, err := unix.Read(l.fd, l.buf)
		switch {
		case errors.Is(err, unix.EAGAIN):
			if !l.caughtUp {
				l.caughtUp = true
				l.put(Record{Seq: l.last})
			}
			return nil
		case errors.Is(err, unix.EPIPE) || errors.Is(err, unix.EINTR):
			continue // the oldest records were overwritten: the next read has the oldest that is left
		case err != nil:
			return err
		}
		r, ok := parseRecord(l.buf[:n])
		if !ok {
			continue
		}
		if l.last = r.Seq; l.caughtUp && r.Seq > l.after && r.Text != "" {
			l.put(r)
		}
	}
	return nil
}

// waker waits for a file to be readable, and lets nothing wake the program but while it waits: an
// epoll descriptor with the file for one event at a time (EPOLLONESHOT), which is itself waited for
// by Go's poller. The poller alone is woken by every write to a file that it has.
type waker struct {
	epoll *os.File
	event unix.EpollEvent
	fd    int
}

func newWaker(fd int) (*waker, error) {
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("epoll: %w", err)
	}
	w := &waker{fd: fd, event: unix.EpollEvent{Events: unix.EPOLLONESHOT, Fd: int32(fd)}}
	err = unix.EpollCtl(epoll, unix.EPOLL_CTL_ADD, fd, &w.event)
	if err == nil {
		err = unix.SetNonblock(epoll, true) // for os.NewFile to hand it to the poller
	}
	w.epoll = os.NewFile(uintptr(epoll), "epoll")
	if err != nil {
		w.close()
		return nil, fmt.Errorf("epoll: %w", err)
	}
	return w, nil
}

// wait returns when the file can be read, or with an error after close.
func (w *waker) wait() error {
	raw, err := w.epoll.SyscallConn()
	if err != nil {
		return err
	}
	w.event.Events = unix.EPOLLIN | unix.EPOLLONESHOT
	var cerr error
	if err := raw.Control(func(epoll uintptr) { cerr = unix.EpollCtl(int(epoll), unix.EPOLL_CTL_MOD, w.fd, &w.event) }); err != nil || cerr != nil {
		return errors.Join(err, cerr)
	}
	events := make([]unix.EpollEvent, 1)
	var n int
	var werr error
	err = raw.Read(func(epoll uintptr) bool {
		n, werr = unix.EpollWait(int(epoll), events, 0)
		if errors.Is(werr, unix.EINTR) {
			n, werr = 1, nil // to be on the safe side: nothing to read is found out by reading
		}
		return n > 0 || werr != nil
	})
	return errors.Join(err, werr)
}

func (w *waker) close() { _ = w.epoll.Close() } // nothing was written; a second time is no harm
