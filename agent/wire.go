package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	mount "k8s.io/mount-utils"

	"berth/internal/admission"
	"berth/internal/cgroups"
	"berth/internal/cri"
	"berth/internal/embedded"
	"berth/internal/events"
	"berth/internal/images"
	"berth/internal/journal"
	"berth/internal/kuberuntime"
	"berth/internal/node"
	"berth/internal/pleg"
	"berth/internal/pod"
	"berth/internal/podconfig"
	"berth/internal/podsync"
	"berth/internal/podworkers"
	"berth/internal/server"
	"berth/internal/status"
	"berth/internal/syncloop"
	"berth/internal/volumes"
)

// Every joint of the agent: who is given to whom as what.
var (
	_ pleg.Runtime             = (*cri.Client)(nil)
	_ images.Runtime           = (*cri.Client)(nil)
	_ images.Recorder          = (*events.Recorder)(nil)
	_ kuberuntime.Recorder     = (*events.Recorder)(nil)
	_ podsync.ContainerRuntime = (*kuberuntime.Runtime)(nil)
	_ podsync.Cgroups          = (*cgroups.Manager)(nil)
	_ podsync.Volumes          = (*volumes.Manager)(nil)
	_ podworkers.PodSyncer     = (*podsync.Syncer)(nil)
	_ podworkers.Observer      = (*pleg.PLEG)(nil)
	_ podworkers.Admitter      = (*admission.Chain)(nil)
	_ syncloop.PodSource       = (*podconfig.PodConfig)(nil)
	_ syncloop.PodWorkers      = (*podworkers.PodWorkers)(nil)
)

// parallelImagePulls is how many images are pulled at a time in run mode.
const parallelImagePulls = 4

// Agent is a built agent.
type Agent struct {
	cfg Config
	out Outside

	member   *member           // nil for berth run
	hostIPs  []string          // the node's addresses
	embedded *embedded.Runtime // nil with a foreign runtime
	ensured  chan struct{}     // closed when the embedded runtime serves
	cri      *cri.Client
	facts    facts
	journal  *journal.Journal
	pods     *pod.Manager
	status   *status.Manager
	pleg     *pleg.PLEG
	workers  *podworkers.PodWorkers
	syncer   *podsync.Syncer
	source   *podconfig.PodConfig
	loop     *syncloop.SyncLoop
	server   *server.Server

	listen   func() (net.Listener, error)
	listener chan net.Listener // capacity 1; opened by Run, taken by the server
	started  time.Time
	stopping context.CancelCauseFunc // set by Run
	scanned  bool                    // leftovers has looked at the disk

	mu     sync.Mutex
	atExit AtExit // guarded by mu; a client's stop may raise it
}

