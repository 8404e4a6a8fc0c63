package server

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"
)

// ErrInUse is returned if another agent uses this run directory.
var ErrInUse = errors.New("another agent is running there")

// Listen opens the API's socket below runDir. The directory gets mode 0711, so that root users of
// user namespaces can traverse it to the runtime's mounts but not list it; the socket gets 0600,
// and connections of users other than root and the agent's own are closed. The socket of a killed
// agent is replaced; if an agent is running, the error is ErrInUse. Closing the listener removes
// the socket.
func Listen(runDir string, log *slog.Logger) (net.Listener, error) {
	path := SocketPath(runDir)
	// The length of sun_path (unix(7)); the kernel's own message is "invalid argument".
	if limit := len(unix.RawSockaddrUnix{}.Path) - 1; len(path) > limit {
		return nil, fmt.Errorf("socket %s: the path is %d bytes long, at most %d are possible: choose a shorter run directory", path, len(path), limit)
	}
	if err := os.MkdirAll(runDir, 0o711); err != nil {
		return nil, fmt.Errorf("run directory: %w", err)
	}
	if err := os.Chmod(runDir, 0o711); err != nil {
		return nil, fmt.Errorf("run directory: %w", err)
	}
	lock, err := lockRunDir(runDir)
	if err != nil {
		return nil, err
	}
	l, err := listenLocked(path)
	if err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	return &rootListener{UnixListener: l, lock: lock, log: log}, nil
}

// LockFile is the file in the run directory that the agent locks.
const LockFile = "berth.lock"

// lockRunDir takes the lock that distinguishes a running agent's socket from a stale one, even if
// two agents start at the same time.
func lockRunDir(runDir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(runDir, LockFile), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock of the run directory: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		if errors.Is(err, unix.EWOULDBLOCK) {
			err = fmt.Errorf("run directory %s: %w (stop it, or choose another --run-dir)", runDir, ErrInUse)
		} else {
			err = fmt.Errorf("lock %s: %w", f.Name(), err)
		}
		return nil, errors.Join(err, f.Close())
	}
	opened, err := f.Stat()
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	if current, err := os.Stat(f.Name()); err != nil || !os.SameFile(opened, current) {
		// An agent with AtExit RemoveAll has removed the file meanwhile.
		if err := f.Close(); err != nil {
			return nil, err
		}
		return lockRunDir(runDir)
	}
	return f, nil
}

func listenLocked(path string) (*net.UnixListener, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("remove the old socket: %w", err)
	}
	// Accept rejects clients that connect before the mode is set.
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// rootListener accepts only connections of root and the agent's own user: a socket can be passed on
// or mounted elsewhere, where the directory's mode does not protect it.
type rootListener struct {
	*net.UnixListener
	log *slog.Logger

	closing sync.Once
	lock    *os.File
}

func (l *rootListener) Accept() (net.Conn, error) {
	for {
		c, err := l.AcceptUnix()
		if err != nil {
			return nil, err
		}
		uid, err := peerUID(c)
		if err == nil && (uid == 0 || int(uid) == os.Geteuid()) {
			return c, nil
		}
		l.log.Warn("local API: connection refused", "uid", uid, "error", errors.Join(err, c.Close()))
	}
}

// Close closes the socket, removes it and releases the lock, in this order: the next agent must not
// find the old socket.
func (l *rootListener) Close() error {
	err := l.UnixListener.Close()
	l.closing.Do(func() { err = errors.Join(err, l.lock.Close()) })
	return err
}

// peerUID returns the user of the peer (unix(7), SO_PEERCRED).
func peerUID(c *net.UnixConn) (uint32, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, fmt.Errorf("peer credentials: %w", err)
	}
	var (
		cred    *unix.Ucred
		sockErr error
	)
	if err := raw.Control(func(fd uintptr) {
		cred, sockErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
		return 0, fmt.Errorf("peer credentials: %w", err)
	}
	if sockErr != nil {
		return 0, fmt.Errorf("peer credentials: %w", sockErr)
	}
	return cred.Uid, nil
}
