package agent

import (
	"context"
	"net"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"

	"berth/internal/action"
	"berth/internal/admission"
	"berth/internal/allocation"
	"berth/internal/cgroups"
	"berth/internal/containerlogs"
	"berth/internal/cri"
	"berth/internal/embedded"
	"berth/internal/events"
	"berth/internal/eviction"
	"berth/internal/hostports"
	"berth/internal/images"
	"berth/internal/inotify"
	"berth/internal/journal"
	"berth/internal/kuberuntime"
	"berth/internal/manifest"
	"berth/internal/mounts"
	"berth/internal/node"
	"berth/internal/objects"
	"berth/internal/oom"
	"berth/internal/pleg"
	"berth/internal/pod"
	"berth/internal/podconfig"
	"berth/internal/podsync"
	"berth/internal/podworkers"
	"berth/internal/prober"
	"berth/internal/server"
	"berth/internal/stats"
	"berth/internal/status"
	"berth/internal/syncloop"
	"berth/internal/tracing"
	"berth/internal/userns"
	"berth/internal/volumes"
)

// Every joint of the agent: who is given to whom as what.
var (
	_ pleg.Runtime             = amendedRuntime{}
	_ images.Runtime           = (*cri.Client)(nil)
	_ images.Store             = (*cri.Client)(nil)
	_ images.Recorder          = (*events.Recorder)(nil)
	_ kuberuntime.Recorder     = (*events.Recorder)(nil)
	_ podsync.ContainerRuntime = (*kuberuntime.Runtime)(nil)
	_ ContainerManager         = (*cgroups.Manager)(nil)
	_ podsync.Volumes          = (*volumes.Manager)(nil)
	_ kuberuntime.Volumes      = (*volumes.Manager)(nil)
	_ podObjects               = (*objects.Local)(nil)
	_ podObjects               = (*objects.Objects)(nil)
	_ podsync.Probes           = (*prober.Manager)(nil)
	_ prober.Actions           = (*action.Actions)(nil)
	_ prober.Recorder          = (*events.Recorder)(nil)
	_ status.ProbeResults      = (*prober.Manager)(nil)
	_ tracing.Statuses         = (*status.Manager)(nil)
	_ tracing.Stories          = (*journal.Journal)(nil)
	_ podworkers.PodSyncer     = guardedSyncer{}
	_ podworkers.Observer      = (*pleg.PLEG)(nil)
	_ podworkers.Admitter      = (*admission.Chain)(nil)
	_ podworkers.Resizer       = (*admission.Chain)(nil)
	_ admission.PodKiller      = killer{}
	_ eviction.PodKiller       = killer{}
	_ eviction.Storage         = (*stats.Collector)(nil)
	_ eviction.Lifecycles      = (*pod.States)(nil)
	_ containerlogs.Runtime    = (*cri.Client)(nil)
	_ containerlogs.Writes     = (*inotify.Once)(nil)
	_ syncloop.PodSource       = (*podconfig.PodConfig)(nil)
	_ syncloop.PodWorkers      = (*podworkers.PodWorkers)(nil)
)

// Files below the root directory in which an agent leaves to the next what it knows.
const (
	allocationsFile = "pod_allocations.json"
	probesFile      = "probes.json"
	statusesFile    = "statuses.json"
	// manifestsDir is the folder of the last good version of each manifest.
	manifestsDir = "manifests"
	// imageRecordsDir is the folder that says with which credentials images were pulled; its name and form are the kubelet's.
	imageRecordsDir = "image_manager"
)

