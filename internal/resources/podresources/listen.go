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

// Listen listens on the socket of the API and replaces an existing file. It creates a missing
// directory with mode 0750; the socket has mode 0600: only root can connect, as with the kubelet's.
// If the socket or its directory is removed, it is recreated, and connections stay open. If another
// file replaces the socket, it is recreated only once that file is removed. Closing the listener
// removes the socket.
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

// socket is a listener that recreates its socket file when it is removed.
type socket struct {
	path      string
	log       *slog.Logger
	ending    chan struct{} // closed by Close
	following sync.WaitGroup

	mu     sync.Mutex
	bound  *net.UnixListener // guarded by mu
	file   fs.FileInfo       // guarded by mu; the created socket file
	failed error             // guarded by mu; why it could not be recreated
	closed bool              // guarded by mu
}

// watch watches one directory. It is not reused for a new directory at the same path: pending
// events of the old directory would remove the watch of the new one.
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

// follows reports whether the directory at the path is watched. A new directory may have the inode
// number of a deleted one; then the deletion event is pending, or has removed the watch.
func (w *watch) follows(dir string) bool {
	now, err := os.Stat(dir)
	return err == nil && os.SameFile(now, w.folder) && len(w.Watched()) > 0
}

// bind creates a socket with mode 0600. Closing the listener does not remove the file, which may
// belong to another process by then.
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

// follow recreates the socket whenever it is removed, until the listener is closed.
func (s *socket) follow(w *watch) {
	defer func() { _ = w.Close() }() // the error does not matter
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

// ensure creates the directory and the socket if necessary, and returns the watch to use. It
// retries if they are removed meanwhile.
func (s *socket) ensure(w *watch) (*watch, error) {
	for {
		next, err := s.tryEnsure(w)
		if w = next; !errors.Is(err, fs.ErrNotExist) {
			return w, err
		}
	}
}

// tryEnsure starts the watch before it checks the socket, so that no removal is missed.
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

// replace sets a new socket, and returns the old one.
func (s *socket) replace(l *net.UnixListener, file fs.FileInfo) *net.UnixListener {
	s.mu.Lock()
	defer s.mu.Unlock()
	old := s.bound
	s.bound, s.file = l, file
	return old
}

// fail stops the listener, because clients cannot find its socket.
func (s *socket) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failed = err
	_ = s.bound.Close() // wakes Accept, which returns failed
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
			return nil, err // unchanged: gRPC checks whether it is temporary
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

// end closes the socket, and removes its file unless it was replaced.
func (s *socket) end() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var removed error
	if file, err := os.Lstat(s.path); err == nil && os.SameFile(file, s.file) {
		removed = os.Remove(s.path)
	}
	err := s.bound.Close()
	if s.failed != nil {
		err = nil // fail has closed it
	}
	return errors.Join(removed, err)
}

// Addr implements net.Listener.
func (s *socket) Addr() net.Addr { return &net.UnixAddr{Name: s.path, Net: "unix"} }
