package podresources

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"

	"berth/internal/host/inotify"
)

// Listen opens the socket of the API, in place of what is there. Its folder is made with mode 0750
// if it is missing, and the socket has mode 0600: root alone connects, as to the kubelet's. When
// somebody removes the socket, or the folder, it is made again; connections stay. One that somebody
// puts in its place is left alone until it goes. Closing the listener removes the socket.
func Listen(path string, log *slog.Logger) (net.Listener, error) {
	// The length of sun_path (unix(7)); the kernel's own message is "invalid argument".
	if limit := len(unix.RawSockaddrUnix{}.Path) - 1; len(path) > limit {
		return nil, fmt.Errorf("socket %s: the path is %d bytes long, at most %d are possible: choose a shorter root directory", path, len(path), limit)
	}
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return nil, fmt.Errorf("folder of socket: %w", err)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("remove the old socket: %w", err)
	}
	w, err := openWatch(dir)
	if err != nil {
		log.Warn("pod-resources API: the socket is not made again if it is removed: its folder is not watched", "socket", path, "error", err)
	}
	s := &socket{path: path, log: log, ending: make(chan struct{})}
	if s.bound, s.file, err = bind(path); err != nil {
		if w != nil {
			err = errors.Join(err, w.Close())
		}
		return nil, err
	}
	if w != nil {
		s.following.Go(func() { s.follow(w) })
	}
	return s, nil
}

// socket is a listener at a path, where it stays though others remove it.
type socket struct {
	path      string
	log       *slog.Logger
	ending    chan struct{} // closed by Close
	following sync.WaitGroup

	mu     sync.Mutex
	bound  *net.UnixListener // guarded by mu
	file   fs.FileInfo       // guarded by mu; the socket that it made
	failed error             // guarded by mu; why it could not be made again
	closed bool              // guarded by mu
}

// watch tells of changes in one folder. It is not used for another one at the same path: what is
// still to be told of the old folder would end the watch of the new one.
type watch struct {
	*inotify.Watch
	folder fs.FileInfo
}

func openWatch(dir string) (*watch, error) {
	w, err := inotify.Open()
	if err != nil {
		return nil, err
	}
	if err := w.Add(dir); err != nil {
		return nil, errors.Join(fmt.Errorf("watch %s: %w", dir, err), w.Close())
	}
	folder, err := os.Stat(dir)
	if err != nil {
		return nil, errors.Join(err, w.Close())
	}
	return &watch{w, folder}, nil
}

// follows reports whether what is at the path now is watched. A folder may get the number of one
// that is gone; then the end of that one is still to be told, or ended the watch.
func (w *watch) follows(dir string) bool {
	now, err := os.Stat(dir)
	return err == nil && os.SameFile(now, w.folder) && len(w.Watched()) > 0
}

// bind makes a socket that only its user connects to. Its file stays when the listener is closed:
// by then it may be somebody else's.
func bind(path string) (*net.UnixListener, fs.FileInfo, error) {
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, nil, err
	}
	l.SetUnlinkOnClose(false)
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, nil, errors.Join(err, l.Close())
	}
	file, err := os.Lstat(path)
	if err != nil {
		return nil, nil, errors.Join(err, l.Close())
	}
	return l, file, nil
}

// follow makes the socket again whenever it is gone, until the listener is closed.
func (s *socket) follow(w *watch) {
	defer func() { _ = w.Close() }() // nothing is lost by a failure
	for {
		select {
		case <-w.Events():
		case <-s.ending:
			return
		}
		var err error
		if w, err = s.ensure(w); err != nil {
			s.fail(err)
			return
		}
	}
}

// ensure makes the folder and the socket if one is missing, and returns the watch to go on with.
// What is removed in the middle of it is made again.
func (s *socket) ensure(w *watch) (*watch, error) {
	for {
		next, err := s.tryEnsure(w)
		if w = next; !errors.Is(err, fs.ErrNotExist) {
			return w, err
		}
	}
}

// tryEnsure has the folder watched before it looks for the socket, so that what happens in between
// is not missed.
func (s *socket) tryEnsure(w *watch) (*watch, error) {
	dir := filepath.Dir(s.path)
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return w, fmt.Errorf("folder of socket: %w", err)
	}
	if !w.follows(dir) {
		next, err := openWatch(dir)
		if err != nil {
			return w, err
		}
		old := w
		w = next
		if err := old.Close(); err != nil {
			return w, fmt.Errorf("end the watch of the old folder: %w", err)
		}
	}
	if _, err := os.Lstat(s.path); !errors.Is(err, fs.ErrNotExist) {
		return w, err
	}
	l, file, err := bind(s.path)
	if err != nil {
		return w, fmt.Errorf("make the socket again: %w", err)
	}
	s.log.Warn("The socket of the pod-resources API was removed, creating it again", "socket", s.path)
	return w, s.replace(l, file).Close()
}

// replace takes a new socket, and returns the one that nobody needs any more.
func (s *socket) replace(l *net.UnixListener, file fs.FileInfo) *net.UnixListener {
	s.mu.Lock()
	defer s.mu.Unlock()
	old := s.bound
	s.bound, s.file = l, file
	return old
}

// fail ends the listener: nobody finds it any more.
func (s *socket) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failed = err
	_ = s.bound.Close() // wakes Accept, which returns why
}

// Accept implements net.Listener.
func (s *socket) Accept() (net.Conn, error) {
	for {
		l, failed := s.current()
		if failed != nil {
			return nil, failed
		}
		c, err := l.Accept()
		if err == nil {
			return c, nil
		}
		if now, failed := s.current(); failed != nil {
			return nil, failed
		} else if now == l {
			return nil, err // as it is: gRPC asks whether it passes
		}
	}
}

func (s *socket) current() (*net.UnixListener, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.bound, s.failed
}

// Close implements net.Listener.
func (s *socket) Close() error {
	s.mu.Lock()
	closed := s.closed
	s.closed = true
	s.mu.Unlock()
	if closed {
		return nil
	}
	close(s.ending)
	s.following.Wait()
	return s.end()
}

// end closes the socket, and removes its file if that is still its own.
func (s *socket) end() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var removed error
	if file, err := os.Lstat(s.path); err == nil && os.SameFile(file, s.file) {
		removed = os.Remove(s.path)
	}
	err := s.bound.Close()
	if s.failed != nil {
		err = nil // it was closed by then
	}
	return errors.Join(removed, err)
}

// Addr implements net.Listener.
func (s *socket) Addr() net.Addr { return &net.UnixAddr{Name: s.path, Net: "unix"} }