// Agent is a built agent.
type Agent struct {
	cfg Config
	out Outside

	member *member        // nil for berth run
	local  *objects.Local // nil for berth kubelet
	// localNode stands in for the Node where there is no API server.
	localNode func() *v1.Node
	hostIPs   *hostAddresses
	embedded  *embedded.Runtime // nil with a foreign runtime
	ensured   chan struct{}     // closed when the embedded runtime serves
	cri       *cri.Client
	facts     facts
	resources *nodeResources
	records
	pods      *pod.Manager
	states    *pod.States
	status    *status.Manager
	kept      *status.Kept
	probes    *prober.Manager
	puller    *images.Puller
	collector *images.Collector // removes images that nobody uses
	runtime   *kuberuntime.Runtime
	pleg      *pleg.PLEG
	kills     *oom.Watcher // nil on a host without cgroups
	// containerLogs keeps the logs of containers within their limits.
	containerLogs *containerlogs.Manager
	stats         *stats.Collector
	workers       *podworkers.PodWorkers
	syncer        *podsync.Syncer
	source        *podconfig.PodConfig
	loop          *syncloop.SyncLoop
	server        *server.Server
	storage       storage
	traces        *tracing.Exporter // nil when nothing is traced

	allocations *allocation.Allocations
	admit       *admission.Chain
	eviction    *eviction.Manager // nil where limits of local storage do not hold
	users       *userns.Allocator

	listen   func() (net.Listener, error)
	listener chan net.Listener // capacity 1; opened by Run, taken by the server
	started  time.Time
	stopping context.CancelCauseFunc // set by Run
	measures
	scanned bool     // leftovers has looked at the disk
	left    []string // of pods that were to end with the agent; see drainPods

	mu     sync.Mutex
	atExit AtExit // guarded by mu; a client's stop may raise it
}

