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

	"berth/internal/checkpoint"
	"berth/internal/cluster/kube"
	"berth/internal/pod"
	"berth/internal/record/journal"
)

// API is the part of the API server that holds claims and what drivers offer.
type API interface {
	GetResourceClaim(ctx context.Context, namespace, name string) (*resourcev1.ResourceClaim, error)
	// DeleteResourceSlices removes those that are selected.
	DeleteResourceSlices(ctx context.Context, s kube.Selector) error
}

// Reporting is how much of the health of devices the status of pods tells (KEP-4680).
type Reporting int

// How much it tells: all, nothing of what drivers say about it (without the feature gate
// ResourceHealthStatusMessage), nothing (without ResourceHealthStatus; drivers are not asked then).
const (
	ReportAll Reporting = iota
	ReportNoMessages
	ReportNothing
)

// Config is what a Manager needs.
type Config struct {
	// API is the API server; nil without one: then no claim can be prepared.
	API API
	// NodeName is the name of the Node.
	NodeName string
	// StateFile is <root>/dra_manager_state, HealthFile <root>/dra_health_state. Their folder must
	// be there when Load is called.
	StateFile, HealthFile string
	// Dial connects to the socket of a driver; nil is the machine's.
	Dial func(ctx context.Context, socket string) (net.Conn, error)
	// Reporting is how much of the health of devices is told.
	Reporting Reporting
	// Journal is where it is recorded what was done for pods; nil: nowhere.
	Journal *journal.Journal
	// Metrics is where metrics are registered; nil: nowhere.
	Metrics prometheus.Registerer
	Log     *slog.Logger
}

// Manager (DRA manager) has the claims of pods prepared and taken back. It is safe for concurrent
// use, and a plugins.Handler for the type DRAPlugin.
type Manager struct {
	Config
	metrics  *metrics
	book     *book
	inflight inflight
	drivers  *drivers
	wipes    *wipes
	waits    *waits
	orphans  orphans
	healths  *healths
	pods     pod.Publisher[pod.UID]

	healthFile *checkpoint.Writer
	healthWake chan struct{} // capacity 1: the file of healths is older than they are
	wake       chan struct{} // capacity 1: there is something for Run to look at
	running    sync.WaitGroup
	// registering orders what is made of drivers that come and go.
	registering sync.Mutex
}

// New returns a Manager without drivers and claims. Load reads those of an earlier agent.
func New(cfg Config) (*Manager, error) {
	switch {
	case cfg.Log == nil:
		return nil, errors.New("dra: no logger given")
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
		Config: cfg, book: newBook(cfg.StateFile), healths: &healths{drivers: map[string]*driverHealths{}},
		healthWake: make(chan struct{}, 1), wake: make(chan struct{}, 1),
	}
	m.metrics = newMetrics(cfg.Metrics, m.book.inUse)
	m.drivers = &drivers{dial: cfg.Dial, changed: m.driverChanged, endpoints: map[string][]*endpoint{}}
	m.wipes = &wipes{api: cfg.API, node: cfg.NodeName, log: cfg.Log, connected: m.drivers.connectedNames, wake: m.wakeUp, byDriver: map[string]*wipe{}}
	m.waits = &waits{wake: m.pods.Publish, pods: map[pod.UID]*wait{}}
	m.healthFile = checkpoint.NewWriter(checkpoint.WriterConfig{What: "health of devices", Wake: m.healthWake, Write: m.writeHealths, Log: cfg.Log})
	return m, nil
}

// Load reads what an earlier agent, or a kubelet, left. The error is of a file of claims that
// cannot be read: without it, nobody would take them back. A file of healths that cannot be read is
// set aside.
func (m *Manager) Load() error {
	if err := m.book.load(); err != nil {
		return err
	}
	if m.Reporting == ReportNothing {
		return nil
	}
	err := checkpoint.Read(m.HealthFile, "health of devices", func(content []byte) error { return m.healths.decode(content, time.Now()) })
	if err != nil {
		m.Log.Warn("health of devices is not known until drivers tell it", "error", err)
	}
	return nil
}

