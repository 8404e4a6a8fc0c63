package devicemanager

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"google.golang.org/grpc"
	"k8s.io/apimachinery/pkg/util/wait"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"berth/internal/checkpoint"
	"berth/internal/health"
	"berth/internal/host/inotify"
	"berth/internal/host/selinux"
	"berth/internal/pod"
)

// socketName is the registration socket and deprecationName a file that refers plugins to the
// plugin watcher, both in the device plugin directory.
const (
	socketName      = "kubelet.sock"
	deprecationName = "DEPRECATION"
	deprecationText = "Device plugins should offer themselves through the plugin watcher, with a socket in the folder plugins_registry of the node agent.\n"
)

// retries is the back-off for serving the socket.
var retries = wait.Backoff{Duration: 500 * time.Millisecond, Factor: 2, Cap: 2 * time.Minute, Steps: math.MaxInt}

// writeAgain is the delay before a failed write of the file is retried.
const writeAgain = 10 * time.Second

// Run serves registrations until ctx is done. It may be called once.
func (m *Manager) Run(ctx context.Context) error {
	m.socket.removeSockets()
	m.plugins.ctx = ctx
	close(m.plugins.started)
	defer m.plugins.running.Wait()
	defer m.plugins.closeAll()
	m.plugins.running.Go(func() { m.tend(ctx) })
	return m.socket.serve(ctx, registration{plugins: m.plugins, dir: m.socket.dir})
}

func makeFolder(dir string) error {
	if err := selinux.MakePluginsDir("/", dir); err != nil {
		return fmt.Errorf("folder of device plugins: %w", err)
	}
	return nil
}

// removeSockets removes the sockets of plugins and of an earlier agent. Plugins that see this
// register again.
func (s *socket) removeSockets() {
	entries, err := os.ReadDir(s.dir)
	for _, e := range entries {
		if e.Type()&fs.ModeSocket != 0 {
			err = errors.Join(err, os.Remove(filepath.Join(s.dir, e.Name())))
		}
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		s.log.Warn("sockets from before are still in the folder of device plugins", "error", err)
	}
}

// tend expires resources of unavailable plugins, and persists changes of device lists.
func (m *Manager) tend(ctx context.Context) {
	next := time.NewTimer(0)
	defer next.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-m.store.changed:
		case <-next.C:
		}
		next.Stop()
		at := m.expire()
		if err := m.store.save(); err != nil {
			m.log.Warn("allocations of devices are not written, which is tried again", "in", writeAgain, "error", err)
			if again := time.Now().Add(writeAgain); at.IsZero() || again.Before(at) {
				at = again
			}
		}
		if !at.IsZero() {
			next.Reset(time.Until(at))
		}
	}
}

// expire expires the resources of unavailable plugins, and returns the time of the next expiry.
func (m *Manager) expire() time.Time {
	m.allocations.mu.Lock()
	gone, next := m.allocations.expire(time.Now())
	m.allocations.mu.Unlock()
	for _, name := range gone {
		m.log.Info("no device plugin has come back; the node has none of its resource any more", "resource", name, "after", forgetAfter)
	}
	if len(gone) > 0 {
		m.capacityChanged()
	}
	return next
}

// socket is the registration socket. Plugins watch it and register again when it is recreated.
type socket struct {
	dir       string
	listen    func(path string) (net.Listener, error)
	openWatch func() (Watch, error)
	log       *slog.Logger
	serving   health.Latch // why plugins cannot register

	server   *grpc.Server
	broken   chan net.Listener // receives listeners whose server has stopped
	listener net.Listener
	made     fs.FileInfo // the socket file that was created
	running  sync.WaitGroup
}

