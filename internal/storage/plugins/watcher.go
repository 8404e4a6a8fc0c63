package plugins

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"math"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/util/wait"

	"berth/internal/health"
	"berth/internal/host/inotify"
	"berth/internal/host/selinux"
	"berth/internal/pod"
)

// Plugin types as in GetInfo (k8s.io/kubelet, pluginregistration/v1).
const (
	CSIPlugin    = "CSIPlugin"
	DevicePlugin = "DevicePlugin"
	DRAPlugin    = "DRAPlugin"
)

// Handler handles the plugins of one type. Its methods are called sequentially for one socket, and
// concurrently for several.
type Handler interface {
	// ValidatePlugin rejects a plugin that cannot be used.
	ValidatePlugin(name, endpoint string, versions []string) error
	// RegisterPlugin registers the plugin. After an error, it is not registered.
	RegisterPlugin(ctx context.Context, name, endpoint string, versions []string) error
	// DeregisterPlugin is called when the plugin's socket has been removed.
	DeregisterPlugin(name, endpoint string)
}

// Watch reports changes of the entries of directories, without subdirectories.
type Watch interface {
	// Add watches the directory. It may be called again for the same one.
	Add(folder string) error
	// Events is closed when the watch is broken.
	Events() <-chan inotify.Event
	// Close stops the watch and returns when its goroutines have exited.
	Close() error
}

// Config is the configuration of a Watcher.
type Config struct {
	// Dir is the directory of the sockets, <root>/plugins_registry; it is created if it is missing.
	Dir string
	// Handlers has the handlers by plugin type.
	Handlers map[string]Handler
	// Watch opens a watch; nil uses inotify.
	Watch func() (Watch, error)
	// Dial connects to a socket; nil uses the machine's.
	Dial func(ctx context.Context, socket string) (net.Conn, error)
	// Metrics is where metrics are registered; nil: they are not.
	Metrics prometheus.Registerer
	Log     *slog.Logger
}

// Watcher (plugin watcher, pluginManager) registers the plugins of this machine.
type Watcher struct {
	Config
	metrics *metrics

	sockets map[string]*socket // by path; owned by the goroutine of Run
	ending  map[string]*socket // by path; the last removed ones, of the same goroutine
	running sync.WaitGroup     // registrations
	health  health.Latches     // by path: why a plugin is not registered, or Dir not watched
}

// socket is an existing socket.
type socket struct {
	identity identity
	gone     context.CancelCauseFunc
	done     chan struct{} // closed when its plugin is deregistered
}

// identity distinguishes a socket from one that replaces it.
type identity struct {
	device, inode uint64
	made          unix.StatxTimestamp
}

// New returns a Watcher, which watches nothing before Run.
func New(cfg Config) (*Watcher, error) {
	if !filepath.IsAbs(cfg.Dir) {
		return nil, fmt.Errorf("folder of plugin sockets %q: must be an absolute path", cfg.Dir)
	}
	if cfg.Watch == nil {
		cfg.Watch = func() (Watch, error) { return inotify.Open() }
	}
	if cfg.Dial == nil {
		cfg.Dial = func(ctx context.Context, socket string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		}
	}
	return &Watcher{Config: cfg, metrics: newMetrics(cfg.Metrics), sockets: map[string]*socket{}, ending: map[string]*socket{}}, nil
}

// errSocketGone ends a registration because its socket was removed, rather than the agent stopped.
var errSocketGone = errors.New("the plugin's socket is gone")

// retries is the back-off of attempts to open a watch, and to register a plugin.
var retries = wait.Backoff{Duration: 500 * time.Millisecond, Factor: 2, Cap: 2*time.Minute + 2*time.Second, Steps: math.MaxInt}

// Run registers plugins until ctx is done. They then stay registered with their handlers: a
// restarted agent finds them again.
func (w *Watcher) Run(ctx context.Context) error {
	defer w.running.Wait()
	if err := selinux.MakePluginsDir("/", w.Dir); err != nil {
		return fmt.Errorf("folder of plugin sockets: %w", err)
	}
	told := ""
	for delay := retries.DelayFunc(); ; {
		began := time.Now()
		err := w.follow(ctx)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if time.Since(began) > retries.Cap {
			delay, told = retries.DelayFunc(), ""
		}
		w.health.Set(w.Dir, fmt.Errorf("%s: %w", w.Dir, err))
		if err.Error() != told {
			told = err.Error()
			w.Log.Warn("Failed to watch plugin sockets, will retry",
				"folder", w.Dir, "after", fmt.Sprintf("%v to %v", retries.Duration, retries.Cap), "error", err)
		}
		if err := w.inspectAll(ctx, unwatched{}); err != nil {
			w.Log.Debug("plugin sockets are not seen", "folder", w.Dir, "error", err)
		}
		if !pod.Pause(ctx, delay()) {
			return ctx.Err()
		}
	}
}

// Health returns the plugins that are not registered, and why; nil if all are.
func (w *Watcher) Health() error { return w.health.Err() }

// unwatched is a Watch without events.
type unwatched struct{}

