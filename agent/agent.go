// Package agent is the composition root: it creates all components, connects them, and runs them in
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

// Config is the configuration of an agent. Default returns the defaults.
type Config struct {
	// RootDir is the directory of the agent's state, RunDir that of its socket. Both are absolute.
	RootDir, RunDir string
	// NodeName is the node's name, lower case.
	NodeName string
	// Paths are the files, directories and URLs of manifests.
	Paths []string
	// AllowUnknownFields makes berth run ignore unknown fields of manifests, as the kubelet does.
	// Otherwise such a manifest is rejected.
	AllowUnknownFields bool
	// Source is a pod source within the embedding program, in addition to Paths. It runs as long as
	// the agent and calls set with the complete desired set, initially and on each change: a pod
	// that is not in the set is terminated, a changed pod is replaced. The error of set names the
	// rejected objects; the others take effect, and a rejected object keeps its previous version.
	// Pods of an earlier agent are not terminated before the first set. If Source returns nil, the
	// last set stays in force; if it returns an error, the agent exits. nil: no such source.
	Source func(ctx context.Context, set func(Desired) error) error
	// OnStatus is called with each pod and its newest status, initially and on each change.
	// OnRemoved is called with the last version of a pod of which nothing remains on this machine.
	// Both are called from one goroutine, which waits for them, and may skip intermediate states.
	// They must not modify the pod. nil: no calls.
	OnStatus, OnRemoved func(*v1.Pod)
	// RuntimeEndpoint is a CRI socket; "" selects the embedded runtime.
	RuntimeEndpoint string
	// RuntimeHandler is the runtime handler of pods without a RuntimeClass. The embedded runtime
	// has "runc" and "podshim". "" selects podshim in run mode if the machine supports it,
	// otherwise the runtime's default.
	RuntimeHandler string
	// ImageEndpoint is the CRI socket of the image service, "" for the runtime's.
	ImageEndpoint string
	// PodCIDR is the range of pod addresses, or one per address family, separated by a comma. With
	// "", the embedded runtime chooses a free range. A cluster member uses its Node's ranges.
	PodCIDR string
	// CgroupRoot is the parent cgroup of kubepods; "" is the root.
	CgroupRoot string
	// CgroupDriver is "cgroupfs" or "systemd": the driver of the embedded runtime, and of a foreign
	// runtime that does not report its own. "" is systemd if systemd runs the host on cgroup v2,
	// otherwise cgroupfs.
	CgroupDriver string
	// SELinux makes the embedded runtime label containers by the host's policy and the pods'
	// seLinuxOptions.
	SELinux bool
	// ImagePullProgressDeadline makes the embedded runtime cancel a pull that transfers less than
	// 64 KiB in this time; 0 is 5 minutes.
	ImagePullProgressDeadline time.Duration
	// PodLogsDir is the directory of pod logs; ContainerLogsDir that of the links for log shippers,
	// "" for none.
	PodLogsDir, ContainerLogsDir string
	// Kubelet is the configuration of kubelet mode; nil for berth run. Load has validated it.
	Kubelet *config.Kubelet
	// Run is the KubeletConfiguration of berth run: eviction, container logs, graceful node
	// shutdown. nil: no eviction under node pressure and no graceful shutdown. config.LoadRun has
	// validated it.
	Run *config.KubeletConfiguration
	// LocalAPI configures the local API of an agent without Kubelet; nil: no local API.
	LocalAPI *LocalAPI
	// MaxPods is the maximum number of pods of an agent without Kubelet; 0 is
	// admission.LocalMaxPods. With Kubelet, its maxPods applies.
	MaxPods int
	// AtExit selects what happens to pods and runtime when the agent exits.
	AtExit AtExit
	// Version is the agent's version.
	Version string
	Log     *slog.Logger
	// Started is called after each start phase, when memory of that phase may be released. nil: no
	// calls.
	Started func()
	// AtRest is called when no pod status has changed for a while after a change or the start; nil:
	// no calls.
	AtRest func()
	// Service notifies systemd of the agent's state.
	Service systemd.Service
	// LogLevel is the level of Log, which clients with permission can change; nil: it cannot be
	// changed.
	LogLevel *slog.LevelVar
	// Environment is the agent's environment; the zero value is the real one.
	Environment Environment
}