// wire builds every component, bottom up.
func wire(cfg Config, out Outside) (_ *Agent, err error) {
	var m *member
	if cfg.Kubelet != nil {
		if m, err = newMember(&cfg, out); err != nil {
			return nil, err
		}
	}
	a := &Agent{member: m, cfg: cfg, out: out, atExit: cfg.AtExit, started: time.Now(), ensured: make(chan struct{}), listener: make(chan net.Listener, 1)}
	endpoint := cfg.RuntimeEndpoint
	if endpoint == "" && out.DialCRI == nil {
		if a.embedded, err = embedded.New(embedded.Config{Root: cfg.RootDir, RunDir: cfg.RunDir, Subnet: cfg.PodCIDR, Log: cfg.Log}); err != nil {
			return nil, err
		}
		endpoint = a.embedded.Endpoint()
	}
	memory, err := nodeMemory()
	if err != nil {
		return nil, err
	}
	a.hostIPs = nodeIPs(cfg.Log)

	a.journal = journal.New(cfg.Log)
	a.pods = pod.NewManager()
	states := pod.NewStates()
	recorder := events.New(a.journal)
	if m != nil && m.api != nil {
		recorder = events.NewWithSender(a.journal, m.api.sender, cfg.NodeName, a.apiUID)
	}
	if a.cri, err = cri.New(cri.Config{Endpoint: endpoint, Dial: out.DialCRI}); err != nil {
		return nil, err
	}
	a.facts.cgroups = out.Cgroups
	mounter := out.Mounter
	if mounter == nil {
		mounter = mount.New("")
	}
	volumeConfig := volumes.Config{Root: cfg.RootDir, AllocatableMemory: memory, Mounter: mounter, Log: cfg.Log, Journal: a.journal}
	if m != nil && m.api != nil {
		volumeConfig.Objects, volumeConfig.Allocatable = m.api.objects, a.allocatable
	}
	volumeManager, err := volumes.New(volumeConfig)
	if err != nil {
		return nil, err
	}
	puller := images.New(images.Config{Runtime: a.cri, Recorder: recorder, Journal: a.journal, MaxParallel: parallelImagePulls})
	a.status = status.NewManager(cfg.Log, a.journal)
	if m != nil {
		m.health = node.NewRuntimeHealth(a.cri, a.wakeNode, cfg.Log)
		if m.api != nil {
			if err := a.newNode(recorder); err != nil {
				return nil, err
			}
		}
	}
	a.pleg = pleg.New(a.cri, cfg.Log)
	runtimeConfig := kuberuntime.Config{
		CRI: a.cri, Images: puller, Recorder: recorder, Journal: a.journal, Log: cfg.Log,
		RootDir: cfg.RootDir, PodLogsDir: cfg.PodLogsDir, ContainerLogsDir: cfg.ContainerLogsDir,
		NodeMemory: memory, HostIPs: a.hostIPs,
	}
	if m != nil && m.api != nil {
		runtimeConfig.Objects, runtimeConfig.Allocatable = m.api.objects, a.allocatable
	}
	runtime := kuberuntime.New(runtimeConfig)
	syncConfig := podsync.Config{
		Runtime: runtime, Cgroups: &a.facts, Volumes: volumeManager, Status: a.status,
		Observe: func(ctx context.Context, uid pod.UID) (*pod.Status, error) {
			return a.pleg.Observe(ctx, uid, a.pleg.Mark())
		},
		WithTerminationMessages: runtime.WithTerminationMessages,
		Event:                   recorder.Event, Journal: a.journal, Log: cfg.Log,
		RootDir: cfg.RootDir, RuntimeName: a.facts.runtimeName, HostIPs: a.hostIPs,
	}
	if m != nil && m.api != nil {
		syncConfig.Objects = m.api.objects
	}
	a.syncer = podsync.New(syncConfig)
	admit := admission.New(admission.Config{
		Handlers: admission.Handlers(),
		Ready:    a.pleg.Relisted(),
		ActivePods: func() []*v1.Pod {
			var active []*v1.Pod
			for _, p := range a.pods.List() {
				l, ok := states.Get(p.UID)
				admitted := ok && l.State >= pod.Syncing && l.State < pod.Terminated
				if s, seen := a.pleg.Newest(p.UID); admitted || (seen && s.Active()) {
					active = append(active, p)
				}
			}
			return active
		},
		Reject: func(p *v1.Pod, r admission.Rejection) {
			recorder.Event(p, "", v1.EventTypeWarning, r.Reason, r.Message)
			a.status.Set(p, v1.PodStatus{Phase: v1.PodFailed, Reason: r.Reason, Message: "Pod was rejected: " + r.Message, QOSClass: cgroups.QOSClass(p)})
		},
	})
	a.workers = podworkers.New(podworkers.Config{Syncer: a.syncer, Observer: a.pleg, Admitter: admit, States: states, Journal: a.journal, Log: cfg.Log})
	if a.source, err = podconfig.New(a.sources()); err != nil {
		return nil, err
	}
	loop := syncloop.Config{
		Source: a.source, Workers: a.workers, Pods: a.pods,
		Changed: a.pleg.Changed(), Restored: a.pleg.Restored(), Relisted: a.pleg.Relisted(),
		Leftovers: a.leftovers, Log: cfg.Log,
	}
	if m != nil && m.api != nil {
		loop.Static, loop.Objects = m.api.static, m.api.objects.Changed()
		a.newReporting(states)
		loop.Shown = m.api.patcher.Compare
	}
	a.loop = syncloop.New(loop)
	a.listen = out.Listen
	if a.listen == nil {
		a.listen = func() (net.Listener, error) { return server.Listen(cfg.RunDir, cfg.Log) }
	}
	opened := func() (net.Listener, error) { return <-a.listener, nil }
	doors := server.Config{Handlers: a.handlers(), Listen: opened, Log: cfg.Log}
	if m != nil {
		if doors.Kubelet, err = a.newDoors(); err != nil {
			return nil, err
		}
		doors.StreamIdleTimeout = cfg.Kubelet.StreamingConnectionIdleTimeout.Duration
	}
	if a.server, err = server.New(doors); err != nil {
		return nil, err
	}
	return a, nil
}

// podsPhase is the place of the pod workers in phases.
const podsPhase = 3

// phases is the start order; stopping goes backwards.
func (a *Agent) phases() []phase {
	runtime := component{name: "container runtime", run: waitDone, ready: a.connect}
	if a.embedded != nil {
		runtime = component{name: "container runtime", run: a.superviseEmbedded, ready: a.startEmbedded, limit: 5 * time.Second}
	}
	return a.memberPhases([]phase{
		{"ground", []component{{name: "cleanup", run: waitDone, drain: a.removeAll}}},
		{"runtime", []component{runtime}},
		{"upkeep", []component{{name: "pleg", run: a.pleg.Run}}},
		{"pods", []component{{name: "pod workers", run: a.workers.Run, drain: a.drainPods}}},
		{"loop", []component{
			{name: "sync loop", run: a.loop.Run},
			{name: "pod config", run: a.source.Run},
			{name: "problems", run: a.followProblems},
		}},
		{"doors", []component{{name: "server", run: a.server.Run}}},
	})
}

