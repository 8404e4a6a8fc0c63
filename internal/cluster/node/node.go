package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	coordinationv1 "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"

	"berth/internal/cluster/kube"
)

// Nodes is the API of Node objects. Calls have a deadline; errors are API errors (apierrors) that
// name the call and the object; results may be shared, and arguments are not changed afterwards.
type Nodes interface {
	GetNode(ctx context.Context, name string) (*v1.Node, error)
	// CreateNode creates the Node with its status.
	CreateNode(ctx context.Context, n *v1.Node) (*v1.Node, error)
	// PatchNode writes the differences between old and changed, except the status, and returns the
	// resulting Node. It returns Conflict if the Node's UID differs from that of old.
	PatchNode(ctx context.Context, old, changed *v1.Node) (*v1.Node, error)
	// PatchNodeStatus is PatchNode for the status only. Addresses are replaced as a whole,
	// conditions merged.
	PatchNodeStatus(ctx context.Context, old, changed *v1.Node) (*v1.Node, error)
}

// Leases is the API of leases. The contract of Nodes applies.
type Leases interface {
	GetLease(ctx context.Context, namespace, name string) (*coordinationv1.Lease, error)
	CreateLease(ctx context.Context, l *coordinationv1.Lease) (*coordinationv1.Lease, error)
	// UpdateLease replaces the lease; it returns Conflict if the resource version has changed.
	UpdateLease(ctx context.Context, l *coordinationv1.Lease) (*coordinationv1.Lease, error)
}

// Recorder records events about the Node.
type Recorder interface {
	// Event records one event; eventtype is v1.EventTypeNormal or v1.EventTypeWarning. It never
	// blocks.
	Event(eventtype, reason, message string)
}

// Sources provide the facts for the status: every UpdateFrequency, and at each wake-up. They answer
// at once, from memory.
type Sources struct {
	// Machine reads the machine; nil reads this one.
	Machine func() (Machine, error)
	// Network finds addresses; the zero value uses this machine.
	Network Network
	// Runtime is RuntimeHealth.State.
	Runtime func() RuntimeState
	// Images returns the images on the node.
	Images func(context.Context) ([]v1.ContainerImage, error)
	// Problems returns the reasons why the node is not ready besides missing capacity, as they
	// appear in the message of Ready.
	Problems func() []error
	// Pressure returns the pressure conditions of eviction.
	Pressure func() Pressure
	// Devices returns the resources of device plugins.
	Devices func() Devices
	// DevicesForgotten reports whether the devices of an earlier agent are unknown, so that the
	// extended resources of an existing Node must be reset. It is called with a lock held.
	DevicesForgotten func() bool
	// VolumesInUse returns the attachable volumes that are mounted or about to be, nil while they
	// are not known yet.
	VolumesInUse func() []v1.UniqueVolumeName
}

// Defaults of KubeletConfiguration.
const (
	DefaultUpdateFrequency = 10 * time.Second
	DefaultReportFrequency = 5 * time.Minute
	DefaultLeaseDuration   = 40 * time.Second
)

// Config is the configuration of a Node.
type Config struct {
	Settings Settings
	Sources  Sources

	Nodes    Nodes
	Leases   Leases
	Recorder Recorder
	Log      *slog.Logger

	// UpdateFrequency is nodeStatusUpdateFrequency: the interval of status checks.
	UpdateFrequency time.Duration
	// ReportFrequency is nodeStatusReportFrequency: the interval of status writes without a change.
	ReportFrequency time.Duration
	// LeaseDuration is nodeLeaseDurationSeconds; the lease is renewed after a quarter of it.
	LeaseDuration time.Duration

	// RootDir is the agent's root directory; the size of its file system is the capacity of
	// ephemeral-storage.
	RootDir string
	// LabelsFile stores the labels that the API server last returned.
	LabelsFile string
	// CloseIdleConnections closes idle connections to the API server, as one may be dead.
	CloseIdleConnections func()
	// Current publishes the Node.
	Current *Current
	// Random returns a number in [0,1); nil is math/rand.
	Random func() float64
	// Metrics is where metrics are registered; nil: they are not. They measure the startup of a
	// Node that the agent creates, from the start of the machine (Booted) and of the agent
	// (Started); zero times are not known.
	Metrics         prometheus.Registerer
	Booted, Started time.Time
}

// Node maintains this machine's Node object. Its methods are safe for concurrent use.
type Node struct {
	// Current is Config.Current.
	Current     *Current
	cfg         Config
	metrics     *metrics
	callTimeout time.Duration
	clock       clock
}

