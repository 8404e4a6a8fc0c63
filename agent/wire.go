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
	"berth/internal/observe/podview"
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
	deps        dependencies
	runtime     containerRuntime
	node        nodeParts
	sources     objectSources
	managers    resourceManagers
	storage     storage
	images      imageManager
	observation observation
	lifecycle   podLife
	usage       usage
	desired     desired
	serving     serving
	listeners   listeners
	service     *systemd.Notifier // notifies systemd of the agent's state
	ending      ending
}

// nodeParts are the components of the Node object.
type nodeParts struct {
	node          nodeSource
	runtimeHealth *node.RuntimeHealth
	ranges        *node.PodCIDRs // nil if no ranges are published
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
	view       podview.View
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
func wire(cfg Config, out Environment) (_ *Agent, err error) {
	a := &Agent{ending: newEnding(cfg.AtExit)}
	if a.deps, err = newDependencies(cfg, out); err != nil {
		return nil, err
	}
	g := &a.deps
	if a.runtime, err = newContainerRuntime(g); err != nil {
		return nil, err
	}
	if a.deps.resources, err = newNodeResources(g); err != nil {
		return nil, err
	}
	a.node.tuner = newTuner(&a.deps.base)
	a.deps.hostIPs = node.NewHostIPs(addressSettings(cfg), out.Network, embedded.BridgePrefix, cfg.Log)
	a.node.node = nodeSource{a.deps.api.current}
	if a.sources, err = newObjectSources(g, &a.runtime); err != nil {
		return nil, err
	}
	a.observation.kills = oom.NewKills(filepath.Join(cfg.RootDir, killsFile), cfg.Log)
	a.observation.pleg = pleg.New(a.observation.kills.Amend(a.runtime.cri.Observer), a.deps.journal, cfg.Log, a.deps.out.Metrics)
	if a.managers, err = newResourceManagers(g, a.runtime.cri, a.observation.pleg, a.node.node.Wake); err != nil {
		return nil, err
	}
	if a.storage, err = newStorage(g, &a.sources, a.node.node, &a.managers); err != nil {
		return nil, err
	}
	if a.images, err = newImageManager(g, &a.runtime, &a.sources); err != nil {
		return nil, err
	}
	a.node.ranges = newPodCIDRs(&a.deps.base, &a.runtime, a.node.node)
	a.node.runtimeHealth = newRuntimeHealth(&a.deps.base, &a.runtime, a.observation.pleg, a.node.node.Wake)
	a.observation.oomWatcher = newOOMWatcher(g, &a.runtime, &a.observation)
	a.observation.containerLogs = newContainerLogs(g, &a.runtime, a.observation.pleg)
	if a.node.nodeObject, err = newNode(g, node.Sources{
		Runtime: a.node.runtimeHealth.State, Images: a.runtime.nodeImages, Problems: func() []error { return a.node.conditions.NotReady() }, VolumesInUse: a.storage.volumes.CSI.VolumesInUse,
		Pressure: a.deps.stores.nodePressure, Devices: a.managers.nodeDevices, DevicesForgotten: a.managers.devices.BeganWithoutFile,
	}); err != nil {
		return nil, err
	}
	if a.lifecycle, err = newPodLife(g, lifeInputs{
		runtime: &a.runtime, images: &a.images, objects: a.sources.objects, volumes: a.storage.volumes, node: a.node.node,
		shared: a.managers.containers, pleg: a.observation.pleg, runtimeState: a.node.runtimeHealth.State, execLimits: a.runtime.execLimits(),
	}); err != nil {
		return nil, err
	}
	a.usage.view = podview.View{Desired: a.deps.stores.pods, Status: a.deps.stores.status, Workers: a.lifecycle.workers, PLEG: a.observation.pleg, Started: a.deps.started}
	a.usage.stats = newStats(&a.deps.base, &a.runtime, a.observation.pleg, a.usage.view, a.storage.volumes)
	a.usage.evictions = newEvictions(g, evictionInputs{
		life: &a.lifecycle, pleg: a.observation.pleg, stats: a.usage.stats, garbage: garbage{a.lifecycle.runtime, a.images.collector},
		podsCgroup: func() string { return a.runtime.facts.QoSPath(v1.PodQOSGuaranteed) },
		podCgroup:  a.runtime.facts.PodPath,
	}, a.node.node.Wake)
	a.usage.podMetrics, a.usage.traces = newPodCounts(g, a.observation.pleg, a.usage.view), newTraces(g)
	if a.desired.source, err = podconfig.New(sources(g, &a.sources, a.lifecycle.syncer)); err != nil {
		return nil, err
	}
	if a.serving, err = newServing(g); err != nil {
		return nil, err
	}
	a.desired.reporting = newReporting(g, &a.lifecycle, func() bool { return a.desired.loop.KnowsPods() }, a.storage.volumes, wakeEach(a.serving.wake, a.node.ranges.Wake))
	a.desired.loop = syncloop.New(syncloop.Config{
		Source: a.desired.source, Workers: a.lifecycle.workers, Housekeeping: a.lifecycle.workers, Finished: a.lifecycle.workers.Finished(), Pods: a.deps.stores.pods,
		Changed: a.observation.pleg.Changed(), Restored: a.observation.pleg.Restored(), Relisted: a.observation.pleg.Relisted(), Probes: a.lifecycle.probes.Results(), Resized: a.lifecycle.resized,
		Devices: a.managers.changed,
		Objects: a.sources.changed, Static: a.deps.api.static, Published: a.desired.compare,
		Leftovers: a.newDrain(), Observed: a.observation.pleg.Newest,
	})
	a.usage.atShutdown = newShutdown(g, a.lifecycle.workers, a.desired.patcher, a.desired.loop.Known(), a.node.node.Wake)
	if a.node.conditions, err = a.newConditions(); err != nil {
		return nil, err
	}
	a.service = newService(g, a.desired.loop.Ping)
	a.usage.nodeView = newNodeView(a)
	a.listeners, err = newListeners(a)
	return a, err
}
