package agent

import (
	v1 "k8s.io/api/core/v1"

	"berth/internal/events"
	"berth/internal/eviction"
	"berth/internal/pod"
	"berth/internal/podworkers"
)

// EvictPod evicts a pod within so many seconds.
func (k killer) EvictPod(p *v1.Pod, grace int64, status func(*v1.PodStatus), done chan<- struct{}) {
	k.a.workers.UpdatePod(podworkers.UpdatePodOptions{
		UpdateType: podworkers.SyncPodKill, Pod: p,
		KillPodOptions: &podworkers.KillPodOptions{
			Evict: podworkers.Evicted, PodTerminationGracePeriodSecondsOverride: &grace, PodStatusFunc: status, CompletedCh: done,
		},
	})
}

// newEviction builds what holds pods to their limits of local storage, unless the configuration does without.
func (a *Agent) newEviction(recorder *events.Recorder) *eviction.Manager {
	// Differs from the kubelet: it never evicts pods of files. In run mode all pods are of files, and a limit would hold for none of them. There, a
	// pod is spared by its priority alone.
	critical := pod.HasCriticalPriority
	if k := a.cfg.Kubelet; k != nil {
		if !*k.LocalStorageCapacityIsolation {
			return nil
		}
		critical = pod.IsCritical
	}
	return eviction.New(eviction.Config{
		Lifecycles: a.states, Pod: a.pods.Get, Allotted: a.allocations.Apply, Observed: a.pleg.Newest, Ended: a.hasEnded, IsCritical: critical,
		Storage: a.stats, Space: a.stats.ReadSpace, Killer: killer{a}, Event: recorder.Event,
		Metrics: a.out.Metrics, Journal: a.journal, Log: a.cfg.Log,
	})
}

// evictionComponents hold pods to their limits, if they are to be held to them.
func (a *Agent) evictionComponents() []component {
	if a.eviction == nil {
		return nil
	}
	return []component{{name: "limits of local storage", run: a.eviction.Run}}
}

// hasEnded reports whether the pod has failed or succeeded.
func (a *Agent) hasEnded(uid pod.UID) bool {
	st, known := a.status.Get(uid)
	return known && (st.Phase == v1.PodSucceeded || st.Phase == v1.PodFailed)
}
