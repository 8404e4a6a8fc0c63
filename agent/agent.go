// Package agent is the composition root: it builds every component, joins them, and runs them in
// order.
//
// Owns: the wiring (wire.go, joints.go), the start order (phases.go), the table of health
// conditions (health.go), the lock on the root directory.
// Reads: its Config.
// Never: does a component's work.
package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	mount "k8s.io/mount-utils"

	"berth/internal/api/server"
	"berth/internal/cluster/node"
	"berth/internal/config"
	"berth/internal/host/cgroups"
	"berth/internal/host/hostports"
	"berth/internal/host/iptables"
	"berth/internal/host/rootlock"
	"berth/internal/host/systemd"
	"berth/internal/host/tuning"
	"berth/internal/localapi/auth"
	"berth/internal/observe/oom"
	"berth/internal/resources/machine"
	"berth/internal/runtime/containerlogs"
	"berth/internal/runtime/cri"
	"berth/internal/source/podconfig"
	"berth/internal/storage/plugins"
	"berth/internal/storage/volumes"
	"berth/internal/sync/eviction"
	"berth/internal/sync/nodeshutdown"
)

// Config is what a user decides about an agent. Default returns that of an agent which nobody has
// told anything.
type Config struct {
	// RootDir holds everything that the agent keeps; RunDir its socket. Both absolute.
	RootDir, RunDir string
	// NodeName is the node's name, lower case.
	NodeName string
	// Paths are the files, folders and URLs of manifests.
	Paths []string
	// AllowUnknownFields has berth run ignore fields of manifests that there are not, as the
	// kubelet does, where it would refuse the manifest.
	AllowUnknownFields bool
	// Source is where pods come from besides Paths: a program that the agent is part of. It runs as
	// long as the agent, and hands over the complete set of what should be here, now and each time
	// that it changes: a pod that is not in it any more ends, and one that is another than before
	// is replaced. The error of set names what of it is refused; the rest is in force, and of what
	// is refused what was before. Until the first set nothing ends that an earlier agent has left.
	// A Source that returns nil has said its last word; with an error the agent ends. nil: there is
	// none.
	Source func(ctx context.Context, set func(Desired) error) error
	// OnStatus is called with each pod and its newest status, at first and each time that it
	// changes; OnRemoved with a pod of which nothing is left on this machine, as it was last. Both
	// are called from one goroutine, which waits for them, and see the newest state alone. Neither
	// changes what it is given. nil: nobody is told.
	OnStatus, OnRemoved func(*v1.Pod)
	// RuntimeEndpoint is a CRI socket, or "" for the embedded runtime.
	RuntimeEndpoint string
	// RuntimeHandler is the runtime's handler for pods that name no RuntimeClass. The embedded one
	// has "runc" and "keeper"; "" is keeper there, where the machine can have keepers and the agent
	// is no kubelet and without SELinux, else the one that the runtime takes then.
	RuntimeHandler string
	// ImageEndpoint is a CRI socket of images alone, "" for the runtime's.
	ImageEndpoint string
	// PodCIDR is the range of the pods' addresses, or one of each family with a comma between them;
	// "" has the embedded runtime take a free one. For a member of a cluster that of its Node
	// counts.
	PodCIDR string
	// CgroupRoot is the cgroup below which kubepods lies; "" is the root.
	CgroupRoot string
	// CgroupDriver is "cgroupfs" or "systemd": what the embedded runtime is told to use, and what a
	// foreign one is taken to use that does not tell. "" is systemd where systemd runs the host on
	// cgroup v2, else cgroupfs.
	CgroupDriver string
	// SELinux: the embedded runtime labels containers by the host's policy, and as pods ask.
	SELinux bool
	// ImagePullProgressDeadline: the embedded runtime ends a pull of which less than 64 KiB come in
	// this time; 0 is 5 minutes.
	ImagePullProgressDeadline time.Duration
	// PodLogsDir is the folder of pod logs; ContainerLogsDir the folder of links for log shippers,
	// "" for none.
	PodLogsDir, ContainerLogsDir string
	// Kubelet is what a member of a cluster is told besides; nil for berth run. Load has checked
	// it.
	Kubelet *config.Kubelet
	// Run is what berth run is told besides: eviction, logs of containers, shutdowns of the
	// machine. nil: no pod is evicted because the node runs short, and no shutdown waits for pods.
	// config.LoadRun has checked it.
	Run *config.KubeletConfiguration
	// LocalAPI is the Kubernetes API of this machine, for an agent without Kubelet; nil: there is
	// none.
	LocalAPI *LocalAPI
	// MaxPods is how many pods an agent without Kubelet takes; 0 is admission.LocalMaxPods. With
	// Kubelet its own maxPods counts.
	MaxPods int
	// AtExit says what becomes of pods and runtime when the agent ends.
	AtExit AtExit
	// Version is the agent's own.
	Version string
	Log     *slog.Logger
	// Started is called after each phase of the start: what the phase needed may not be needed
	// again. nil: nothing is.
	Started func()
	// AtRest is called when nothing has become of any pod for a while after something did, or after
	// the start; nil: nothing is.
	AtRest func()
	// Service is what systemd wants to know of the agent.
	Service systemd.Service
	// LogLevel is the level of Log, for those who may change it; nil: nobody.
	LogLevel *slog.LevelVar
	// Outside is the world that the agent is in; the zero value is the real one.
	Outside Outside
}

