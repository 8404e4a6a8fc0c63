package oom

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// recordBytes is larger than the longest record.
const recordBytes = 16 << 10

// logPause is the interval of reads of the kernel log, unless a counter changes. The log has
// records for every network interface that is added or removed and for much else: the agent must
// not wake for each.
const logPause = time.Second

// Log reads /dev/kmsg, where every reader has its own position.
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
	var lastSignal time.Time // time of the last element of now
	for {
		if err := l.read(ctx); err != nil {
			return fmt.Errorf("read %s: %w", path, err)
		}
		pause := logPause
		if time.Since(lastSignal) < logPause {
			pause = 0 // the record may be among the next
		}
		select {
		case <-time.After(pause):
		case <-now:
			lastSignal = time.Now()
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

// logReader is a position in the kernel log.
type logReader struct {
	fd          int
	after, last uint64
	caughtUp    bool // the initial content was read, or is wanted
	put         func(Record)
	buf         []byte
}

// read calls put with all available records, or fewer when ctx is done.
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
			continue // records were overwritten: the next read returns the oldest remaining one
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

// waker waits until a file is readable, and prevents wake-ups at other times: an epoll descriptor
// with the file for one event at a time (EPOLLONESHOT), registered with Go's poller. The poller
// alone would wake for every write to the file.
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
		err = unix.SetNonblock(epoll, true) // so that os.NewFile registers it with the poller
	}
	w.epoll = os.NewFile(uintptr(epoll), "epoll")
	if err != nil {
		w.close()
		return nil, fmt.Errorf("epoll: %w", err)
	}
	return w, nil
}

// wait returns when the file is readable, or with an error after close.
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
			n, werr = 1, nil // to be safe: a read shows whether there is data
		}
		return n > 0 || werr != nil
	})
	return errors.Join(err, werr)
}

func (w *waker) close() { _ = w.epoll.Close() } // nothing was written; a second close is harmless
