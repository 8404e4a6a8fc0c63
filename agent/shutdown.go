package agent

import (
	"context"

	v1 "k8s.io/api/core/v1"

	"berth/internal/host/logind"
	"berth/internal/observe/status"
	"berth/internal/pod"
	"berth/internal/sync/nodeshutdown"
	"berth/internal/sync/podworkers"
)

// shutdownFile records the last node shutdown; its name and format are the kubelet's.
const shutdownFile = "graceful_node_shutdown_state"

// shutdownKiller terminates pods before a node shutdown.
type shutdownKiller struct{ workers *podworkers.PodWorkers }

// ShutDownPod terminates a pod with this grace period, in seconds.
func (k shutdownKiller) ShutDownPod(p *v1.Pod, grace int64, status func(*v1.PodStatus)) {
	k.workers.UpdatePod(podworkers.UpdatePodOptions{
		UpdateType: podworkers.SyncPodKill, Pod: p,
		KillPodOptions: &podworkers.KillPodOptions{
			PodTerminationGracePeriodSecondsOverride: &grace, PodStatusFunc: status, Why: "the machine is about to be turned off",
		},
	})
}

// newShutdown creates the graceful node shutdown; patcher is nil if statuses are not written to an
// API server.
func newShutdown(g *dependencies, workers *podworkers.PodWorkers, patcher *status.Patcher, known <-chan struct{}, nodeChanged func()) *nodeshutdown.Manager {
	var tell func(context.Context, []pod.UID) error
	if patcher != nil {
		tell = patcher.Flush
	}
	connect := g.out.Logind
	if connect == nil {
		connect = func(ctx context.Context) (nodeshutdown.Logind, error) {
			c, err := logind.Dial(ctx, logind.Config{})
			if err != nil {
				return nil, err // not a typed nil
			}
			return c, nil
		}
	}
	changed := nodeChanged
	if g.api.local != nil {
		changed = wakeEach(g.api.local.shutdownChanged, nodeChanged)
	}
	return nodeshutdown.New(nodeshutdown.Config{
		Groups: g.settings.shutdown, Connect: connect, Pods: func() []*v1.Pod { return podsToEnd(g.stores.pods, workers) }, Known: known, Lifecycles: g.stores.states,
		Killer: shutdownKiller{workers}, Publish: tell, NodeEvent: g.recorder.NodeEvent, State: g.stores.shutdown, Changed: changed,
		Path: g.cfg.inRoot(shutdownFile), Metrics: g.out.Metrics, Journal: g.journal, Log: g.cfg.Log,
	})
}

// podsToEnd returns the desired pods, and the terminating ones that are no longer desired.
func podsToEnd(wanted *pod.Manager, workers *podworkers.PodWorkers) []*v1.Pod {
	out := wanted.List()
	for _, uid := range workers.TerminatingPods() {
		if _, ok := wanted.Get(uid); ok {
			continue
		}
		if p, ok := workers.TerminatingPod(uid); ok {
			out = append(out, p)
		}
	}
	return out
}
