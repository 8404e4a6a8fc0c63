package dra

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	resourcev1 "k8s.io/api/resource/v1"

	"berth/internal/cluster/kube"
	"berth/internal/pod"
	"berth/internal/record/journal"
)

// API is the part of the API server that holds ResourceClaims and ResourceSlices.
type API interface {
	GetResourceClaim(ctx context.Context, namespace, name string) (*resourcev1.ResourceClaim, error)
	// DeleteResourceSlices deletes the ResourceSlices that match s.
	DeleteResourceSlices(ctx context.Context, s kube.Selector) error
}

// Reporting is how much of the devices' health is reported in the status of pods (KEP-4680).
type Reporting int

// The levels: health and messages; no messages (without the feature gate
// ResourceHealthStatusMessage); nothing (without ResourceHealthStatus; drivers are not queried
// then).
const (
	ReportAll Reporting = iota
	ReportNoMessages
	ReportNothing
)

// Config configures a Manager.
type Config struct {
	// API is the API server; nil if there is none: Prepare fails for every claim then.
	API API
	// NodeName is the name of the Node.
	NodeName string
	// StateFile is <root>/dra_manager_state, HealthFile <root>/dra_health_state. Their directory
	// must exist before Load is called.
	StateFile, HealthFile string
	// Dial connects to a driver's socket; nil means a Unix socket of the machine.
	Dial func(ctx context.Context, socket string) (net.Conn, error)
	// Reporting is how much of the devices' health is reported.
	Reporting Reporting
	Journal   *journal.Journal
	// Metrics is the registry for metrics; nil means that they are not registered.
	Metrics prometheus.Registerer
	Log     *slog.Logger
}

// Manager (DRA manager) has the claims of pods prepared and unprepared. It is safe for concurrent
// use, and is a plugins.Handler for the type DRAPlugin.
type Manager struct {
	api       API // nil: there is no API server
	reporting Reporting
	journal   *journal.Journal
	log       *slog.Logger
	metrics   *metrics

	claimCache *claimCache
	inflight   inflight
	drivers    *drivers
	deletions  *sliceDeletions
	waits      *waits
	orphans    orphans
	health     *healthWatcher
	changed    *pod.Publisher[pod.UID]

	wake    chan struct{} // capacity 1: wakes Run
	running sync.WaitGroup
	// registering serializes the effects of connection changes.
	registering sync.Mutex
}

// New returns a Manager without drivers and claims. Load restores those of an earlier agent.
func New(cfg Config) (*Manager, error) {
	switch {
	case cfg.Log == nil:
		return nil, errors.New("dra: no logger given")
	case cfg.Journal == nil:
		return nil, errors.New("dra: no journal given")
	case cfg.StateFile == "" || cfg.HealthFile == "":
		return nil, errors.New("dra: StateFile and HealthFile are both needed")
	case cfg.API != nil && cfg.NodeName == "":
		return nil, errors.New("dra: NodeName is needed with an API server")
	}
	if cfg.Dial == nil {
		cfg.Dial = func(ctx context.Context, socket string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		}
	}
	m := &Manager{
		api: cfg.API, reporting: cfg.Reporting, journal: cfg.Journal, log: cfg.Log,
		claimCache: newClaimCache(cfg.StateFile), changed: &pod.Publisher[pod.UID]{}, wake: make(chan struct{}, 1),
	}
	m.metrics = newMetrics(cfg.Metrics, m.claimCache.inUse)
	m.drivers = &drivers{dial: cfg.Dial, changed: m.driverChanged, metrics: m.metrics, endpoints: map[string][]*endpoint{}}
	m.deletions = &sliceDeletions{api: cfg.API, node: cfg.NodeName, log: cfg.Log, drivers: m.drivers, wake: m.wake, byDriver: map[string]*sliceDeletion{}}
	m.waits = &waits{changed: m.changed, pods: map[pod.UID]*wait{}}
	m.health = newHealthWatcher(cfg.HealthFile, m.claimCache, m.changed, m.wake, cfg.Log)
	return m, nil
}