// AtExit says what becomes of pods and runtime when the agent ends.
type AtExit int

const (
	// KeepPods leaves pods and runtime as they are; the next agent takes them over.
	KeepPods AtExit = iota
	// StopPods stops and removes all pods and ends the embedded runtime.
	StopPods
	// RemoveAll also removes what the embedded runtime and the agent keep below the root directory.
	RemoveAll
)

// Outside is the outside world; the zero value is the real one. Tests replace its parts; those of
// other modules take that of agenttest.Machine.
type Outside struct {
	// DialCRI connects to the runtime; nil dials the endpoint.
	DialCRI cri.Dialer
	// Cgroups replaces the cgroup tree.
	Cgroups ContainerManager
	// Kernel replaces the kernel as the source of OOM kills.
	Kernel oom.Kernel
	// Mounter replaces mount(2).
	Mounter mount.Interface
	// Disk returns size and free part, in bytes, of the file system that a folder is on; nil asks
	// this machine.
	Disk func(folder string) (capacity, available uint64, err error)
	// Readings replaces what the kernel and the runtime tell evictionManager of the machine.
	Readings eviction.Readings
	// Logind replaces what connects to systemd-logind.
	Logind func(ctx context.Context) (nodeshutdown.Logind, error)
	// Transport replaces HTTP to the URLs of manifests.
	Transport http.RoundTripper
	// Watch replaces inotify.
	Watch podconfig.WatchFunc
	// Plugins replaces inotify for the sockets of plugins.
	Plugins func() (plugins.Watch, error)
	// LogWrites replaces inotify for the logs of containers.
	LogWrites func() (containerlogs.Writes, error)
	// DialPlugin connects to the sockets of plugins; nil is the machine's.
	DialPlugin func(ctx context.Context, socket string) (net.Conn, error)
	// ListenPlugins opens the sockets for device plugins, and of the pod-resources API; nil is the
	// machine's.
	ListenPlugins func(path string) (net.Listener, error)
	// Layout reads how processors and memory of the machine lie; nil reads this one.
	Layout func() (machine.Machine, error)
	// Machine reads what the Node says of the machine; nil reads this one. Network finds the Node's
	// addresses; the zero value asks this machine.
	Machine func() (node.Machine, error)
	// Random spreads what the node tells the API server, by numbers in [0,1); nil is math/rand.
	Random func() float64
	// Tuning replaces the kernel's settings and the limits of the agent's process.
	Tuning tuning.Machine
	// Chains replaces iptables.
	Chains  iptables.Machine
	Network node.Network
	// Dial connects to containers, for probes and hooks; nil is the network.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// HostPorts says which ports of the machine are in use; nil asks the kernel.
	HostPorts hostports.Table
	// REST is the API server; nil: the one of the kubeconfig.
	REST *rest.Config
	// Listen opens the local socket; nil listens on <RunDir>/berth.sock.
	Listen func() (net.Listener, error)
	// ListenAPI opens the socket and the port of the local API; nil is net.Listen.
	ListenAPI func(network, address string) (net.Listener, error)
	// WatchRules replaces inotify for the rules of the local API.
	WatchRules func() (auth.Watcher, error)
	// Metrics is the registry of /metrics and SLIs that of /metrics/slis, each of one agent alone;
	// nil is a new one.
	Metrics, SLIs Registry
}

// Registry is where metrics are registered and gathered.
type Registry interface {
	prometheus.Registerer
	prometheus.Gatherer
}

// Validate checks the configuration; the error names the field and the fix.
func (c *Config) Validate() error {
	var errs []error
	for _, d := range []struct{ name, value string }{{"root directory", c.RootDir}, {"run directory", c.RunDir}, {"pod logs directory", c.PodLogsDir}} {
		if !filepath.IsAbs(d.value) || filepath.Clean(d.value) != d.value {
			errs = append(errs, fmt.Errorf("%s %q: must be an absolute, clean path", d.name, d.value))
		}
	}
	if c.NodeName == "" || strings.ToLower(c.NodeName) != c.NodeName {
		errs = append(errs, fmt.Errorf("node name %q: must be a lower-case name", c.NodeName))
	}
	if c.LocalAPI != nil && c.Kubelet != nil {
		errs = append(errs, errors.New("local API: a kubelet has that of its cluster"))
	}
	if slices.ContainsFunc(strings.Split(c.CgroupRoot, "/"), func(word string) bool { return word == "." || word == ".." }) {
		errs = append(errs, fmt.Errorf("cgroup root %q: must be the name of a cgroup, such as /pods", c.CgroupRoot))
	}
	if c.MaxPods < 0 {
		errs = append(errs, fmt.Errorf("most pods %d: must not be negative", c.MaxPods))
	}
	if c.Log == nil {
		errs = append(errs, errors.New("no logger given"))
	}
	return errors.Join(errs...)
}