// sources says where pods come from.
func (a *Agent) sources() podconfig.Config {
	c := podconfig.Config{NodeName: a.cfg.NodeName, Log: a.cfg.Log, Journal: a.journal, Paths: a.cfg.Paths, Names: podconfig.KeepNames, Watch: a.out.Watch}
	if k := a.cfg.Kubelet; k != nil {
		c.Names, c.Rescan = podconfig.MangleNames, k.FileCheckFrequency.Duration
		if a.member.api != nil {
			c.API = a.member.api.followPods
		}
	}
	return c
}

func waitDone(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}

func (a *Agent) startEmbedded(ctx context.Context) error {
	if _, err := a.embedded.Ensure(ctx); err != nil {
		return err
	}
	close(a.ensured)
	return a.connect(ctx)
}

// superviseEmbedded begins when the runtime was started for the first time.
func (a *Agent) superviseEmbedded(ctx context.Context) error {
	select {
	case <-a.ensured:
		return a.embedded.Run(ctx)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// connect waits for the runtime's answer and learns what can only be learned from it.
func (a *Agent) connect(ctx context.Context) error {
	for {
		v, err := a.cri.Version(ctx)
		if err == nil {
			driver := cgroups.Cgroupfs
			if d, err := a.cri.CgroupDriver(ctx); err == nil && d == runtimeapi.CgroupDriver_SYSTEMD {
				driver = cgroups.Systemd
			}
			return a.facts.set(v.RuntimeName, v.RuntimeVersion, func() (podsync.Cgroups, error) {
				m, err := cgroups.New(cgroups.Config{Root: a.cfg.CgroupRoot, Driver: driver, Log: a.cfg.Log})
				if err != nil {
					return nil, err
				}
				return m, m.EnsureQoS(ctx)
			})
		}
		a.cfg.Log.Warn("the container runtime does not answer", "error", err)
		select {
		case <-ctx.Done():
			return fmt.Errorf("container runtime: %w", err)
		case <-time.After(time.Second):
		}
	}
}

// drainLimit bounds the end of all pods: the longest usual grace period twice, and time to clean up.
const drainLimit = 90 * time.Second

// removeAll ends the embedded runtime and removes what was kept, as far as the agent was told to.
func (a *Agent) removeAll(ctx context.Context) error {
	exit := a.Exit()
	if exit == KeepPods {
		return nil
	}
	if a.embedded != nil {
		if err := a.embedded.Stop(ctx); err != nil {
			return err
		}
	}
	if exit != RemoveAll {
		return nil
	}
	errs := []error{a.facts.RemoveQoS()}
	if a.embedded != nil {
		errs = append(errs, a.embedded.Remove(ctx))
	}
	// Whatever else is there is not ours, and stays.
	for _, d := range []string{filepath.Join(a.cfg.RootDir, "pods"), a.cfg.PodLogsDir, a.cfg.ContainerLogsDir} {
		if err := os.Remove(d); err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ENOTEMPTY) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// Exit says what becomes of pods and runtime when the agent ends, a client's wish included.
func (a *Agent) Exit() AtExit {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.atExit
}

// leftovers returns what the runtime holds of pods and, the first time, what the disk does. The loop calls it, and the drain when the loop has
// stopped.
func (a *Agent) leftovers() []*pod.Status {
	out := a.pleg.Known()
	if a.scanned {
		return out
	}
	a.scanned = true
	known := map[pod.UID]bool{}
	for _, s := range out {
		known[s.UID] = true
	}
	add := func(uids []pod.UID, err error) {
		if err != nil {
			a.cfg.Log.Warn("leftovers of earlier pods not found", "error", err)
		}
		for _, uid := range uids {
			if !known[uid] {
				known[uid] = true
				out = append(out, &pod.Status{UID: uid})
			}
		}
	}
	add(a.syncer.OnDisk())
	add(a.facts.List())
	return out
}

// nodeMemory returns the node's memory in bytes.
func nodeMemory() (int64, error) {
	var s unix.Sysinfo_t
	if err := unix.Sysinfo(&s); err != nil {
		return 0, fmt.Errorf("memory of the node: %w", err)
	}
	return int64(s.Totalram) * int64(s.Unit), nil
}

// nodeIPs returns the first address of the node that others can reach, or nothing.
func nodeIPs(log *slog.Logger) []string {
	interfaces, err := net.Interfaces()
	if err != nil {
		log.Warn("addresses of the node not found", "error", err)
		return nil
	}
	for _, i := range interfaces {
		if i.Flags&net.FlagUp == 0 || i.Flags&net.FlagLoopback != 0 {
			continue
		}
		addrs, err := i.Addrs()
		if err != nil {
			continue
		}
		for _, ad := range addrs {
			if n, ok := ad.(*net.IPNet); ok && n.IP.To4() != nil && n.IP.IsGlobalUnicast() {
				return []string{n.IP.String()}
			}
		}
	}
	return nil
}
