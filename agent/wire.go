package agent

import (
	"context"
	"net"
	"path/filepath"
	"sync"

	v1 "k8s.io/api/core/v1"

	"berth/internal/api/server"
	"berth/internal/cluster/node"
	"berth/internal/health"
	"berth/internal/host/systemd"
	"berth/internal/host/tuning"
	"berth/internal/localapi"
	"berth/internal/observe/metrics"
	"berth/internal/observe/oom"
	"berth/internal/observe/pleg"
	"berth/internal/observe/stats"
	"berth/internal/record/tracing"
	"berth/internal/resources/podresources"
	"berth/internal/runtime/containerlogs"
	"berth/internal/runtime/embedded"
	"berth/internal/source/podconfig"
	"berth/internal/sync/drain"
	"berth/internal/sync/nodeshutdown"
	"berth/internal/sync/syncloop"
)

// State files below the root directory.
const (
	allocationsFile = "pod_allocations.json"
	probesFile      = "probes.json"
	statusesFile    = "statuses.json"
	// manifestsDir stores the last good version of each manifest.
	manifestsDir = "manifests"
	// imageRecordsDir stores with which credentials images were pulled; its name and format are the
	// kubelet's.
	imageRecordsDir = "image_manager"
)

// Agent is an assembled agent: groups of components, in the order in which they are created.
type Agent struct {
	ground
	containerRuntime
	nodeParts
	origin  origin
	sharing sharing
	storage storage
	imageManager
	observation
	podLife
	usage
	desired
	serving serving
	listeners
	service *systemd.Notifier // notifies systemd of the agent's state
	ending
}

// nodeParts are the components of the Node object.
type nodeParts struct {
	node          nodeSource
	runtimeHealth *node.RuntimeHealth
	ranges        *podCIDRs // nil if no ranges are published
	conditions    *health.Table
	tuner         *tuning.Tuner
	nodeObject    *node.Node
}

// observation holds the components that observe the runtime.
type observation struct {
	pleg  *pleg.PLEG
	kills *oom.Kills
	// oomWatcher is nil on a host without cgroups.
	oomWatcher *oom.Watcher
	// containerLogs rotates container logs; nil if rotation is off.
	containerLogs *containerlogs.Manager
}

// usage holds the components that measure running pods.
type usage struct {
	view       podView
	nodeView   *localapi.View // for kubectl, without a local API
	podMetrics *metrics.Pods
	stats      *stats.Collector
	evictions
	// atShutdown terminates pods before a node shutdown.
	atShutdown *nodeshutdown.Manager
	traces     *tracing.Exporter
}

// desired holds the pod sources and the sync loop that acts on them.
type desired struct {
	source *podconfig.PodConfig
	reporting
	loop *syncloop.SyncLoop
}

// listeners are the ports for clients.
type listeners struct {
	listen   func() (net.Listener, error)
	listener chan net.Listener // capacity 1; opened by Run, received by the server
	server   *server.Server
	// podResources reports resource assignments.
	podResources *podresources.Server
}

// ending holds the state of stopping the agent.
type ending struct {
	asked context.Context    // done when a client has requested a stop
	ask   context.CancelFunc // requests a stop
	drain *drain.Drain

	mu     sync.Mutex
	atExit AtExit // guarded by mu; a client's stop may raise it
}

func newEnding(atExit AtExit) ending {
	asked, ask := context.WithCancel(context.Background())
	return ending{asked: asked, ask: ask, atExit: atExit}
}