// New returns a Node. Errors name the missing field.
func New(cfg Config) (*Node, error) {
	switch {
	case cfg.Settings.Name == "":
		return nil, errors.New("node: Settings.Name is empty")
	case cfg.Nodes == nil || cfg.Leases == nil || cfg.Recorder == nil || cfg.Log == nil:
		return nil, errors.New("node: Nodes, Leases, Recorder and Log are all needed")
	case cfg.LabelsFile == "" || cfg.RootDir == "":
		return nil, errors.New("node: LabelsFile and RootDir are both needed")
	case cfg.LeaseDuration != 0 && cfg.LeaseDuration < time.Second:
		return nil, fmt.Errorf("node: LeaseDuration is %v: a lease lasts whole seconds", cfg.LeaseDuration)
	}
	setDefault(&cfg.UpdateFrequency, DefaultUpdateFrequency)
	setDefault(&cfg.ReportFrequency, DefaultReportFrequency)
	setDefault(&cfg.LeaseDuration, DefaultLeaseDuration)
	if cfg.Sources.Machine == nil {
		cfg.Sources.Machine = Host{Root: "/", Dir: cfg.RootDir}.Read
	}
	if cfg.Sources.Network.Interfaces == nil {
		cfg.Sources.Network = HostNetwork()
	}
	if !cfg.Settings.RegisterNode {
		cfg.Current.correct() // a Node that another client registers is not corrected
	}
	cfg.Current.forgotten = cfg.Sources.DevicesForgotten
	if cfg.Random == nil {
		cfg.Random = rand.Float64
	}
	return &Node{
		cfg:         cfg,
		metrics:     newMetrics(&cfg),
		callTimeout: min(10*time.Second, cfg.LeaseDuration),
		Current:     cfg.Current,
	}, nil
}

func setDefault(d *time.Duration, value time.Duration) {
	if *d == 0 {
		*d = value
	}
}

// Load creates the stand-in that Node returns before the API server has answered: from this machine
// and its configuration, with the labels that the API server last returned. It makes no API calls.
func (n *Node) Load() {
	machine, err := n.cfg.Sources.Machine()
	if err != nil {
		n.cfg.Log.Warn("facts of the machine not read", "error", err)
	}
	stored, err := readLabels(n.cfg.LabelsFile, n.cfg.Settings.Name)
	if err != nil {
		n.cfg.Log.Warn("static pods see the labels of the configuration until the API server answers", "error", err)
	}
	known := generateNode(&n.cfg.Settings, &Facts{Machine: machine}, time.Now())
	maps.Copy(known.Labels, stored)
	n.Current.standIn(known)
}

// Run registers the Node, reports its status and renews its lease until ctx is done. While the API
// server is unavailable, it retries.
func (n *Node) Run(ctx context.Context) error {
	if n.Current.Node() == nil {
		n.Load()
	}
	n.cfg.Recorder.Event(v1.EventTypeNormal, "Starting", "Starting kubelet.")
	var running sync.WaitGroup
	running.Go(func() { n.renewLease(ctx) })
	running.Go(func() { newReporter(n).run(ctx) })
	running.Wait()
	return ctx.Err()
}

// ClockHealth returns an error if the machine's clock was set during the last hour.
func (n *Node) ClockHealth() error { return n.clock.health() }

// read gets the Node from the API server and adopts it.
func (n *Node) read(ctx context.Context) (*v1.Node, error) {
	ctx, cancel := context.WithTimeout(ctx, n.callTimeout)
	defer cancel()
	got, err := n.cfg.Nodes.GetNode(ctx, n.cfg.Settings.Name)
	if err != nil {
		return nil, err
	}
	n.Current.adopt(got)
	return got, nil
}

// jitter returns d plus up to part of it, so that nodes that started together do not stay
// synchronized.
func (n *Node) jitter(d time.Duration, part float64) time.Duration {
	return d + time.Duration(n.cfg.Random()*part*float64(d))
}

// complaint logs a repeated failure once, and its recovery.
type complaint struct {
	log    *slog.Logger
	what   string
	last   string // the error that was logged last, "" if there is none
	warned bool   // a failure was logged above debug level
}

// note takes the result of an attempt.
func (c *complaint) note(err error) {
	switch {
	case err == nil && c.last != "":
		level := slog.LevelDebug
		if c.warned {
			level = slog.LevelInfo
		}
		c.log.Log(context.Background(), level, c.what+": succeeds again", "was", c.last)
		c.last, c.warned = "", false
	case err != nil && err.Error() != c.last:
		level := kube.LogLevel(err, slog.LevelWarn)
		c.log.Log(context.Background(), level, c.what+": fails, and is tried again", "error", err)
		c.last, c.warned = err.Error(), c.warned || level == slog.LevelWarn
	}
}