func (s *socket) serve(ctx context.Context, registration pluginapi.RegistrationServer) error {
	s.server = grpc.NewServer(grpc.MaxRecvMsgSize(64<<10), grpc.MaxConcurrentStreams(2*maxRegistrations), grpc.ConnectionTimeout(dialTimeout), grpc.WaitForHandlers(true))
	pluginapi.RegisterRegistrationServer(s.server, registration)
	defer s.running.Wait()
	defer s.server.Stop()
	logged := ""
	for delay := retries.DelayFunc(); ; {
		began := time.Now()
		err := s.follow(ctx)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if time.Since(began) > retries.Cap {
			delay, logged = retries.DelayFunc(), ""
		}
		s.serving.Set(err)
		if err.Error() != logged {
			logged = err.Error()
			s.log.Warn("the socket for device plugins is not watched or not served, which is tried again", "folder", s.dir, "error", err)
		}
		if !pod.Pause(ctx, delay()) {
			return ctx.Err()
		}
	}
}

// follow serves the socket, and recreates it when it is removed, until the watch fails or ctx is
// done.
func (s *socket) follow(ctx context.Context) error {
	if err := makeFolder(s.dir); err != nil {
		return err
	}
	if err := checkpoint.WriteWarm(filepath.Join(s.dir, deprecationName), 0o600, []byte(deprecationText)); err != nil {
		s.log.Warn("Failed to notify device plugins of the plugin watcher", "err", err)
	}
	watch, err := s.openWatch()
	if err == nil {
		defer watch.Close()
		// The removal of a directory is reported when its inode is deleted, which open sockets in
		// it delay. The watch of the parent directory reports it at once.
		err = errors.Join(watch.Add(filepath.Dir(s.dir)), watch.Add(s.dir))
	}
	// Without a watch plugins can still register.
	if err := errors.Join(s.ensure(ctx), err); err != nil {
		return err
	}
	s.serving.Set(nil)
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case l := <-s.broken:
			if err := s.lost(l); err != nil {
				return err
			}
		case e, ok := <-watch.Events():
			if !ok {
				return errors.New("the watch of the folder ended")
			}
			if e.Err == nil && e.Path != s.path() && e.Path != s.dir {
				continue
			}
			if e.Path == s.dir && (e.Deleted || e.Moved) {
				return errors.New("the folder of device plugins was removed or moved")
			}
		}
		if err := s.ensure(ctx); err != nil {
			return err
		}
	}
}

func (s *socket) path() string { return filepath.Join(s.dir, socketName) }

// ensure creates and serves the socket unless it exists.
func (s *socket) ensure(ctx context.Context) error {
	is, err := os.Lstat(s.path())
	switch {
	case err == nil && s.listener != nil && os.SameFile(is, s.made):
		return nil
	case err == nil:
		return fmt.Errorf("%s is not the one that was made here: another program serves device plugins, or left it; end that program and remove it", s.path())
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}
	if s.listener != nil {
		s.log.Warn("The socket for device plugins was removed, creating it again", "socket", s.path())
		s.drop()
	}
	l, err := s.listen(s.path())
	if err != nil {
		return err
	}
	if s.made, err = os.Lstat(s.path()); err != nil {
		return errors.Join(err, l.Close())
	}
	s.listener = l
	s.running.Go(func() {
		_ = s.server.Serve(l)
		select {
		case s.broken <- l:
		case <-ctx.Done():
		}
	})
	return nil
}

// lost removes the socket of a listener that stopped, so that ensure creates a new one. A replaced
// listener is ignored.
func (s *socket) lost(l net.Listener) error {
	if l != s.listener {
		return nil
	}
	s.drop()
	s.log.Warn("the socket for device plugins was not served any more", "socket", s.path())
	if is, err := os.Lstat(s.path()); err == nil && os.SameFile(is, s.made) {
		return os.Remove(s.path())
	}
	return nil
}

func (s *socket) drop() {
	if s.listener != nil {
		_ = s.listener.Close()
		s.listener = nil
	}
}

// listenUnix listens on a path. Closing the listener does not remove the path, which may belong to
// another process by then.
func listenUnix(path string) (net.Listener, error) {
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, err
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	return l, nil
}

var _ Watch = (*inotify.Watch)(nil)
