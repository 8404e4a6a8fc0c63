package agent

import (
	"context"
	"fmt"
	"os"
	"time"

	v1 "k8s.io/api/core/v1"

	"berth/internal/api/server"
	"berth/internal/explain"
	"berth/internal/pod"
	"berth/internal/resources/containermanager"
	"berth/internal/sync/quarantine"
)

// errStopped is the cause of a stop that a client requested.
var errStopped = fmt.Errorf("a client asked to stop: %w", context.Canceled)

// Handlers returns the handlers of the HTTP API, for in-process use.
func (a *Agent) Handlers() server.Handlers {
	h := server.Handlers{
		Agent:  server.Agent{Version: a.version, Stop: a.stop},
		Pods:   server.Pods{List: a.usage.view.List, Get: a.usage.view.Get, Subscribe: a.deps.stores.status.Subscribe},
		Logs:   a.usage.view.ContainerLog,
		Health: server.Health{Check: a.node.conditions.Healthz, Conditions: a.node.conditions.States, DevicePlugins: a.managers.devices.Health},
		Explain: server.Explain{
			Journal: a.deps.journal, Problems: a.desired.source.Problems, Details: podDetails{a}, Pulls: a.imagePulls().list,
			Quarantine: quarantine.Releaser{Quarantine: a.deps.quarantine, Pods: a.deps.stores.pods, Workers: a.lifecycle.workers},
		},
		Observed:      server.Observed{Get: a.observation.pleg.Newest, List: a.observation.pleg.Known},
		Streams:       server.Streams{Runtime: a.runtime.cri.Streaming, PodDialer: a.runtime.podDialer},
		Configuration: server.Configuration{Configz: func() any { return configz(&a.deps) }, Settings: func() ([]server.Setting, error) { return listSettings(&a.deps) }},
		Stats:         a.usage.stats,
		Thresholds:    func() []server.Threshold { return thresholds(a.usage.eviction) },
		Resources:     func() containermanager.Snapshot { return a.managers.containers.Snapshot(a.usage.view.List()) },
		Images:        a.images.collector.Prune,
		View:          a.openView,
	}
	if a.deps.api.local != nil {
		h.Explain.Scheduler = a.deps.api.local
	}
	return h
}

// podDetails implements server.Details.
type podDetails struct{ a *Agent }

// Waits returns the pending calls for the pod: to the runtime, to CSI drivers, and other operations
// that volumes wait for.
func (d podDetails) Waits(uid pod.UID) []explain.Wait {
	observed, ok := d.a.observation.pleg.Newest(uid)
	if !ok {
		observed = &pod.Status{UID: uid}
	}
	var out []explain.Wait
	for _, w := range d.a.runtime.cri.Calls.Waits(observed) {
		out = append(out, explain.Wait{Pod: uid, Call: w.Call, Container: w.Container, Since: w.Since, Until: w.Until})
	}
	for _, w := range d.a.storage.drivers.Waits(uid) {
		out = append(out, explain.Wait{Pod: uid, Driver: w.Driver, Call: w.Call, Volume: w.Volume, Since: w.Since, Until: w.Until})
	}
	for _, w := range d.a.storage.volumes.Waits(uid) {
		out = append(out, explain.Wait{Pod: uid, From: w.From, Call: w.Call, Volume: w.Volume, Since: w.Since, Until: w.Until})
	}
	return out
}

// Volumes returns the sources of the pods' volumes that may be missing.
func (d podDetails) Volumes(pods []*v1.Pod) *explain.VolumeSources {
	return d.a.storage.sources(d.a.deps.cfg.RootDir, pods)
}

// Unreported returns since when the API server's status of the pod is out of date.
func (d podDetails) Unreported(uid pod.UID) time.Time {
	if d.a.desired.patcher == nil {
		return time.Time{}
	}
	return d.a.desired.patcher.Unwritten(uid)
}

// Probes returns the probe states of the pod.
func (d podDetails) Probes(uid pod.UID) (out []explain.Probe) {
	for _, s := range d.a.lifecycle.probes.States(uid) {
		out = append(out, explain.Probe{
			Pod: uid, Container: s.Container, Kind: s.Kind, Last: s.Last.String(), InARow: s.InARow, Needed: s.Needed, Next: s.Next,
		})
	}
	return out
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
func configz(g *dependencies) any {
	k := g.cfg.Kubelet
	if g.settings.mode == runMode {
		k = memberSettings(&g.cfg)
		k.EnableServer, k.HealthzPort, k.ReadOnlyPort = new(false), new(int32), 0
		k.MaxPods, k.CgroupRoot = int32(g.settings.node.MaxPods), g.cfg.CgroupRoot
		k.SerializeImagePulls, k.RegistryPullQPS = new(false), new(int32)
		k.MaxParallelImagePulls = new(int32(g.settings.images.parallelPulls))
	}
	c := k.Redacted()
	return &c
}

// listSettings returns the configured values and their origins; none in run mode, which has no
// KubeletConfiguration.
func listSettings(g *dependencies) ([]server.Setting, error) {
	if g.settings.mode == runMode {
		return nil, nil
	}
	fields, err := g.cfg.Kubelet.Settings()
	out := make([]server.Setting, len(fields))
	for i, f := range fields {
		out[i] = server.Setting{Path: f.Path, Value: f.Value, From: f.Origin.String()}
	}
	return out, err
}