func (unwatched) Add(string) error             { return nil }
func (unwatched) Events() <-chan inotify.Event { return nil }
func (unwatched) Close() error                 { return nil }

// follow watches until the watch breaks or ctx is done.
func (w *Watcher) follow(ctx context.Context) error {
	if err := selinux.MakePluginsDir("/", w.Dir); err != nil { // it was removed
		return err
	}
	watch, err := w.Watch()
	if err != nil {
		return err
	}
	defer watch.Close()
	// The removal of a directory is reported only when its inode is freed, which open sockets in it
	// delay. Its parent reports it at once.
	if err := watch.Add(filepath.Dir(w.Dir)); err != nil {
		return err
	}
	if err := w.inspectAll(ctx, watch); err != nil {
		return err
	}
	w.health.Set(w.Dir, nil)
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case e, ok := <-watch.Events():
			switch {
			case !ok:
				return errors.New("the watch ended")
			case e.Err != nil:
				err = w.inspectAll(ctx, watch)
			case e.Path == w.Dir && (e.Deleted || e.Moved):
				return errors.New("the folder was removed or moved")
			case e.Path == w.Dir || strings.HasPrefix(e.Path, w.Dir+"/"):
				err = w.inspect(ctx, watch, e.Path)
			}
			if err != nil {
				return err
			}
		}
	}
}

// inspectAll checks all known sockets and the directory.
func (w *Watcher) inspectAll(ctx context.Context, watch Watch) error {
	for path := range w.sockets {
		if err := w.inspect(ctx, watch, path); err != nil {
			return err
		}
	}
	return w.inspect(ctx, watch, w.Dir)
}

// inspect checks the path. A directory is watched before it is read, so that no entry is missed.
func (w *Watcher) inspect(ctx context.Context, watch Watch, path string) error {
	if path != w.Dir && strings.HasPrefix(filepath.Base(path), ".") {
		return nil
	}
	var st unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, path, unix.AT_SYMLINK_NOFOLLOW, unix.STATX_BASIC_STATS|unix.STATX_BTIME, &st)
	switch {
	case errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR):
		if path == w.Dir {
			return &fs.PathError{Op: "watch", Path: path, Err: err}
		}
		w.forget(path)
		return nil
	case err != nil:
		return &fs.PathError{Op: "statx", Path: path, Err: err}
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		return w.inspectDir(ctx, watch, path)
	case unix.S_IFSOCK:
		w.appeared(ctx, path, identityOf(&st))
	default:
		w.forget(path)
	}
	return nil
}

func (w *Watcher) inspectDir(ctx context.Context, watch Watch, dir string) error {
	err := watch.Add(dir)
	var entries []fs.DirEntry
	if err == nil {
		entries, err = os.ReadDir(dir)
	}
	if errors.Is(err, fs.ErrNotExist) && dir != w.Dir {
		return nil // removed meanwhile, which is an event of its parent
	}
	if err != nil {
		return fmt.Errorf("watch %s: %w", dir, err)
	}
	for _, e := range entries {
		if err := w.inspect(ctx, watch, filepath.Join(dir, e.Name())); err != nil {
			return err
		}
	}
	return nil
}

// identityOf returns the identity of the socket; a new one may get the same inode number.
func identityOf(st *unix.Statx_t) identity {
	id := identity{device: uint64(st.Dev_major)<<32 | uint64(st.Dev_minor), inode: st.Ino, made: st.Btime}
	if st.Mask&unix.STATX_BTIME == 0 { // not supported by the filesystem: the change time is almost as good
		id.made = st.Ctime
	}
	return id
}

// appeared starts the registration of a new socket. If it replaces another one, it waits for the
// deregistration of that.
func (w *Watcher) appeared(ctx context.Context, path string, id identity) {
	before := w.sockets[path]
	if before != nil && before.identity == id {
		return
	}
	if before != nil {
		w.end(path, before)
	}
	last := w.ending[path]
	ctx, gone := context.WithCancelCause(ctx)
	s := &socket{identity: id, gone: gone, done: make(chan struct{})}
	w.sockets[path] = s
	w.metrics.is(path, desiredState)
	w.running.Go(func() {
		defer close(s.done)
		defer gone(nil)
		if last != nil {
			<-last.done
		}
		w.keepRegistered(ctx, path)
	})
}

// forget ends the registrations of a removed path and of everything below it.
func (w *Watcher) forget(path string) {
	for p, s := range w.sockets {
		if p == path || strings.HasPrefix(p, path+"/") {
			w.end(p, s)
		}
	}
}

// end ends the registration of a removed socket. A socket that replaces it waits for that.
func (w *Watcher) end(path string, s *socket) {
	maps.DeleteFunc(w.ending, func(_ string, s *socket) bool { return s.hasEnded() })
	s.gone(errSocketGone)
	delete(w.sockets, path)
	w.metrics.isNot(path, desiredState)
	w.ending[path] = s
}

func (s *socket) hasEnded() bool {
	select {
	case <-s.done:
		return true
	default:
		return false
	}
}
