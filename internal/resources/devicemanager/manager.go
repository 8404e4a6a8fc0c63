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

	"berth/internal/health"
	"berth/internal/host/inotify"
	"berth/internal/pod"
	"berth/internal/record/journal"
	"berth/internal/resources/topologymanager"
)

// DefaultDir is the folder that device plugins know (k8s.io/kubelet, deviceplugin/v1beta1,
// DevicePluginPath).
const DefaultDir = "/var/lib/kubelet/device-plugins"

// What a plugin may take.
const (
	// dialTimeout and optionsTimeout bound a registration, preferenceTimeout the question which
	// devices the plugin would rather give, preStartTimeout what it does before a container starts.
	dialTimeout       = 10 * time.Second
	optionsTimeout    = 10 * time.Second
	preferenceTimeout = 10 * time.Second
	preStartTimeout   = 30 * time.Second
	// forgetAfter is how long a resource whose plugin is away keeps its capacity.
	forgetAfter = 5 * time.Minute

	// maxMessage is the size of a plugin's longest message, in bytes. It is gRPC's default, on
	// which plugins rely already.
	maxMessage = 4 << 20
	// maxResponse is the size of what is kept for a container of one resource.
	maxResponse = 1 << 20
	// maxDevices is how many devices one resource has at most, maxID how long their IDs are.
	maxDevices = 32768
	maxID      = 1024
	// maxResources is how many resources are known at a time, those that are away included.
	maxResources = 256
	// maxRegistrations is how many registrations run side by side; others wait.
	maxRegistrations = 8
	// A plugin's lists are taken as they come, up to listBurst, and then one each listEvery.
	listBurst = 20
	listEvery = time.Second
	// maxErrorText is how much of a plugin's error is told.
	maxErrorText = 1024
)

// Watch reports changes of the entries of a folder.
type Watch interface {
	// Add watches the folder.
	Add(folder string) error
	// Events is closed when nothing more can be reported.
	Events() <-chan inotify.Event
	// Close ends the watch and returns when its goroutines are gone.
	Close() error
}

// Config is what a Manager needs.
type Config struct {
	// Dir is the folder of device plugins; "" is DefaultDir.
	Dir string
	// Nodes are the machine's NUMA nodes. Others that plugins name count for nothing.
	Nodes topologymanager.Nodes
	// Changed gets the pods whose devices have changed, or whose plugin has come.
	Changed *pod.Inbox[pod.UID]
	// CapacityChanged is called, without a lock, when Capacity may return something else; nil:
	// nobody wants to know. It must not block.
	CapacityChanged func()
	// Listen serves the socket on which plugins register; nil is the machine's.
	Listen func(path string) (net.Listener, error)
	// Dial connects to the socket of a plugin; nil is the machine's.
	Dial func(ctx context.Context, socket string) (net.Conn, error)
	// Watch opens what tells of the folder; nil is inotify.
	Watch   func() (Watch, error)
	Journal *journal.Journal
	// Metrics is where metrics are registered; nil: nowhere.
	Metrics prometheus.Registerer
	Log     *slog.Logger
}

// Manager (deviceManager) gives the devices of plugins to containers. It is safe for concurrent
// use.
type Manager struct {
	Config
	metrics *metrics
	voice   voice
	plugins *plugins

	changed   chan struct{} // capacity 1: there is something for Run to look at
	writeLock chan struct{} // capacity 1: who holds the one token writes the file
	serving   health.Latch  // why plugins cannot register
	writing   health.Latch  // why the file is not written

	mu      sync.Mutex
	ledger         // guarded by mu
	written uint64 // guarded by mu; the generation that the file has
	fresh   bool   // guarded by mu; there was no file
}

// New returns a Manager without devices. Load reads who had which, and Run serves plugins.
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
	if cfg.CapacityChanged == nil {
		cfg.CapacityChanged = func() {}
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
		Config: cfg, metrics: newMetrics(cfg.Metrics),
		changed: make(chan struct{}, 1), writeLock: make(chan struct{}, 1), ledger: newLedger(cfg.Nodes),
	}
	m.plugins = &plugins{Manager: m, slots: make(chan struct{}, maxRegistrations), began: make(chan struct{})}
	m.serving.Set(errors.New("device plugins cannot register yet"))
	return m, nil
}

// Health says why device plugins cannot register; nil if they can.
func (m *Manager) Health() error { return m.serving.Err() }

// Persistence says why the file of allocations is not written; nil if it is.
func (m *Manager) Persistence() error { return m.writing.Err() }

// wakeUp has Run look at what there is to do. It does not block.
func (m *Manager) wakeUp() {
	select {
	case m.changed <- struct{}{}:
	default:
	}
}

// voice keeps plugins that come and go all the time from filling the log: what is said too often is
// said at level debug. Its zero value is ready.
type voice struct {
	mu    sync.Mutex
	since time.Time // guarded by mu
	said  int       // guarded by mu
}

// What is said in how long.
const (
	voiceLines  = 60
	voiceWindow = time.Minute
)

func (v *voice) level(wanted slog.Level) slog.Level {
	v.mu.Lock()
	defer v.mu.Unlock()
	if now := time.Now(); now.Sub(v.since) > voiceWindow {
		v.since, v.said = now, 0
	}
	if v.said++; v.said > voiceLines {
		return slog.LevelDebug
	}
	return wanted
}
