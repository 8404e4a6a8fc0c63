package csi

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	utilversion "k8s.io/apimachinery/pkg/util/version"

	"berth/internal/health"
	"berth/internal/pod"
)

// Config is the configuration of Drivers.
type Config struct {
	// NodeName is the name of the Node and of the CSINode.
	NodeName string
	// Nodes and CSINodes are the API server; nil without one: drivers are then not written to it.
	Nodes    Nodes
	CSINodes CSINodes
	// Late makes drivers usable before they are written to the API server, which is retried. It is
	// for the local API, whose scheduler does not read them.
	Late bool
	// Registered returns a channel that is closed when the API server has the Node; Run waits for
	// it.
	Registered func() <-chan struct{}
	// Initialized is called when the API server has a CSINode of this machine; it may be nil.
	Initialized func()
	// Period returns the interval of writing a driver's volume limit again, 0 for never; nil: never
	// for all drivers. It must not block.
	Period func(driver string) time.Duration
	// PeriodsChanged has an element when the result of Period may have changed; nil: it never
	// changes.
	PeriodsChanged <-chan struct{}
	// Dial connects to the socket of a driver; nil uses the machine's.
	Dial func(ctx context.Context, socket string) (net.Conn, error)
	// Metrics is where metrics are registered; nil: they are not.
	Metrics prometheus.Registerer
	Log     *slog.Logger
}

// Drivers are the registered drivers of this machine. It is safe for concurrent use.
type Drivers struct {
	config  Config
	node    *nodeWriter // nil without an API server
	metrics *metrics
	waits   *waits
	wake    chan struct{} // capacity 1: Run has work
	health  health.Latch  // whether the CSINode exists

	mu           sync.Mutex
	drivers      map[string]registration // guarded by mu; by name
	pending      map[string]Info         // guarded by mu; drivers to be written to the API server
	deregistered map[string]bool         // guarded by mu; drivers to be removed from the API server
	urgent       map[string]bool         // guarded by mu; drivers whose limits are to be refreshed at once
	subscribers  []func()                // guarded by mu
}

type registration struct {
	endpoint string
	version  *utilversion.Version
}

// New returns Drivers without registrations.
func New(cfg Config) (*Drivers, error) {
	switch {
	case cfg.Log == nil:
		return nil, errors.New("csi: no logger given")
	case (cfg.Nodes == nil) != (cfg.CSINodes == nil):
		return nil, errors.New("csi: Nodes and CSINodes are needed both, or none")
	case cfg.Nodes != nil && (cfg.NodeName == "" || cfg.Registered == nil):
		return nil, errors.New("csi: NodeName and Registered are both needed with an API server")
	}
	if cfg.Initialized == nil {
		cfg.Initialized = func() {}
	}
	if cfg.Dial == nil {
		cfg.Dial = func(ctx context.Context, socket string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		}
	}
	if cfg.Period == nil {
		cfg.Period = func(string) time.Duration { return 0 }
	}
	d := &Drivers{
		config: cfg, metrics: newMetrics(cfg.Metrics), waits: &waits{pending: map[*Wait]pod.UID{}}, wake: make(chan struct{}, 1),
		drivers: map[string]registration{}, pending: map[string]Info{}, deregistered: map[string]bool{}, urgent: map[string]bool{},
	}
	if cfg.Nodes != nil {
		d.node = &nodeWriter{nodes: cfg.Nodes, csiNodes: cfg.CSINodes, nodeName: cfg.NodeName, log: cfg.Log, lock: make(chan struct{}, 1)}
		d.health.Set(errors.New("CSINode is not yet initialized"))
	}
	return d, nil
}

// ValidatePlugin rejects a driver without a supported version, and one that is registered already
// under the same name with an equal or higher version.
func (d *Drivers) ValidatePlugin(name, _ string, versions []string) error {
	_, err := d.validate("ValidatePlugin", name, versions)
	return err
}

func (d *Drivers) validate(caller, name string, versions []string) (*utilversion.Version, error) {
	fail := func(format string, args ...any) (*utilversion.Version, error) {
		return nil, fmt.Errorf("kubernetes.io/csi: %s for CSI driver %q failed. %s", caller, name, fmt.Sprintf(format, args...))
	}
	if len(versions) == 0 {
		return fail("Plugin returned an empty list for supported versions")
	}
	highest, err := highestVersion(versions)
	if err != nil {
		return fail("None of the versions specified %q are supported. err=%v", versions, err)
	}
	d.mu.Lock()
	other, taken := d.drivers[name]
	d.mu.Unlock()
	if taken && !other.version.LessThan(highest) {
		return fail("Another driver with the same name is already registered with a higher supported version: %q", other.version)
	}
	return highest, nil
}

// highestVersion returns the highest supported version of CSI, which is 1.x.
func highestVersion(versions []string) (*utilversion.Version, error) {
	var highest *utilversion.Version
	for _, text := range versions {
		v, err := utilversion.ParseGeneric(text)
		if err == nil && v.Major() <= 1 && (highest == nil || highest.LessThan(v)) {
			highest = v
		}
	}
	if highest == nil || highest.Major() != 1 {
		return nil, errors.New("this node speaks version 1 of CSI")
	}
	return highest, nil
}

// RegisterPlugin calls NodeGetInfo of the driver and writes the result to the API server. On an
// error the driver is not registered.
func (d *Drivers) RegisterPlugin(ctx context.Context, name, endpoint string, versions []string) error {
	highest, err := d.validate("RegisterPlugin", name, versions)
	if err != nil {
		return err
	}
	d.mu.Lock()
	d.drivers[name] = registration{endpoint: endpoint, version: highest}
	delete(d.deregistered, name)
	d.mu.Unlock()
	driver := &Driver{Name: name, endpoint: endpoint, dial: d.config.Dial, metrics: d.metrics}
	info, err := driver.Info(ctx)
	switch {
	case err != nil || d.node == nil:
	case d.config.Late:
		d.addLater(name, info)
	default:
		err = d.node.add(ctx, name, info)
	}
	if err != nil {
		d.DeregisterPlugin(name, endpoint)
		return err
	}
	d.wakeUp()
	d.notify()
	return nil
}

// DeregisterPlugin removes the driver. Its mounted volumes stay; operations on them wait until it
// is registered again.
func (d *Drivers) DeregisterPlugin(name, endpoint string) {
	d.mu.Lock()
	if d.drivers[name].endpoint != endpoint {
		d.mu.Unlock()
		return // another one has replaced it
	}
	delete(d.drivers, name)
	delete(d.pending, name)
	if d.node != nil {
		d.deregistered[name] = true
	}
	d.mu.Unlock()
	d.wakeUp()
	d.notify()
}

// Subscribe adds a function that is called, without a lock held, whenever a driver has been
// registered or deregistered. It must not block.
func (d *Drivers) Subscribe(changed func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.subscribers = append(d.subscribers, changed)
}

func (d *Drivers) notify() {
	d.mu.Lock()
	subscribers := d.subscribers // append-only
	d.mu.Unlock()
	for _, changed := range subscribers {
		changed()
	}
}

// Names returns the names of the registered drivers, sorted.
func (d *Drivers) Names() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Sorted(maps.Keys(d.drivers))
}

// Driver returns a registered driver, or an error that names it.
func (d *Drivers) Driver(name string) (*Driver, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	r, ok := d.drivers[name]
	if !ok {
		return nil, fmt.Errorf("driver name %s not found in the list of registered CSI drivers", name)
	}
	return &Driver{Name: name, endpoint: r.endpoint, dial: d.config.Dial, metrics: d.metrics, waits: d.waits}, nil
}