// wire creates every group of components from the earlier ones.
func wire(cfg Config, out Outside) (_ *Agent, err error) {
	a := &Agent{ending: newEnding(cfg.AtExit)}
	if a.ground, err = newGround(cfg, out); err != nil {
		return nil, err
	}
	g := &a.ground
	if a.containerRuntime, err = newContainerRuntime(g); err != nil {
		return nil, err
	}
	if a.resources, err = a.newNodeResources(); err != nil {
		return nil, err
	}
	a.tuner = newTuner(&a.base)
	a.hostIPs = node.NewHostIPs(addressSettings(cfg), out.Network, embedded.BridgePrefix, cfg.Log)
	a.node = nodeSource{a.api.current}
	if a.origin, err = newOrigin(g, &a.containerRuntime); err != nil {
		return nil, err
	}
	if a.sharing, err = newSharing(g, a.node.Wake); err != nil {
		return nil, err
	}
	if a.storage, err = newStorage(g, &a.origin, a.node, &a.sharing); err != nil {
		return nil, err
	}
	if a.imageManager, err = newImageManager(g, &a.containerRuntime, &a.origin); err != nil {
		return nil, err
	}
	a.ranges = newPodCIDRs(&a.base, &a.containerRuntime, a.node)
	a.kills = oom.NewKills(filepath.Join(cfg.RootDir, killsFile), cfg.Log)
	a.pleg = pleg.New(a.kills.Amend(a.cri), a.journal, cfg.Log, a.out.Metrics)
	a.runtimeHealth = newRuntimeHealth(&a.base, &a.containerRuntime, a.pleg, a.node.Wake)
	a.newOOMWatcher()
	a.containerLogs = newContainerLogs(g, &a.containerRuntime, a.pleg)
	if err := a.sharing.share(g, a.cri, a.pleg); err != nil {
		return nil, err
	}
	if a.nodeObject, err = newNode(g, node.Sources{
		Runtime: a.runtimeHealth.State, Images: a.nodeImages, Problems: a.nodeProblems, VolumesInUse: a.storage.volumes.VolumesInUse,
		Pressure: a.nodePressure, Devices: a.sharing.nodeDevices, DevicesForgotten: a.sharing.devices.BeganWithoutFile,
	}); err != nil {
		return nil, err
	}
	if a.podLife, err = newPodLife(g, lifeInputs{
		runtime: &a.containerRuntime, images: &a.imageManager, objects: a.origin.objects, volumes: a.storage.volumes, node: a.node,
		shared: a.sharing.containers, pleg: a.pleg, runtimeState: a.runtimeHealth.State, execLimits: a.execLimits(),
	}); err != nil {
		return nil, err
	}
	a.view = podView{desired: a.pods, status: a.status, workers: a.workers, pleg: a.pleg, since: a.started}
	a.stats = newStats(&a.base, &a.containerRuntime, a.pleg, a.view, a.storage.volumes)
	a.evictions = newEvictions(g, evictionInputs{
		life: &a.podLife, pleg: a.pleg, stats: a.stats, garbage: garbage{a.podLife.runtime, a.collector},
		podsCgroup: func() string { return a.facts.QoSPath(v1.PodQOSGuaranteed) },
		podCgroup:  a.facts.PodPath,
	}, a.node.Wake)
	a.podMetrics, a.traces = newPodCounts(g, a.pleg, a.view), newTraces(g)
	if a.source, err = podconfig.New(sources(g, &a.origin, a.syncer)); err != nil {
		return nil, err
	}
	if a.serving, err = newServing(g); err != nil {
		return nil, err
	}
	a.reporting = newReporting(g, &a.podLife, func() bool { return a.loop.KnowsPods() }, a.storage.volumes, wakeEach(a.serving.wake, a.ranges.Wake))
	a.loop = syncloop.New(syncloop.Config{
		Source: a.source, Workers: a.workers, Housekeeping: a.workers, Finished: a.workers.Finished(), Pods: a.pods,
		Changed: a.pleg.Changed(), Restored: a.pleg.Restored(), Relisted: a.pleg.Relisted(), Probes: a.probes.Results(), Resized: a.resized,
		Devices: a.sharing.changed,
		Objects: a.origin.changed, Static: a.api.static, Published: a.compare,
		Leftovers: a.newDrain(), Observed: a.pleg.Newest,
	})
	a.atShutdown = newShutdown(g, a.workers, a.patcher, a.loop.Known(), a.node.Wake)
	if a.conditions, err = a.newConditions(); err != nil {
		return nil, err
	}
	a.service = newService(g, a.loop.Ping)
	a.nodeView = newNodeView(a)
	a.listeners, err = newListeners(a)
	return a, err
}
