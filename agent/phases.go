package agent

import (
	"context"
	"slices"

	"berth/internal/observe/podview"
)

// phases returns the start order; stopping uses the reverse order.
func (a *Agent) phases() []phase {
	return append(a.podPhases(),
		newPhase("loop",
			component{name: "sync loop", run: a.desired.loop.Run},
			component{name: "pod config", run: a.desired.source.Run},
			component{name: "manifest problems", run: a.followProblems},
			component{name: "rejected manifests", run: showRefused(a.desired.source, a.deps.api.local), absent: a.deps.api.local == nil},
			component{name: "idle", run: func(ctx context.Context) error { return followIdle(ctx, a.deps.stores.status, a.deps.cfg.AtRest) }},
			component{name: "status patches", run: a.desired.patcher.Run, absent: a.desired.patcher == nil},
			component{name: "mirror pods", run: a.desired.mirrors.Run},
		),
		newPhase("server",
			component{name: "server", run: a.listeners.server.Run},
			component{name: "node view", run: a.usage.nodeView.Run},
		),
		newPhase("systemd",
			component{name: "systemd notifier", run: a.service.Run, drain: a.service.Stop, absent: !a.deps.cfg.Service.Notify},
		),
	)
}

// podPhases returns the phases up to the pod workers. No desired pods are known yet.
func (a *Agent) podPhases() []phase {
	return []phase{
		newPhase("records",
			component{name: "cleanup", run: waitDone, drain: a.removeAll},
			// Records are written until all other components have stopped.
			component{name: "journal", run: a.deps.journal.Run},
			component{name: "local API", run: a.deps.api.local.run, ready: a.deps.api.local.ready, limit: localAPILimit, absent: a.deps.api.local == nil},
			component{name: "events", run: a.deps.events.Run},
			component{name: "daemons", run: a.node.tuner.Run, absent: !a.node.tuner.GathersDaemons()},
			component{name: "iptables chains", run: reconcileChains(&a.deps.base), absent: !a.deps.settings.utilChains},
			component{name: "traces", run: a.usage.traces.Run, absent: a.usage.traces.PerMillion == 0},
		),
		newPhase("runtime",
			a.runtime.component(a.newCgroups),
		),
		// Before the resource managers run: otherwise a plugin that registers meanwhile would be
		// forgotten, and the checkpoint overwritten before it is read.
		newPhase("assignments",
			component{name: "resource assignments", run: waitDone, ready: a.managers.load(&a.deps)},
		),
		newPhase("managers",
			component{name: "OOM watcher", run: a.observation.oomWatcher.Run, absent: a.observation.oomWatcher == nil},
			component{name: "pleg", run: a.observation.pleg.Run},
			component{name: "container logs", run: a.observation.containerLogs.Run, absent: a.observation.containerLogs == nil},
			component{name: "hooks", run: a.lifecycle.runtime.Run, ready: loaded(a.lifecycle.runtime.CheckResolvConf)},
			component{name: "stats", run: a.usage.stats.Run},
			component{name: "pod metrics", run: a.usage.podMetrics.Run},
			component{name: "images", run: a.images.puller.Run, ready: a.images.loadPullRecords(a.deps.cfg.Log)},
			component{name: "image garbage collection", run: a.images.collector.Run},
			component{name: "probes", run: a.lifecycle.probes.Run, ready: loaded(a.lifecycle.probes.Load)},
			component{name: "statuses", run: a.deps.stores.statusRecords.Run, ready: loaded(a.deps.stores.statusRecords.Load)},
			component{name: "resizes", run: a.lifecycle.resizeWhenListed},
			component{name: "first relist", run: wakeAfter(a.lifecycle.listed, a.node.node.Wake)}, // the Node is not ready before
			component{name: "allocations", run: a.lifecycle.allocations.Run, ready: loaded(a.lifecycle.allocations.Load)},
			component{name: "status callbacks", run: podview.NewPublisher(a.usage.view, a.deps.cfg.OnStatus, a.deps.cfg.OnRemoved).Run, absent: a.deps.cfg.OnStatus == nil && a.deps.cfg.OnRemoved == nil},
			component{name: "node addresses", run: followAddresses(&a.deps, a.lifecycle.workers, a.node.node)},
			component{name: "node allocatable", run: a.enforceAllocatable},
			component{name: "user namespaces", run: waitDone, ready: loaded(a.lifecycle.users.Load)},
			component{name: "local storage limits", run: a.usage.limits.Run, absent: !a.deps.settings.limitsStorage},
			component{name: "memory pressure", run: a.usage.memory.Run, absent: a.usage.memory == nil || len(a.usage.eviction.Thresholds) == 0},
			component{name: "eviction", run: a.usage.eviction.Run, ready: loaded(func() { loadThresholds(a.usage.eviction, a.deps.cfg.Log) }), absent: len(a.usage.eviction.Thresholds) == 0},
			component{name: "resource reclaim", run: a.managers.containers.Run},
			component{name: "device plugins", run: a.managers.devices.Run},
			component{name: "CPU assignments", run: a.managers.cpus.Run},
			component{name: "pod resources", run: servePodResources(&a.deps, a.listeners.podResources)},
			component{name: "resource claims", run: a.managers.claims.Run, absent: a.managers.claims == nil},
			component{name: "claim changes", run: a.managers.followClaims, absent: a.managers.claims == nil},
			component{name: "plugin watcher", run: a.storage.plugins.Run},
			component{name: "CSI drivers", run: a.storage.drivers.Run},
			// Volumes stop after the pods that use them and before their own dependencies.
			component{name: "volumes", run: a.storage.volumes.CSI.Run, ready: loaded(a.storage.load(a.deps.cfg.Log)), drain: a.drainVolumes},
			component{name: "runtime health", run: a.node.runtimeHealth.Run},
			component{name: "pod CIDRs", run: a.node.ranges.Run, absent: a.node.ranges == nil},
			component{name: "client certificate", run: a.deps.api.renewIdentity, absent: a.deps.api.identity == nil},
			component{name: "serving certificate", run: a.serving.rotation.Run, absent: a.serving.rotation == nil},
			component{name: "offline cache", run: a.deps.api.offline.Run, ready: loaded(a.deps.api.offline.Load)},
			component{name: "objects", run: a.sources.run},
			component{name: "event sender", run: a.deps.api.sender.Run, absent: a.deps.api.sender == nil},
			component{name: "node watch", run: a.desired.followNode},
			component{name: "CSI driver watch", run: a.deps.api.csiDrivers.Run},
			component{name: "node", run: a.node.nodeObject.Run, ready: loaded(a.node.nodeObject.Load)}, // admission needs the stand-in
		),
		newPhase("pods",
			component{name: "pod workers", run: a.lifecycle.workers.Run, drain: a.drainPods},
			component{name: "node shutdown", run: a.usage.atShutdown.Run, absent: len(a.usage.atShutdown.Groups) == 0},
		),
	}
}

// wakeAfter calls wake when done is closed.
func wakeAfter(done <-chan struct{}, wake func()) func(context.Context) error {
	return func(ctx context.Context) error {
		select {
		case <-done:
			wake()
		case <-ctx.Done():
		}
		return waitDone(ctx)
	}
}

// newPhase returns the phase without absent components.
func newPhase(name string, components ...component) phase {
	return phase{name, slices.DeleteFunc(components, func(c component) bool { return c.absent })}
}
