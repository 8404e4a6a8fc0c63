package shims

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"

	"berth/bundle/podshim/plan"
	"berth/bundle/podshim/wire"
)

// errExited means that the pod shim has exited or was killed.
var errExited = errors.New("the pod shim of the pod has ended")

// link is a connection to a pod shim.
type link struct {
	conn    *net.UnixConn
	version atomic.Uint32 // of the messages, in both directions

	mu      sync.Mutex
	seq     uint32
	waiting map[uint32]chan result // closed when the connection ends
	closed  bool
}

type result struct {
	reply wire.Reply
	err   error
}

// withSocket calls use with a path of the socket in a pod's directory that fits into a socket
// address, however long the directory's path is.
func withSocket(dir string, use func(*net.UnixAddr) error) error {
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: dir, Err: err}
	}
	defer unix.Close(fd)
	return use(&net.UnixAddr{Name: fmt.Sprintf("/proc/self/fd/%d/socket", fd), Net: "unixpacket"})
}

// dial connects to the pod shim of a directory.
func dial(dir string) (*link, error) {
	var conn *net.UnixConn
	err := withSocket(dir, func(at *net.UnixAddr) (err error) {
		conn, err = net.DialUnix(at.Net, nil, at)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("connect to the pod shim of %s: %w", filepath.Base(dir), err)
	}
	l := &link{conn: conn, waiting: map[uint32]chan result{}}
	l.version.Store(wire.Version)
	return l, nil
}

// read calls handle for each message, in order, and before the caller that waits for it continues,
// until the pod shim exits.
func (l *link) read(handle func(wire.Reply)) {
	buf := make([]byte, wire.ReplySize+1)
	for {
		n, err := l.conn.Read(buf)
		if err != nil || n == 0 {
			break
		}
		r, err := wire.DecodeReply(buf[:n], l.version.Load())
		var other *wire.VersionError
		switch {
		case errors.As(err, &other):
			l.deliver(other.Seq, result{err: err})
			continue
		case err != nil:
			l.close(err)
			return
		}
		handle(r)
		if r.Op != wire.Exited && r.Op != wire.Listed {
			l.deliver(r.Seq, result{reply: r})
		}
	}
	l.close(errExited)
}

func (l *link) deliver(seq uint32, a result) {
	l.mu.Lock()
	ch := l.waiting[seq]
	delete(l.waiting, seq)
	l.mu.Unlock()
	if ch != nil {
		ch <- a
	}
}

func (l *link) close(err error) {
	l.conn.Close()
	l.mu.Lock()
	waiting := l.waiting
	l.waiting, l.closed = nil, true
	l.mu.Unlock()
	for _, ch := range waiting {
		ch <- result{err: err}
	}
}

// list requests the pod shim's containers. It is the first request, and sets the version of the
// link: the pod shim reports its version if a request has another one.
func (l *link) list() (wire.Reply, error) {
	q := wire.Request{Op: wire.List}
	r, err := l.call(q, nil, nil)
	var other *wire.VersionError
	if errors.As(err, &other) && other.Supported() {
		l.version.Store(other.Shim)
		r, err = l.call(q, nil, nil)
	}
	return r, err
}

// call sends a request and waits for the reply; files are sent with a plan. An error of the pod
// shim is a *shimError.
func (l *link) call(q wire.Request, p *plan.Plan, f *files) (wire.Reply, error) {
	ch := make(chan result, 1)
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return wire.Reply{}, errExited
	}
	l.seq++
	q.Seq = l.seq
	l.waiting[q.Seq] = ch
	l.mu.Unlock()
	if err := l.send(q, p, f); err != nil {
		l.mu.Lock()
		delete(l.waiting, q.Seq)
		l.mu.Unlock()
		if errors.Is(err, syscall.EPIPE) || errors.Is(err, net.ErrClosed) || errors.Is(err, syscall.ECONNRESET) {
			err = errExited
		}
		return wire.Reply{}, err
	}
	a := <-ch
	if a.err == nil && a.reply.Err != 0 {
		a.err = &shimError{q.Op, p.Describe(a.reply.Step, a.reply.Err), a.reply.Err}
	}
	return a.reply, a.err
}

func (l *link) send(q wire.Request, p *plan.Plan, more *files) error {
	if p == nil {
		b, err := q.Encode(l.version.Load())
		if err == nil {
			_, err = l.conn.Write(b)
		}
		return err
	}
	text, err := p.Bytes(l.version.Load())
	if err != nil {
		return err
	}
	f, err := sealedFile("plan", text, 0)
	if err != nil {
		return fmt.Errorf("plan: %w", err)
	}
	defer f.Close()
	fds := []int{int(f.Fd())}
	if more != nil {
		for i, fd := range more {
			if fd > 0 {
				q.FDMask |= 1 << i
				fds = append(fds, fd)
			}
		}
	}
	b, err := q.Encode(l.version.Load())
	if err != nil {
		return err
	}
	_, _, err = l.conn.WriteMsgUnix(b, unix.UnixRights(fds...), nil)
	return err
}

// sealedFile returns an immutable in-memory file.
func sealedFile(name string, text []byte, flags int) (*os.File, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING|flags)
	if err != nil {
		return nil, err
	}
	seals := unix.F_SEAL_WRITE | unix.F_SEAL_GROW | unix.F_SEAL_SHRINK | unix.F_SEAL_SEAL
	if flags&unix.MFD_EXEC != 0 { // also seal the execute bit: a process of a container that opens it may be root there
		seals |= unix.F_SEAL_EXEC
	}
	f := os.NewFile(uintptr(fd), name)
	if _, err = f.Write(text); err == nil {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// shimError is an error that a pod shim reports.
type shimError struct {
	op          wire.Op
	description string
	err         syscall.Errno
}

func (e *shimError) Error() string { return fmt.Sprintf("%s failed: %s", e.op, e.description) }

func (e *shimError) Unwrap() error { return e.err }
