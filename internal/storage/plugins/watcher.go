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

// Types of plugins, as they call themselves (k8s.io/kubelet, pluginregistration/v1).
const (
	CSIPlugin    = "CSIPlugin"
	DevicePlugin = "DevicePlugin"
	DRAPlugin    = "DRAPlugin"
)

// Handler takes the plugins of one type. Its methods are called one after the other for one socket,
// and side by side for several.
type Handler interface {
	// ValidatePlugin refuses a plugin that cannot be used.
	ValidatePlugin(name, endpoint string, versions []string) error
	// RegisterPlugin takes the plugin. On an error nothing of it stays registered.
	RegisterPlugin(ctx context.Context, name, endpoint string, versions []string) error
	// DeregisterPlugin is told that the plugin is gone.
	DeregisterPlugin(name, endpoint string)
}

// Watch reports changes of the entries of folders, sub-folders not included.
type Watch interface {
	// Add watches the folder. Adding one twice is no error.
	Add(folder string) error
	// Events is closed when nothing more can be reported.
	Events() <-chan inotify.Event
	// Close ends the watch and returns when its goroutines are gone.
	Close() error
}

// Config is what a Watcher needs.
type Config struct {
	// Dir is the folder of the sockets, <root>/plugins_registry; it is made if it is missing.
	Dir string
	// Handlers are by the types of plugins.
	Handlers map[string]Handler
	// Watch opens what tells of sockets; nil is inotify.
	Watch func() (Watch, error)
	// Dial connects to a socket; nil is the machine's.
	Dial func(ctx context.Context, socket string) (net.Conn, error)
	// Metrics is where metrics are registered; nil: nowhere.
	Metrics prometheus.Registerer
	Log     *slog.Logger
}

// Watcher (plugin watcher, pluginManager) registers the plugins of this machine.
type Watcher struct {
	Config
	metrics *metrics

	sockets map[string]*socket // by path; of the goroutine in Run
	ending  map[string]*socket // by path; those that went last, of the same goroutine
	running sync.WaitGroup     // registrations
	health  health.Latches     // by path: why a plugin is not registered, or the folder not watched
}

// socket is one that is there.
type socket struct {
	identity identity
	gone     context.CancelCauseFunc
	done     chan struct{} // closed when nothing is registered of it any more
}

// identity tells a socket from one that takes its place.
type identity struct {
	device, inode uint64
	made          unix.StatxTimestamp
}

// New returns a Watcher that watches nothing until Run.
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

// errSocketGone says that a registration ends because its socket does, in contrast to the agent.
var errSocketGone = errors.New("the plugin's socket is gone")

// retries space the tries to open a watch, and to register a plugin.
var retries = wait.Backoff{Duration: 500 * time.Millisecond, Factor: 2, Cap: 2*time.Minute + 2*time.Second, Steps: math.MaxInt}

// Run registers plugins until ctx is done. Then they stay with their handlers: the next agent finds
// them again.
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

// Health says which plugins are not registered, and why; nil if all that are there are.
func (w *Watcher) Health() error { return w.health.Err() }

// unwatched is a Watch for a look that nothing follows.
type unwatched struct{}

func (unwatched) Add(string) error             { return nil }
func (unwatched) Events() <-chan inotify.Event { return nil }
func (unwatched) Close() error                 { return nil }

// follow watches until the watch breaks or ctx is done.
func (w *Watcher) follow(ctx context.Context) error {
	if err := selinux.MakePluginsDir("/", w.Dir); err != nil { // somebody has removed it
		return err
	}
	watch, err := w.Watch()
	if err != nil {
		return err
	}
	defer watch.Close()
	// A folder that is removed tells so when its inode goes, which the sockets in it hold for as
	// long as somebody listens. The folder above tells at once.
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

// inspectAll looks at what is there, and at what was.
func (w *Watcher) inspectAll(ctx context.Context, watch Watch) error {
	for path := range w.sockets {
		if err := w.inspect(ctx, watch, path); err != nil {
			return err
		}
	}
	return w.inspect(ctx, watch, w.Dir)
}

// inspect finds out what a path is now. The folder is watched before it is read, so that nothing in
// it is missed.
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
		return nil // it went away meanwhile, which is an event of the folder above
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

// identityOf returns what tells the socket from its successor, which may well get the same inode.
func identityOf(st *unix.Statx_t) identity {
	id := identity{device: uint64(st.Dev_major)<<32 | uint64(st.Dev_minor), inode: st.Ino, made: st.Btime}
	if st.Mask&unix.STATX_BTIME == 0 { // a file system that does not keep it: the change of its state does nearly as well
		id.made = st.Ctime
	}
	return id
}

// appeared begins the registration of a socket that was not there before. One that takes the place
// of another waits for its end.
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

// forget ends the registrations of a path that is gone, and of what was below it.
func (w *Watcher) forget(path string) {
	for p, s := range w.sockets {
		if p == path || strings.HasPrefix(p, path+"/") {
			w.end(p, s)
		}
	}
}

// end ends the registration of a socket that is gone. Whatever comes to be in its place waits for
// that.
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
