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

// Nodes is the part of the API server that holds Nodes. Calls are made with a deadline; errors are
// those of the API (apierrors), and name the call and the object; what is returned may be shared,
// what is given is not changed any more.
type Nodes interface {
	GetNode(ctx context.Context, name string) (*v1.Node, error)
	// CreateNode makes the Node with its status.
	CreateNode(ctx context.Context, n *v1.Node) (*v1.Node, error)
	// PatchNode writes what differs between old and changed, except the status, and returns the
	// Node as it is then. It is a conflict if the Node has not the UID of old any more.
	PatchNode(ctx context.Context, old, changed *v1.Node) (*v1.Node, error)
	// PatchNodeStatus is PatchNode for the status alone. Addresses are replaced as a whole,
	// conditions merged.
	PatchNodeStatus(ctx context.Context, old, changed *v1.Node) (*v1.Node, error)
}

// Leases is the part of the API server that holds leases. It is used as Nodes is.
type Leases interface {
	GetLease(ctx context.Context, namespace, name string) (*coordinationv1.Lease, error)
	CreateLease(ctx context.Context, l *coordinationv1.Lease) (*coordinationv1.Lease, error)
	// UpdateLease replaces the lease, unless it has another resource version by now (Conflict).
	UpdateLease(ctx context.Context, l *coordinationv1.Lease) (*coordinationv1.Lease, error)
}

// Recorder records events about the Node.
type Recorder interface {
	// Event records one event; eventtype is v1.EventTypeNormal or v1.EventTypeWarning. It never
	// blocks.
	Event(eventtype, reason, message string)
}

// Sources are asked for the facts whenever the status is looked at: every UpdateFrequency, and at
// each wake-up. They answer at once, from what they know. What is nil is left out.
type Sources struct {
	// Machine reads the machine; nil reads this one.
	Machine func() (Machine, error)
	// Network finds addresses; the zero value asks this machine.
	Network Network
	// Runtime is RuntimeHealth.State.
	Runtime func() RuntimeState
	// Images returns the images on the node.
	Images func(context.Context) ([]v1.ContainerImage, error)
	// Problems returns what makes the node not ready besides missing capacity, in the words of the
	// message of Ready.
	Problems func() []error
	// Pressure is what eviction sees; nil: the node is short of nothing.
	Pressure func() Pressure
	// Devices are what device plugins offer.
	Devices func() Devices
	// DevicesForgotten reports whether nobody knows which devices an agent before this one had, so
	// that those of a Node that is there already are nobody's; nil: so it is. It is called with a
	// lock held.
	DevicesForgotten func() bool
	// VolumesInUse are the attachable volumes that are, or are about to be, mounted; nil: it is not
	// known yet.
	VolumesInUse func() []v1.UniqueVolumeName
}

// Defaults of KubeletConfiguration.
const (
	DefaultUpdateFrequency = 10 * time.Second
	DefaultReportFrequency = 5 * time.Minute
	DefaultLeaseDuration   = 40 * time.Second
)

// Config is what a Node is made from.
type Config struct {
	Settings Settings
	Sources  Sources

	Nodes    Nodes
	Leases   Leases
	Recorder Recorder
	Log      *slog.Logger

	// UpdateFrequency is nodeStatusUpdateFrequency: how often the facts are looked at.
	UpdateFrequency time.Duration
	// ReportFrequency is nodeStatusReportFrequency: how often a status is written that has not
	// changed.
	ReportFrequency time.Duration
	// LeaseDuration is nodeLeaseDurationSeconds; the lease is renewed after a quarter of it.
	LeaseDuration time.Duration

	// RootDir is the agent's root directory; the size of its file system is the capacity of
	// ephemeral-storage.
	RootDir string
	// LabelsFile keeps the labels that the API server last showed.
	LabelsFile string
	// CloseIdleConnections drops the API server's idle connections, when one may lead nowhere; nil
	// if there is nothing to drop.
	CloseIdleConnections func()
	// Current is where the Node is to be found; nil: only in the Node that New returns.
	Current *Current
	// Random returns a number in [0,1); nil is math/rand.
	Random func() float64
	// Metrics is where metrics are registered; nil: nowhere. They tell of the start of a Node that
	// the agent makes itself, which begins with that of the machine (Booted) and of the agent
	// (Started); zero times are not known.
	Metrics         prometheus.Registerer
	Booted, Started time.Time
}

// Node keeps this machine's Node. Its methods are safe for concurrent use.
type Node struct {
	*Current
	cfg         Config
	metrics     *metrics
	callTimeout time.Duration
	book        addressBook // of the goroutine that reports
	imageCache  imageCache  // of the same goroutine
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
	if cfg.Current == nil {
		cfg.Current = NewCurrent()
	}
	if !cfg.Settings.RegisterNode {
		cfg.Current.correct() // a Node that others register is theirs to correct
	}
	if cfg.Sources.DevicesForgotten != nil {
		cfg.Current.forgotten = cfg.Sources.DevicesForgotten
	}
	if cfg.CloseIdleConnections == nil {
		cfg.CloseIdleConnections = func() {}
	}
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

// Load makes the stand-in that Node returns before the API server has answered: what this machine
// and its configuration say, with the labels that the API server last showed. It asks nobody but
// this machine.
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
	n.standIn(known)
}

// Run registers the Node, reports its status and renews its lease until ctx is done. While the API
// server is away it tries again and again; nothing else comes of it.
func (n *Node) Run(ctx context.Context) error {
	if n.Node() == nil {
		n.Load()
	}
	n.cfg.Recorder.Event(v1.EventTypeNormal, "Starting", "Starting kubelet.")
	var running sync.WaitGroup
	running.Go(func() { n.renewLease(ctx) })
	running.Go(func() { n.report(ctx) })
	running.Wait()
	return ctx.Err()
}

// ClockHealth says that the machine's clock was set during the last hour; nil if it was not.
func (n *Node) ClockHealth() error { return n.clock.health() }

// read gets the Node from the API server.
func (n *Node) read(ctx context.Context) (*v1.Node, error) {
	ctx, cancel := context.WithTimeout(ctx, n.callTimeout)
	defer cancel()
	got, err := n.cfg.Nodes.GetNode(ctx, n.cfg.Settings.Name)
	if err != nil {
		return nil, err
	}
	n.adopt(got)
	return got, nil
}

// jitter returns d, stretched by up to part of it, so that nodes that started together do not call
// together for ever.
func (n *Node) jitter(d time.Duration, part float64) time.Duration {
	return d + time.Duration(n.cfg.Random()*part*float64(d))
}

// complaint logs a repeated failure once, and its end.
type complaint struct {
	log  *slog.Logger
	what string
	last string // the error that was logged, "" if there is none
	told bool   // a failure was logged, and not for debugging only
}

// note takes the outcome of one more try.
func (c *complaint) note(err error) {
	switch {
	case err == nil && c.last != "":
		level := slog.LevelDebug
		if c.told {
			level = slog.LevelInfo
		}
		c.log.Log(context.Background(), level, c.what+": succeeds again", "was", c.last)
		c.last, c.told = "", false
	case err != nil && err.Error() != c.last:
		level := kube.LogLevel(err, slog.LevelWarn)
		c.log.Log(context.Background(), level, c.what+": fails, and is tried again", "error", err)
		c.last, c.told = err.Error(), c.told || level == slog.LevelWarn
	}
}
