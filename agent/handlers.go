package agent

import (
	"context"
	"fmt"
	"os"
	"time"

	"berth/internal/api/server"
	"berth/internal/observe/prober"
	"berth/internal/pod"
	"berth/internal/resources/containermanager"
	"berth/internal/sync/quarantine"
)

// errStopped is the cause of a stop that a client requested.
var errStopped = fmt.Errorf("a client asked to stop: %w", context.Canceled)

func (a *Agent) handlers() server.Handlers {
	h := server.Handlers{
		Pods:          a.usage.view.List,
		Pod:           a.usage.view.Get,
		Subscribe:     a.deps.stores.status.Subscribe,
		ContainerLog:  a.usage.view.ContainerLog,
		Problems:      a.desired.source.Problems,
		Journal:       a.deps.journal,
		Events:        a.deps.events,
		Quarantine:    quarantine.Releaser{Quarantine: a.deps.quarantine, Pods: a.deps.stores.pods, Workers: a.lifecycle.workers},
		Version:       a.version,
		Stop:          a.stop,
		Healthz:       a.node.conditions.Healthz,
		DevicePlugins: a.managers.devices.Health,
		Health:        a.node.conditions.States,
		Resources:     func() containermanager.Snapshot { return a.managers.containers.Snapshot(a.usage.view.List()) },
		Thresholds:    a.thresholds,
		Pulls:         a.imagePulls().list,
		PruneImages:   a.images.collector.Prune,
		Waits:         a.waits,
		Volumes:       a.storage.sources(a.deps.cfg.RootDir),
		Probes:        probesOf(a.lifecycle.probes),
		Node:          a.node.node.Describe,
		Streaming:     a.runtime.cri,
		PodDialer:     a.runtime.podDialer,
		Observed:      a.observation.pleg.Newest,
		ObservedPods:  a.observation.pleg.Known,
		Configz:       a.configz,
		Stats:         a.usage.stats,
		Settings:      a.listSettings,
		OpenView:      a.openView,
	}
	if a.desired.patcher != nil {
		h.Unreported = a.desired.patcher.Unwritten
	}
	if a.deps.api.local != nil {
		h.Scheduler = a.deps.api.local
	}
	return h
}

// waits returns the pending calls for the pod: to the runtime, to CSI drivers, and other operations
// that volumes wait for.
func (a *Agent) waits(uid pod.UID) []server.Wait {
	observed, ok := a.observation.pleg.Newest(uid)
	if !ok {
		observed = &pod.Status{UID: uid}
	}
	var out []server.Wait
	for _, w := range a.runtime.cri.Waits(observed) {
		out = append(out, server.Wait{Pod: uid, Call: w.Call, Container: w.Container, Since: w.Since, Until: w.Until})
	}
	for _, w := range a.storage.drivers.Waits(uid) {
		out = append(out, server.Wait{Pod: uid, Driver: w.Driver, Call: w.Call, Volume: w.Volume, Since: w.Since, Until: w.Until})
	}
	for _, w := range a.storage.volumes.Waits(uid) {
		out = append(out, server.Wait{Pod: uid, From: w.From, Call: w.Call, Volume: w.Volume, Since: w.Since, Until: w.Until})
	}
	return out
}

// probesOf returns a function that reports the probe states of a pod.
func probesOf(probes *prober.Manager) func(pod.UID) []server.Probe {
	return func(uid pod.UID) (out []server.Probe) {
		for _, s := range probes.States(uid) {
			out = append(out, server.Probe{
				Pod: uid, Container: s.Container, Kind: s.Kind, Last: s.Last.String(), InARow: s.InARow, Needed: s.Needed, Next: s.Next,
			})
		}
		return out
	}
}

// followProblems notifies subscribers when the manifest problems change.
func (a *Agent) followProblems(ctx context.Context) error {
	changed := a.desired.source.ProblemsChanged()
	a.deps.stores.status.Notify("") // of the initial problems
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
			changed = a.desired.source.ProblemsChanged() // first: later changes are reported
			a.deps.stores.status.Notify("")
		}
	}
}

func (a *Agent) version() server.Version {
	return server.Version{
		Version: a.deps.cfg.Version, PID: os.Getpid(), StartedAt: a.deps.started.Round(time.Second), NodeName: a.deps.cfg.NodeName, RootDir: a.deps.cfg.RootDir,
		RuntimeName: a.runtime.facts.runtimeName(), RuntimeVersion: a.runtime.facts.runtimeVersion(), RuntimeEndpoint: a.runtime.endpoint,
	}
}

func (a *Agent) stop(scope server.StopScope) {
	if scope == server.StopAll {
		a.ending.mu.Lock()
		a.ending.atExit = max(a.ending.atExit, StopPods)
		a.ending.mu.Unlock()
	}
	a.ending.ask()
}

// configz returns the KubeletConfiguration in force. In run mode, it is derived from the agent's
// settings.
func (a *Agent) configz() any {
	k := a.deps.cfg.Kubelet
	if a.deps.settings.mode == runMode {
		k = memberSettings(&a.deps.cfg)
		k.EnableServer, k.HealthzPort, k.ReadOnlyPort = new(false), new(int32), 0
		k.MaxPods, k.CgroupRoot = int32(a.deps.settings.node.MaxPods), a.deps.cfg.CgroupRoot
		k.SerializeImagePulls, k.RegistryPullQPS = new(false), new(int32)
		k.MaxParallelImagePulls = new(int32(a.deps.settings.images.parallelPulls))
	}
	c := k.Redacted()
	return &c
}

// listSettings returns the configured values and their origins; none in run mode, which has no
// KubeletConfiguration.
func (a *Agent) listSettings() ([]server.Setting, error) {
	if a.deps.settings.mode == runMode {
		return nil, nil
	}
	fields, err := a.deps.cfg.Kubelet.Settings()
	out := make([]server.Setting, len(fields))
	for i, f := range fields {
		out[i] = server.Setting{Path: f.Path, Value: f.Value, From: f.Origin.String()}
	}
	return out, err
}