// wakeUp wakes the reader of a channel of capacity 1. It does not block.
func wakeUp(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Load restores the state of an earlier agent or a kubelet. It returns an error if the claim
// checkpoint cannot be read, because its claims would never be unprepared. It sets aside a health
// file that cannot be read.
func (m *Manager) Load() error {
	if err := m.claimCache.load(); err != nil {
		return err
	}
	if m.reporting != ReportNothing {
		m.health.load()
	}
	return nil
}

// Run maintains the connections to drivers, follows the health of devices, deletes the
// ResourceSlices of absent drivers, and retries failed operations. It blocks until ctx is done and
// makes no driver calls after that.
func (m *Manager) Run(ctx context.Context) error {
	defer m.running.Wait()
	defer m.drivers.closeAll()
	if m.reporting != ReportNothing {
		m.running.Go(func() { _ = m.health.file.Run(ctx) }) // only fails with ctx.Err()
	}
	m.deletions.plan(allDrivers, time.Now())
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-timer.C:
		case <-m.wake:
		}
		timer.Stop()
		if next := m.step(ctx, time.Now()); !next.IsZero() {
			timer.Reset(time.Until(next))
		}
	}
}

// step does what is due, and returns when it must be called next; zero: never.
func (m *Manager) step(ctx context.Context, now time.Time) time.Time {
	for _, e := range m.drivers.takeFresh() {
		m.attend(ctx, e)
	}
	next := m.waits.fire(now)
	next = earlier(next, m.deletions.fire(ctx, now, m.running.Go))
	next = earlier(next, m.health.expire(now))
	try, later := m.orphans.begin(now)
	if len(try) > 0 {
		m.running.Go(func() { m.releaseAll(ctx, try) })
	}
	return earlier(next, later)
}

// attend starts to follow an endpoint until it is deregistered.
func (m *Manager) attend(ctx context.Context, e *endpoint) {
	ctx, cancel := e.untilDeregistered(ctx)
	m.running.Go(func() {
		defer cancel(nil)
		m.drivers.follow(ctx, e)
	})
	if m.reporting != ReportNothing {
		m.running.Go(func() { m.health.watch(ctx, e) })
	}
}

// releaseAll unprepares the claims of orphaned pods.
func (m *Manager) releaseAll(ctx context.Context, pods []pod.UID) {
	var mu sync.Mutex
	var done []pod.UID // guarded by mu
	var all sync.WaitGroup
	for _, uid := range pods {
		all.Go(func() {
			if _, err := m.release(ctx, uid); err != nil {
				m.log.Warn("claims of a pod that is gone are not taken back, which is tried again", "pod", uid, "error", err)
				return
			}
			mu.Lock()
			done = append(done, uid)
			mu.Unlock()
		})
	}
	all.Wait()
	m.orphans.end(done, len(pods), time.Now())
	wakeUp(m.wake)
}

// Subscribe returns an inbox for pods to sync: Prepare has failed and may succeed now, or the
// health of their devices has changed. It must be called before Run.
func (m *Manager) Subscribe() *pod.Inbox[pod.UID] {
	in, _ := m.changed.Subscribe()
	return in
}

// Health returns the error of writing the health file, or nil. An error of the claim checkpoint
// fails the pod instead.
func (m *Manager) Health() error { return m.health.file.Health() }

// ValidatePlugin returns an error if no version of the driver is supported or its name is invalid.
func (m *Manager) ValidatePlugin(name, _ string, versions []string) error {
	return validateDriver(name, versions)
}

// RegisterPlugin registers an endpoint of a driver; a driver may have several during an update. It
// does not wait for a connection.
func (m *Manager) RegisterPlugin(_ context.Context, name, endpoint string, versions []string) error {
	if err := m.drivers.add(name, endpoint, versions); err != nil {
		return err
	}
	m.deletions.dropDone(name)
	m.driverChanged(name)
	return nil
}

// DeregisterPlugin removes an endpoint of a driver. Prepared claims stay; calls for them wait until
// the driver is registered again.
func (m *Manager) DeregisterPlugin(name, endpoint string) { m.drivers.remove(name, endpoint) }

func (m *Manager) driverChanged(name string) {
	m.registering.Lock()
	if m.drivers.connected(name) {
		m.deletions.drop(name)
		m.waits.resolved(driverCause(name))
		m.orphans.retryNow()
	} else {
		m.deletions.plan(name, time.Now().Add(absence))
	}
	m.registering.Unlock()
	wakeUp(m.wake)
}

// Retain schedules the unprepare calls for pods of an earlier agent that hold claims and are not in
// keep. keep must contain all desired and all terminating pods. Call it when all sources have
// reported. Pods for which Prepare was called in this agent release their claims with Unprepare. It
// does not block; Run makes the calls and retries them.
// Differs from the kubelet, which looks for such pods once a minute.
func (m *Manager) Retain(keep map[pod.UID]bool) {
	m.waits.retain(keep)
	m.orphans.set(m.claimCache.orphans(keep))
	wakeUp(m.wake)
}