// wire builds every component, bottom up.
func wire(cfg Config, out Outside) (_ *Agent, err error) {
	for _, r := range []*Registry{&out.Metrics, &out.SLIs} {
		if *r == nil {
			*r = prometheus.NewRegistry()
		}
	}
	count := newMeasures(out.Metrics)
	var m *member
	if cfg.Kubelet != nil {
		if m, err = newMember(&cfg, out, count); err != nil {
			return nil, err
		}
	}
	started := time.Now()
	a := &Agent{member: m, measures: count, cfg: cfg, out: out, atExit: cfg.AtExit, started: started, ensured: make(chan struct{}), listener: make(chan net.Listener, 1)}
	endpoint := cfg.RuntimeEndpoint
	if endpoint == "" && out.DialCRI == nil {
		if a.embedded, err = embedded.New(embedded.Config{
			Root: cfg.RootDir, RunDir: cfg.RunDir, Subnet: cfg.PodCIDR, CgroupDriver: cfg.CgroupDriver, SELinux: cfg.SELinux,
			PullProgressDeadline: cfg.ImagePullProgressDeadline, Cgroups: &a.facts, Log: cfg.Log,
		}); err != nil {
			return nil, err
		}
		endpoint = a.embedded.Endpoint()
	}
	if a.resources, err = a.newNodeResources(); err != nil {
		return nil, err
	}
	a.hostIPs = newHostAddresses(cfg.Kubelet, cfg.NodeName, out.Network, cfg.Log)

	a.newRecords()
	a.pods = pod.NewManager()
	states := pod.NewStates()
	a.states = states
	recorder := a.newRecorder()
	settings := settingsOf(cfg.Kubelet)
	settings.maxPods = max(settings.maxPods, cfg.MaxPods)
	if a.cri, err = cri.New(cri.Config{
		Endpoint: endpoint, ImageEndpoint: cfg.ImageEndpoint, Timeout: settings.runtimeTimeout, Dial: out.DialCRI, Metrics: out.Metrics,
	}); err != nil {
		return nil, err
	}
	a.facts.cgroups = out.Cgroups
	mounter := out.Mounter
	if mounter == nil {
		own := mounts.New(cfg.RootDir, cfg.RunDir)
		mounter, a.storage.sweep = own, own.Sweep
	}
	if m == nil {
		a.local = objects.NewLocal(a.journal, a.runtimeHandlers)
	}
	a.localNode = sync.OnceValue(a.newLocalNode)
	if err := a.newDrivers(); err != nil {
		return nil, err
	}
	podEvent := func(p *v1.Pod, eventtype, reason, message string) { recorder.Event(p, "", eventtype, reason, message) }
	if m != nil && m.api != nil {
		m.api.podEvent = podEvent
	}
	volumeManager, err := volumes.New(volumes.Config{
		Root: cfg.RootDir, AllocatableMemory: a.resources.allocatable.Memory().Value(), Mounter: mounter, Objects: a.podObjects(), Certificates: a.podObjects(), Allocatable: a.allocatable, Log: cfg.Log, Journal: a.journal,
		Claims: a.claims(), Node: a.currentNode, CSI: a.csiConfig(recorder),
		Event: podEvent, Metrics: out.Metrics,
	})
	if err != nil {
		return nil, err
	}
	a.storage.volumes = volumeManager
	if a.puller, err = a.newPuller(settings, recorder); err != nil {
		return nil, err
	}
	a.collector = a.newCollector(settings, recorder)
	a.status = status.NewManager(cfg.Log, a.journal)
	a.traces = a.newTraces()
	a.kept = status.NewKept(a.status, filepath.Join(cfg.RootDir, statusesFile), cfg.Log)
	actions := action.New(action.Config{CRI: a.cri, Dial: out.Dial})
	a.probes = prober.New(prober.Config{
		Actions: actions, Recorder: recorder, Journal: a.journal, Log: cfg.Log, Path: filepath.Join(cfg.RootDir, probesFile), HostIPs: a.hostIPs.current,
	})
	if m != nil {
		m.health = node.NewRuntimeHealth(a.cri, a.wakeNode, cfg.Log)
		if m.api != nil {
			if err := a.newNode(recorder); err != nil {
				return nil, err
			}
		}
	}
	a.pleg = pleg.New(amendedRuntime{a.cri, a}, a.journal, cfg.Log, out.Metrics)
	a.newKills()
	a.containerLogs = a.newContainerLogs(settings.containerLogs)
	a.stats = a.newStats()
	if a.users, err = userns.New(userns.Config{
		Root: cfg.RootDir, IDsPerPod: settings.idsPerPod, MaxPods: settings.maxPods, Log: cfg.Log,
	}); err != nil {
		return nil, err
	}
	a.allocations = allocation.New(allocation.Config{
		File: filepath.Join(cfg.RootDir, allocationsFile), Log: cfg.Log,
		SetAside: func(message string) { recorder.NodeEvent(v1.EventTypeWarning, "AllocationsLost", message) },
	})
	a.runtime = kuberuntime.New(kuberuntime.Config{
		CRI: a.cri, Images: a.puller, Recorder: recorder, Journal: a.journal, Log: cfg.Log,
		RootDir: cfg.RootDir, PodLogsDir: cfg.PodLogsDir, ContainerLogsDir: cfg.ContainerLogsDir,
		Resources: a.resources.containers(), ExecLimits: a.execLimits(), HostIPs: a.hostIPs.current, Objects: a.podObjects(), Volumes: volumeManager, Allocatable: a.allocatable, Actions: actions, Pods: a.pleg.Known,
		Cgroups: &a.facts, Allocations: a.allocations,
		MaxRestartPeriod: settings.maxRestartPeriod, Garbage: settings.garbage,
		DNS: settings.dns, ResolvConf: settings.resolvConf, SeccompDefault: settings.seccompDefault,
		UserNamespaces: a.users, Metrics: out.Metrics, NodeEvent: recorder.NodeEvent,
		CheckHostPorts: checkHostPorts(out.HostPorts),
	})
	a.syncer = podsync.New(podsync.Config{
		Runtime: a.runtime, Cgroups: &a.facts, Volumes: volumeManager, Objects: a.podObjects(), Status: a.status, Keep: a.kept.Write, Allocations: a.allocations, Probes: a.probes, ProbeResults: a.probes,
		Observe: func(ctx context.Context, uid pod.UID) (*pod.Status, error) {
			return a.pleg.Observe(ctx, uid, a.pleg.Mark())
		},
		WithTerminationMessages: a.runtime.WithTerminationMessages,
		Event:                   recorder.Event, Journal: a.journal, Log: cfg.Log,
		RootDir: cfg.RootDir, RuntimeName: a.facts.runtimeName, HostIPs: a.hostIPs.current, MaxRestartPeriod: settings.maxRestartPeriod,
	})
	a.admit = admission.New(a.admission(states, recorder))
	a.eviction = a.newEviction(recorder)
	if m != nil && m.api != nil {
		m.api.roomMade, m.api.nodeChanged = a.admit.NodeChanged, a.storage.volumes.NodeChanged
		m.api.driversChanged = a.storage.drivers.PeriodsChanged
	}
	a.workers = podworkers.New(podworkers.Config{Syncer: guardedSyncer{a.syncer, a.quarantine}, Observer: a.pleg, Admitter: a.admit, Resizer: a.admit, States: states, Metrics: out.Metrics, Journal: a.journal, Log: cfg.Log})
	if a.source, err = podconfig.New(a.sources()); err != nil {
		return nil, err
	}
	loop := syncloop.Config{
		Source: a.source, Workers: a.workers, Pods: a.pods,
		Changed: a.pleg.Changed(), Restored: a.pleg.Restored(), Relisted: a.pleg.Relisted(), Probes: a.probes.Results(),
		Leftovers: a.leftovers, Observed: a.pleg.Newest,
	}
	if m != nil && m.api != nil {
		loop.Static, loop.Objects = m.api.static, m.api.objects.Changed()
		a.newReporting(states)
		loop.Shown = m.api.patcher.Compare
	}
	if m == nil {
		loop.Objects = a.local.Changed()
	}
	a.loop = syncloop.New(loop)
	a.listen = out.Listen
	if a.listen == nil {
		a.listen = func() (net.Listener, error) { return server.Listen(cfg.RunDir, cfg.Log) }
	}
	if a.server, err = a.newServer(); err != nil {
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
	ground := append([]component{{name: "cleanup", run: waitDone, drain: a.removeAll}}, a.recordComponents()...)
	if a.traces != nil {
		ground = append(ground, component{name: "traces", run: a.traces.Run})
	}
	return a.memberPhases([]phase{
		{"ground", ground},
		{"runtime", []component{runtime}},
		{"upkeep", slices.Concat(a.killComponents(), []component{
			{name: "pleg", run: a.pleg.Run},
			{name: "logs of containers", run: a.containerLogs.Run},
			{name: "hooks", run: a.runtime.Run, ready: loaded(a.runtime.CheckResolvConf)},
			{name: "stats", run: a.stats.Run},
			{name: "counts of pods", run: a.lives.Run},
			{name: "images", run: a.puller.Run, ready: a.recoverImageRecords},
			{name: "image garbage collection", run: a.collector.Run},
			{name: "probes", run: a.probes.Run, ready: loaded(a.probes.Load)},
			{name: "statuses", run: a.kept.Run, ready: loaded(a.kept.Load)},
			{name: "resizes", run: a.resizeWhenListed},
			{name: "allocations", run: a.allocations.Run, ready: loaded(a.allocations.Load)},
			{name: "addresses of the node", run: a.followAddresses},
			{name: "node allocatable", run: a.enforceAllocatable},
			{name: "user namespaces", run: waitDone, ready: loaded(a.users.Load)},
		}, a.evictionComponents(), a.storageComponents())},
		{"pods", []component{{name: "pod workers", run: a.workers.Run, drain: a.drainPods}}},
		{"loop", []component{
			{name: "sync loop", run: a.loop.Run},
			{name: "pod config", run: a.source.Run},
			{name: "problems", run: a.followProblems},
			{name: "rest", run: a.followRest},
		}},
		{"doors", []component{{name: "server", run: a.server.Run}}},
	})
}

// sources says where pods come from.
func (a *Agent) sources() podconfig.Config {
	c := podconfig.Config{
		NodeName: a.cfg.NodeName, Log: a.cfg.Log, Journal: a.journal, Paths: a.cfg.Paths, Names: manifest.KeepNames,
		StateDir: filepath.Join(a.cfg.RootDir, manifestsDir), Watch: a.out.Watch, Transport: a.out.Transport,
	}
	if k := a.cfg.Kubelet; k != nil {
		c.Names, c.Rescan = manifest.MangleNames, k.FileCheckFrequency.Duration
		c.Poll, c.Header = k.HTTPCheckFrequency.Duration, k.StaticPodURLHeader
		if a.member.api != nil {
			c.API = a.watchPods
		}
	} else {
		c.Objects = func(o manifest.LocalObjects) {
			a.local.Set(objects.Defined{
				ConfigMaps: o.ConfigMaps, Secrets: o.Secrets, RuntimeClasses: o.RuntimeClasses,
				Claims: o.PersistentVolumeClaims, Volumes: o.PersistentVolumes, TrustBundles: o.ClusterTrustBundles, Drivers: o.CSIDrivers,
			})
		}
	}
	return c
}

// checkHostPorts returns what judges pods by the sockets of this machine, unless another table is given.
func checkHostPorts(t hostports.Table) func(*v1.Pod) error {
	if t == nil {
		t = hostports.Host{Proc: "/proc"}
	}
	return func(p *v1.Pod) error { return hostports.Check(t, p) }
}
