package agent

import (
	"context"
	"slices"
)

// phases returns the start order; stopping uses the reverse order.
func (a *Agent) phases() []phase {
	return append(a.podPhases(),
		newPhase("loop",
			component{name: "sync loop", run: a.loop.Run},
			component{name: "pod config", run: a.source.Run},
			component{name: "problems", run: a.followProblems},
			component{name: "refused manifests", run: showRefused(a.source, a.api.local), absent: a.api.local == nil},
			component{name: "idle", run: func(ctx context.Context) error { return followIdle(ctx, a.status, a.cfg.AtRest) }},
			component{name: "status patches", run: a.patcher.Run, absent: a.patcher == nil},
			component{name: "mirror pods", run: a.mirrors.Run},
		),
		newPhase("server",
			component{name: "server", run: a.server.Run},
			component{name: "view of the node", run: a.nodeView.Run},
		),
		newPhase("systemd",
			component{name: "word to systemd", run: a.service.Run, drain: a.service.Stop, absent: !a.cfg.Service.Notify},
		),
	)
}

// podPhases returns the phases up to the pod workers. No desired pods are known yet.
func (a *Agent) podPhases() []phase {
	return []phase{
		newPhase("ground",
			component{name: "cleanup", run: waitDone, drain: a.removeAll},
			// Records are written until all other components have stopped.
			component{name: "journal", run: a.journal.Run},
			component{name: "local API", run: a.api.local.run, ready: a.api.local.ready, limit: localAPILimit, absent: a.api.local == nil},
			component{name: "events", run: a.events.Run},
			component{name: "daemons", run: a.tuner.Run, absent: !a.tuner.GathersDaemons()},
			component{name: "chains of iptables", run: reconcileChains(&a.base), absent: !a.settings.utilChains},
			component{name: "traces", run: a.traces.Run, absent: a.traces.PerMillion == 0},
		),
		newPhase("runtime",
			a.containerRuntime.component(a.newCgroups),
		),
		// Before the resource managers run: otherwise a plugin that registers meanwhile would be
		// forgotten, and the checkpoint overwritten before it is read.
		newPhase("allocations",
			component{name: "who has what", run: waitDone, ready: a.sharing.load(&a.ground)},
		),
		newPhase("upkeep",
			component{name: "OOM watch", run: a.oomWatcher.Run, absent: a.oomWatcher == nil},
			component{name: "pleg", run: a.pleg.Run},
			component{name: "logs of containers", run: a.containerLogs.Run, absent: a.containerLogs == nil},
			component{name: "hooks", run: a.runtime.Run, ready: loaded(a.runtime.CheckResolvConf)},
			component{name: "stats", run: a.stats.Run},
			component{name: "counts of pods", run: a.podMetrics.Run},
			component{name: "images", run: a.puller.Run, ready: a.loadPullRecords(a.cfg.Log)},
			component{name: "image garbage collection", run: a.collector.Run},
			component{name: "probes", run: a.probes.Run, ready: loaded(a.probes.Load)},
			component{name: "statuses", run: a.statusRecords.Run, ready: loaded(a.statusRecords.Load)},
			component{name: "resizes", run: a.resizeWhenListed},
			component{name: "first list", run: wakeAfter(a.listed, a.node.Wake)}, // the Node is not ready before
			component{name: "allocations", run: a.allocations.Run, ready: loaded(a.allocations.Load)},
			component{name: "statuses for the program", run: newPublisher(&a.cfg, a.view).run, absent: a.cfg.OnStatus == nil && a.cfg.OnRemoved == nil},
			component{name: "addresses of the node", run: a.followAddresses},
			component{name: "node allocatable", run: a.enforceAllocatable},
			component{name: "user namespaces", run: waitDone, ready: loaded(a.users.Load)},
			component{name: "limits of local storage", run: a.limits.Run, absent: !a.settings.limitsStorage},
			component{name: "memory of the machine", run: a.memory.Run, absent: a.memory == nil || len(a.eviction.Thresholds) == 0},
			component{name: "eviction", run: a.eviction.Run, ready: loaded(a.loadThresholds), absent: len(a.eviction.Thresholds) == 0},
			component{name: "resource reclaim", run: a.sharing.containers.Run},
			component{name: "device plugins", run: a.sharing.devices.Run},
			component{name: "CPUs of containers", run: a.sharing.cpus.Run},
			component{name: "pod resources", run: servePodResources(&a.ground, a.podResources)},
			component{name: "claims", run: a.sharing.claims.Run, absent: a.sharing.claims == nil},
			component{name: "changes of claims", run: a.sharing.followClaims, absent: a.sharing.claims == nil},
			component{name: "plugin watcher", run: a.storage.plugins.Run},
			component{name: "CSI drivers", run: a.storage.drivers.Run},
			// Volumes stop after the pods that use them and before their own dependencies.
			component{name: "volumes", run: a.storage.volumes.Run, ready: loaded(a.storage.load(a.cfg.Log)), drain: a.drainVolumes},
			component{name: "runtime health", run: a.runtimeHealth.Run},
			component{name: "ranges of pods", run: a.ranges.Run, absent: a.ranges == nil},
			component{name: "client certificate", run: a.api.renewIdentity, absent: a.api.identity == nil},
			component{name: "serving certificate", run: a.serving.rotation.Run, absent: a.serving.rotation == nil},
			component{name: "offline cache", run: a.api.offline.Run, ready: loaded(a.api.offline.Load)},
			component{name: "objects", run: a.origin.run},
			component{name: "event sender", run: a.api.sender.Run, absent: a.api.sender == nil},
			component{name: "node watch", run: a.followNode},
			component{name: "CSI driver watch", run: a.api.csiDrivers.Run},
			component{name: "node", run: a.nodeObject.Run, ready: loaded(a.nodeObject.Load)}, // admission needs the stand-in
		),
		newPhase("pods",
			component{name: "pod workers", run: a.workers.Run, drain: a.drainPods},
			component{name: "shutdown of the machine", run: a.atShutdown.Run, absent: len(a.atShutdown.Groups) == 0},
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
