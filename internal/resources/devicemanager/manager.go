package devicemanager

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"berth/internal/host/inotify"
	"berth/internal/pod"
	"berth/internal/record/journal"
	"berth/internal/resources/topologymanager"
)

// DefaultDir is the default device plugin directory (k8s.io/kubelet, deviceplugin/v1beta1,
// DevicePluginPath).
const DefaultDir = "/var/lib/kubelet/device-plugins"

// Limits for plugins.
const (
	// dialTimeout and optionsTimeout bound a registration, preferenceTimeout a call of
	// GetPreferredAllocation, preStartTimeout a call of PreStartContainer.
	dialTimeout       = 10 * time.Second
	optionsTimeout    = 10 * time.Second
	preferenceTimeout = 10 * time.Second
	preStartTimeout   = 30 * time.Second
	// forgetAfter is how long a resource keeps its capacity while its plugin is unavailable.
	forgetAfter = 5 * time.Minute

	// maxMessage is the maximum size of a plugin's message, in bytes. It is gRPC's default, on
	// which plugins rely.
	maxMessage = 4 << 20
	// maxResponse is the maximum size of a stored allocation response, in bytes.
	maxResponse = 1 << 20
	// maxDevices is the maximum number of devices of one resource, maxID the maximum length of a
	// device ID in bytes.
	maxDevices = 32768
	maxID      = 1024
	// maxResources is the maximum number of resources, including unavailable ones.
	maxResources = 256
	// maxRegistrations is the maximum number of concurrent registrations; others wait.
	maxRegistrations = 8
	// Device lists of a plugin are rate-limited to one per listEvery, with a burst of listBurst.
	listBurst = 20
	listEvery = time.Second
	// maxErrorText is the length at which a plugin's error text is cut, in bytes.
	maxErrorText = 1024
)

// Watch reports changes of the entries of a directory.
type Watch interface {
	// Add starts to watch the directory.
	Add(folder string) error
	// Events returns the channel of events. It is closed when the watch has failed or was closed.
	Events() <-chan inotify.Event
	// Close stops the watch and returns when its goroutines have exited.
	Close() error
}

// Config configures a Manager.
type Config struct {
	// Dir is the device plugin directory; "" means DefaultDir.
	Dir string
	// Nodes are the machine's NUMA nodes. Other nodes that plugins report are ignored.
	Nodes topologymanager.Nodes
	// Changed receives the pods whose devices have changed, or whose plugin has registered.
	Changed *pod.Inbox[pod.UID]
	// CapacityChanged is called, without a lock, when the result of Capacity may have changed. It
	// must not block.
	CapacityChanged func()
	// Listen listens on the registration socket; nil means a Unix socket of the machine.
	Listen func(path string) (net.Listener, error)
	// Dial connects to a plugin's socket; nil means a Unix socket of the machine.
	Dial func(ctx context.Context, socket string) (net.Conn, error)
	// Watch opens a watch for directories; nil means inotify.
	Watch   func() (Watch, error)
	Journal *journal.Journal
	// Metrics is the registry for metrics; nil means that they are not registered.
	Metrics prometheus.Registerer
	Log     *slog.Logger
}

// Manager (deviceManager) allocates the devices of plugins to containers. It is safe for concurrent
// use.
type Manager struct {
	journal         *journal.Journal
	log             *slog.Logger
	metrics         *metrics
	capacityChanged func()
	allocations     *allocations
	store           *store
	plugins         *plugins
	socket          *socket
}

// New returns a Manager without devices. Load reads the allocations from the checkpoint, and Run
// serves plugins.
func New(cfg Config) (*Manager, error) {
	if cfg.Dir == "" {
		cfg.Dir = DefaultDir
	}
	switch {
	case cfg.Log == nil:
		return nil, errors.New("devicemanager: no logger given")
	case cfg.Journal == nil || cfg.Changed == nil:
		return nil, errors.New("devicemanager: Journal and Changed are both needed")
	case !filepath.IsAbs(cfg.Dir):
		return nil, fmt.Errorf("folder of device plugins %q: must be an absolute path", cfg.Dir)
	}
	if cfg.Listen == nil {
		cfg.Listen = listenUnix
	}
	if cfg.Dial == nil {
		cfg.Dial = func(ctx context.Context, socket string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		}
	}
	if cfg.Watch == nil {
		cfg.Watch = func() (Watch, error) { return inotify.Open() }
	}
	m := &Manager{
		journal: cfg.Journal, log: cfg.Log, metrics: newMetrics(cfg.Metrics), capacityChanged: cfg.CapacityChanged, allocations: newAllocations(cfg.Nodes),
	}
	m.store = &store{dir: cfg.Dir, log: cfg.Log, allocations: m.allocations, changed: make(chan struct{}, 1), writeLock: make(chan struct{}, 1)}
	m.plugins = &plugins{
		allocations: m.allocations, store: m.store, dial: cfg.Dial, changed: cfg.Changed, capacityChanged: cfg.CapacityChanged, log: cfg.Log, metrics: m.metrics,
		slots: make(chan struct{}, maxRegistrations), started: make(chan struct{}),
	}
	m.socket = &socket{dir: cfg.Dir, listen: cfg.Listen, openWatch: cfg.Watch, log: cfg.Log, broken: make(chan net.Listener)}
	m.socket.serving.Set(errors.New("device plugins cannot register yet"))
	return m, nil
}

// Health returns the error that prevents registrations of device plugins, or nil.
func (m *Manager) Health() error { return m.socket.serving.Err() }

// Persistence returns the error of the last write of the checkpoint, or nil.
func (m *Manager) Persistence() error { return m.store.writing.Err() }

// logLimiter rate-limits log lines of flapping plugins: lines above the limit get level debug. Its
// zero value is ready to use.
type logLimiter struct {
	mu    sync.Mutex
	since time.Time // guarded by mu
	lines int       // guarded by mu
}

// The rate limit of logLimiter.
const (
	maxLogLines = 60
	logWindow   = time.Minute
)

func (l *logLimiter) level(wanted slog.Level) slog.Level {
	l.mu.Lock()
	defer l.mu.Unlock()
	if now := time.Now(); now.Sub(l.since) > logWindow {
		l.since, l.lines = now, 0
	}
	if l.lines++; l.lines > maxLogLines {
		return slog.LevelDebug
	}
	return wanted
}