// Run keeps the connections to drivers, hears of the health of devices, withdraws what drivers
// offer that are gone, and tries again what failed. It blocks until ctx is done; drivers are called
// no more then.
func (m *Manager) Run(ctx context.Context) error {
	defer m.running.Wait()
	defer m.drivers.closeAll()
	if m.Reporting != ReportNothing {
		m.running.Go(func() { _ = m.healthFile.Run(ctx) }) // it ends with ctx, and knows no other error
	}
	m.wipes.plan(allDrivers, time.Now())
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

// step does what is due, and returns when it is to be called next; zero for never.
func (m *Manager) step(ctx context.Context, now time.Time) time.Time {
	for _, e := range m.drivers.takeFresh() {
		m.attend(ctx, e)
	}
	next := m.waits.fire(now)
	next = earlier(next, m.wipes.fire(ctx, now, m.running.Go))
	next = earlier(next, m.expireHealths(now))
	try, later := m.orphans.begin(now)
	if len(try) > 0 {
		m.running.Go(func() { m.takeBackAll(ctx, try) })
	}
	return earlier(next, later)
}

// attend follows an endpoint until it is deregistered.
func (m *Manager) attend(ctx context.Context, e *endpoint) {
	there, leave := e.whileThere(ctx)
	m.running.Go(func() {
		defer leave(nil)
		m.drivers.follow(there, e)
	})
	if m.Reporting != ReportNothing {
		m.running.Go(func() { m.watchHealth(there, e) })
	}
}

// takeBackAll has drivers take back the claims of pods that are gone.
func (m *Manager) takeBackAll(ctx context.Context, pods []pod.UID) {
	var mu sync.Mutex
	var done []pod.UID // guarded by mu
	var all sync.WaitGroup
	for _, uid := range pods {
		all.Go(func() {
			if _, err := m.takeBack(ctx, uid); err != nil {
				m.Log.Warn("claims of a pod that is gone are not taken back, which is tried again", "pod", uid, "error", err)
				return
			}
			mu.Lock()
			done = append(done, uid)
			mu.Unlock()
		})
	}
	all.Wait()
	m.orphans.end(done, len(pods), time.Now())
	m.wakeUp()
}

func (m *Manager) wakeUp() {
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

// Subscribe returns an inbox that gets the pods to look at: Prepare has failed for them and may
// succeed now, or the health of their devices has changed. It is called before Run.
func (m *Manager) Subscribe() *pod.Inbox[pod.UID] {
	in, _ := m.pods.Subscribe()
	return in
}

// Health says what is wrong on the disk: the file of healths cannot be written. That of claims
// fails the pod that it is written for.
func (m *Manager) Health() error { return m.healthFile.Health() }

// ValidatePlugin refuses a driver that speaks no known version, or has an impossible name.
func (m *Manager) ValidatePlugin(name, _ string, versions []string) error {
	return validateDriver(name, versions)
}

// RegisterPlugin takes an endpoint of a driver, which may have several while it is replaced. It
// does not wait for a connection.
func (m *Manager) RegisterPlugin(_ context.Context, name, endpoint string, versions []string) error {
	if err := m.drivers.add(name, endpoint, versions); err != nil {
		return err
	}
	m.wipes.dropDone(name)
	m.driverChanged(name)
	return nil
}

// DeregisterPlugin forgets an endpoint of a driver. The claims that it prepared stay as they are;
// whatever is to be done with them waits for its return.
func (m *Manager) DeregisterPlugin(name, endpoint string) { m.drivers.remove(name, endpoint) }

// driverChanged is called when a driver has come or gone, or its connection has.
func (m *Manager) driverChanged(name string) {
	m.registering.Lock()
	if m.drivers.connected(name) {
		m.wipes.drop(name)
		m.waits.happened(driverCause(name))
		m.orphans.hurry()
	} else {
		m.wipes.plan(name, time.Now().Add(absence))
	}
	m.registering.Unlock()
	m.wakeUp()
}

// Retain has drivers take back what pods of an earlier agent hold that are not among those to keep.
// Those to keep are all that any source still wants, and all whose end is under way. It is called
// when all sources have told what they want; pods of this agent, which Prepare was called for, end
// with Unprepare. It does not block; Run does it, and again until it works.
// Differs from the kubelet, which looks for such pods once a minute.
func (m *Manager) Retain(keep map[pod.UID]bool) {
	m.waits.retain(keep)
	m.orphans.set(m.book.orphans(keep))
	m.wakeUp()
}