// AtExit selects what happens to pods and runtime when the agent exits.
type AtExit int

const (
	// KeepPods leaves pods and runtime running; the next agent adopts them.
	KeepPods AtExit = iota
	// StopPods stops and removes all pods and stops the embedded runtime.
	StopPods
	// RemoveAll also removes the state of the agent and the embedded runtime below the root
	// directory.
	RemoveAll
)

// Environment is the agent's environment; the zero value is the real one. Tests replace its fields;
// tests of other modules use agenttest.Machine.
type Environment struct {
	// DialCRI connects to the runtime; nil dials the endpoint.
	DialCRI cri.Dialer
	// Cgroups replaces the cgroup tree.
	Cgroups ContainerManager
	// Kernel replaces the kernel's OOM kill reports.
	Kernel oom.Kernel
	// Mounter replaces mount(2).
	Mounter mount.Interface
	// Disk returns capacity and available bytes of the file system of a directory; nil reads this
	// machine.
	Disk func(folder string) (capacity, available uint64, err error)
	// Readings replaces the kernel's and runtime's readings for evictionManager.
	Readings eviction.Readings
	// Logind replaces the connection to systemd-logind.
	Logind func(ctx context.Context) (nodeshutdown.Logind, error)
	// Transport replaces HTTP for the URLs of manifests.
	Transport http.RoundTripper
	// Watch replaces inotify.
	Watch podconfig.WatchFunc
	// Plugins replaces inotify for the plugin sockets.
	Plugins func() (plugins.Watch, error)
	// LogWrites replaces inotify for container logs.
	LogWrites func() (containerlogs.Writes, error)
	// DialPlugin connects to plugin sockets; nil uses the machine's.
	DialPlugin func(ctx context.Context, socket string) (net.Conn, error)
	// ListenPlugins opens the sockets for device plugins and the pod-resources API; nil uses the
	// machine's.
	ListenPlugins func(path string) (net.Listener, error)
	// Layout reads the machine's CPU and memory topology; nil reads this machine.
	Layout func() (machine.Machine, error)
	// Machine reads the machine information for the Node; nil reads this machine. Network finds the
	// Node's addresses; the zero value uses this machine.
	Machine func() (node.Machine, error)
	// Random returns numbers in [0,1) that jitter node reports to the API server; nil is math/rand.
	Random func() float64
	// Tuning replaces the kernel settings and resource limits of the agent's process.
	Tuning tuning.Machine
	// Chains replaces iptables.
	Chains  iptables.Machine
	Network node.Network
	// Dial connects to containers, for probes and hooks; nil is the network.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// HostPorts reads the used ports of the machine; nil reads them from the kernel.
	HostPorts hostports.Table
	// REST configures the connection to the API server; nil uses the kubeconfig.
	REST *rest.Config
	// Listen opens the local socket; nil listens on <RunDir>/berth.sock.
	Listen func() (net.Listener, error)
	// ListenAPI opens the sockets of the local API; nil is net.Listen.
	ListenAPI func(network, address string) (net.Listener, error)
	// WatchRules replaces inotify for the authorization rules of the local API.
	WatchRules func() (auth.Watcher, error)
	// Metrics is the registry of /metrics, SLIs that of /metrics/slis. Each belongs to one agent;
	// nil creates one.
	Metrics, SLIs Registry
}

// Registry registers and gathers metrics.
type Registry interface {
	prometheus.Registerer
	prometheus.Gatherer
}

// Validate validates the configuration. The error names the field and the fix.
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

// Build creates an agent without starting it.
func Build(cfg Config) (*Agent, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if cfg.CgroupRoot != "" { // like the kubelet, accept the name without a slash
		cfg.CgroupRoot = path.Join("/", cfg.CgroupRoot)
	}
	return wire(cfg, cfg.Environment)
}

