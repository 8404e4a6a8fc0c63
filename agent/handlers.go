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
		Pods:          a.view.listPods,
		Pod:           a.view.getPod,
		Subscribe:     a.status.Subscribe,
		ContainerLog:  a.view.containerLog,
		Problems:      a.source.Problems,
		Journal:       a.journal,
		Events:        a.events,
		Quarantine:    quarantine.Releaser{Quarantine: a.quarantine, Pods: a.pods, Workers: a.workers},
		Version:       a.version,
		Stop:          a.stop,
		Healthz:       a.conditions.Healthz,
		DevicePlugins: a.sharing.devices.Health,
		Health:        a.conditions.States,
		Resources:     func() containermanager.Snapshot { return a.sharing.containers.Snapshot(a.view.listPods()) },
		Thresholds:    a.thresholds,
		Pulls:         a.imagePulls().list,
		PruneImages:   a.collector.Prune,
		Waits:         a.waits,
		Volumes:       a.storage.sources(a.cfg.RootDir),
		Probes:        probesOf(a.probes),
		Node:          a.node.Describe,
		Streaming:     a.cri,
		PodDialer:     a.podDialer,
		Observed:      a.pleg.Newest,
		ObservedPods:  a.pleg.Known,
		Configz:       a.configz,
		Stats:         a.stats,
		Settings:      a.listSettings,
		OpenView:      a.openView,
	}
	if a.patcher != nil {
		h.Unreported = a.patcher.Unwritten
	}
	if a.api.local != nil {
		h.Scheduler = a.api.local
	}
	return h
}

// waits returns the pending calls for the pod: to the runtime, to CSI drivers, and other operations
// that volumes wait for.
func (a *Agent) waits(uid pod.UID) []server.Wait {
	observed, ok := a.pleg.Newest(uid)
	if !ok {
		observed = &pod.Status{UID: uid}
	}
	var out []server.Wait
	for _, w := range a.cri.Waits(observed) {
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
	changed := a.source.ProblemsChanged()
	a.status.Notify("") // of the initial problems
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
			changed = a.source.ProblemsChanged() // first: later changes are reported
			a.status.Notify("")
		}
	}
}

func (a *Agent) version() server.Version {
	return server.Version{
		Version: a.cfg.Version, PID: os.Getpid(), StartedAt: a.started.Round(time.Second), NodeName: a.cfg.NodeName, RootDir: a.cfg.RootDir,
		RuntimeName: a.facts.runtimeName(), RuntimeVersion: a.facts.runtimeVersion(), RuntimeEndpoint: a.endpoint,
	}
}

func (a *Agent) stop(scope server.StopScope) {
	if scope == server.StopAll {
		a.mu.Lock()
		a.atExit = max(a.atExit, StopPods)
		a.mu.Unlock()
	}
	a.ask()
}

// configz returns the KubeletConfiguration in force. In run mode, it is derived from the agent's
// settings.
func (a *Agent) configz() any {
	k := a.cfg.Kubelet
	if a.settings.mode == runMode {
		k = memberSettings(&a.cfg)
		k.EnableServer, k.HealthzPort, k.ReadOnlyPort = new(false), new(int32), 0
		k.MaxPods, k.CgroupRoot = int32(a.settings.node.MaxPods), a.cfg.CgroupRoot
		k.SerializeImagePulls, k.RegistryPullQPS = new(false), new(int32)
		k.MaxParallelImagePulls = new(int32(a.settings.images.parallelPulls))
	}
	c := k.Redacted()
	return &c
}

// listSettings returns the configured values and their origins; none in run mode, which has no
// KubeletConfiguration.
func (a *Agent) listSettings() ([]server.Setting, error) {
	if a.settings.mode == runMode {
		return nil, nil
	}
	fields, err := a.cfg.Kubelet.Settings()
	out := make([]server.Setting, len(fields))
	for i, f := range fields {
		out[i] = server.Setting{Path: f.Path, Value: f.Value, From: f.Origin.String()}
	}
	return out, err
}