// Build makes an agent. It starts nothing.
func Build(cfg Config) (*Agent, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if cfg.CgroupRoot != "" { // as a kubelet, which takes the name without a slash, too
		cfg.CgroupRoot = path.Join("/", cfg.CgroupRoot)
	}
	return wire(cfg, cfg.Outside)
}

// Handlers is what the HTTP API serves, for use within the process.
func (a *Agent) Handlers() server.Handlers { return a.handlers() }

// Run runs the agent until ctx is done or a client asks it to stop, and returns nil then; other
// reasons to end are errors. Pods go on running unless AtExit says otherwise. An agent runs once.
func (a *Agent) Run(ctx context.Context) error {
	if err := checkProgram(&a.out); err != nil {
		return err
	}
	return a.run(ctx, a.phases())
}

// claim locks what must be the agent's own, and opens its socket: an agent that is already in the
// run directory must be found before anything of it is touched, and clients that come while the
// runtime starts wait instead of hearing that there is no agent.
func (a *Agent) claim() (release func(), err error) {
	l, unlock, err := a.claimFolders()
	if err != nil {
		return nil, err
	}
	unlockCgroups := func() {}
	if a.out.Cgroups == nil {
		if unlockCgroups, err = rootlock.LockCgroups(rootlock.CgroupFolder, a.cfg.CgroupRoot); err != nil {
			unlock()
			return nil, err
		}
	}
	a.listener <- l
	return func() {
		unlockCgroups()
		unlock()
	}, nil
}

// claimFolders locks the root and the run directory, and opens the agent's socket.
func (a *Agent) claimFolders() (l net.Listener, release func(), err error) {
	unlock, err := rootlock.Lock(a.cfg.RootDir)
	if err != nil {
		return nil, nil, err
	}
	if l, err = a.listen(); err != nil {
		unlock()
		return nil, nil, err
	}
	return l, func() {
		l.Close()
		unlock()
	}, nil
}

// run claims what must be the agent's own, and runs the phases.
func (a *Agent) run(ctx context.Context, phases []phase) (err error) {
	defer func() { err = errors.Join(err, a.cri.Close()) }()
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	defer context.AfterFunc(a.asked, func() { stop(errStopped) })()
	if rootlock.IsReadOnly(a.cfg.RootDir) {
		return readOnlyError(a.cfg.RootDir)
	}
	release, err := a.claim()
	if err != nil {
		return err
	}
	defer func() {
		if err != nil || a.Exit() != RemoveAll {
			release()
			return
		}
		err = removeLast(&a.cfg) // with the locks in hand, which are among it
		release()
		err = errors.Join(err, removeFolders(&a.cfg))
	}()
	if err := a.tuner.Start(); err != nil {
		return err
	}
	if err := errors.Join(makeDirs(&a.cfg), a.saveConfig()); err != nil {
		return err
	}
	a.shareRoot()
	removeLeftRegistry(ctx, &a.cfg, &a.out)
	closeRecords, err := a.openRecords()
	if err != nil {
		return err
	}
	defer closeRecords()
	a.reportSwappedMemory(swapsFile, volumes.TmpfsKnowsNoswap)
	if a.out.Cgroups == nil {
		version, _ := cgroups.Detect()
		tellCgroupV1(a.recorder, version)
	}
	told := milestones{started: a.cfg.Started, failed: func(err error) {
		a.recorder.NodeEvent(v1.EventTypeWarning, "KubeletSetupFailed", err.Error())
	}}
	if told.started == nil {
		told.started = func() {}
	}
	err = runPhases(ctx, phases, told, a.cfg.Log)
	if len(a.drain.Left()) > 0 && a.Exit() == StopPods && errors.Is(context.Cause(ctx), errStopped) {
		// Told to who asked, by CheckEnded. A failure of ours would have a service manager start
		// us, and the pods, again.
		a.cfg.Log.Error("Pods are still running after stop --all", "error", err)
		err = nil
	}
	return err
}

// makeDirs makes the folders that several components use.
func makeDirs(cfg *Config) error {
	dirs := []struct {
		path string
		mode os.FileMode
	}{{filepath.Join(cfg.RootDir, "pods"), 0o750}, {cfg.PodLogsDir, 0o750}, {cfg.ContainerLogsDir, 0o755}}
	for _, d := range dirs {
		if d.path == "" {
			continue
		}
		if err := os.MkdirAll(d.path, d.mode); err != nil {
			return fmt.Errorf("folders of the agent: %w", err)
		}
	}
	return nil
}