// Events returns the node's recorded events, the most recently seen last.
func (a *Agent) Events() []*v1.Event { return a.deps.events.List() }

// Node returns the Node: the newest from the API server, or this machine's description without one.
// It may wait for the runtime.
func (a *Agent) Node(ctx context.Context) (*v1.Node, error) { return a.node.node.Describe(ctx) }

// Run runs the agent until ctx is done or a client requests a stop, and then returns nil; any other
// termination is an error. Pods keep running unless AtExit selects otherwise. An agent runs only
// once.
func (a *Agent) Run(ctx context.Context) error {
	if err := checkProgram(&a.deps.out); err != nil {
		return err
	}
	return a.run(ctx, a.phases())
}

// claim takes the agent's locks and opens its socket. Another agent in the run directory must be
// detected before anything is modified, and clients that connect while the runtime starts wait
// instead of failing.
func (a *Agent) claim() (release func(), err error) {
	l, unlock, err := a.claimFolders()
	if err != nil {
		return nil, err
	}
	unlockCgroups := func() {}
	if a.deps.out.Cgroups == nil {
		if unlockCgroups, err = rootlock.LockCgroups(rootlock.CgroupFolder, a.deps.cfg.CgroupRoot); err != nil {
			unlock()
			return nil, err
		}
	}
	a.listeners.listener <- l
	return func() {
		unlockCgroups()
		unlock()
	}, nil
}

// claimFolders locks the root and the run directory, and opens the agent's socket.
func (a *Agent) claimFolders() (l net.Listener, release func(), err error) {
	unlock, err := rootlock.Lock(a.deps.cfg.RootDir)
	if err != nil {
		return nil, nil, err
	}
	if l, err = a.listeners.listen(); err != nil {
		unlock()
		return nil, nil, err
	}
	return l, func() {
		l.Close()
		unlock()
	}, nil
}

// run takes the agent's locks and runs the phases.
func (a *Agent) run(ctx context.Context, phases []phase) (err error) {
	defer func() { err = errors.Join(err, a.runtime.cri.Close()) }()
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	defer context.AfterFunc(a.ending.asked, func() { stop(errStopped) })()
	if rootlock.IsReadOnly(a.deps.cfg.RootDir) {
		return readOnlyError(a.deps.cfg.RootDir)
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
		err = removeLast(&a.deps.cfg) // while the locks, which are removed too, are held
		release()
		err = errors.Join(err, removeFolders(&a.deps.cfg))
	}()
	if err := a.node.tuner.Start(); err != nil {
		return err
	}
	if err := errors.Join(makeDirs(&a.deps.cfg), a.saveConfig()); err != nil {
		return err
	}
	shareRoot(&a.deps)
	removeLeftAPIServer(ctx, &a.deps.cfg, &a.deps.out)
	closeRecords, err := a.openRecords()
	if err != nil {
		return err
	}
	defer closeRecords()
	a.deps.reportSwappedMemory(swapsFile, volumes.TmpfsKnowsNoswap)
	if a.deps.out.Cgroups == nil {
		version, _ := cgroups.Detect()
		tellCgroupV1(a.deps.recorder, version)
	}
	told := milestones{started: a.deps.cfg.Started, failed: func(err error) {
		a.deps.recorder.NodeEvent(v1.EventTypeWarning, "KubeletSetupFailed", err.Error())
	}}
	if told.started == nil {
		told.started = func() {}
	}
	err = runPhases(ctx, phases, told, a.deps.cfg.Log)
	if len(a.ending.drain.Left()) > 0 && a.Exit() == StopPods && errors.Is(context.Cause(ctx), errStopped) {
		// CheckEnded reports it to the client. With an error, a service manager would restart the
		// agent and the pods.
		a.deps.cfg.Log.Error("Pods are still running after stop --all", "error", err)
		err = nil
	}
	return err
}

// makeDirs creates the directories that several components share.
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
