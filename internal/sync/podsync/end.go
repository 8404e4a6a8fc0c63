package podsync

import (
	"context"
	"fmt"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"

	"berth/internal/pod"
	"berth/internal/runtime/kuberuntime"
)

// endProbes ends the probes that end with the pod. The others go on as long as containers run: by
// them others see whether it still serves.
func (p *pass) endProbes(context.Context) error {
	if p.Pod != nil {
		p.syncer.Probes.Sync(p.Pod, p.Observed)
		p.syncer.Probes.Terminating(p.UID)
		p.verdicts = p.syncer.Probes.Verdicts(p.UID)
	}
	return nil
}

// checkpointLimit is how long the end of an evicted pod waits for the status to be on disk.
const checkpointLimit = 2 * time.Second

// reportEnding reports that the pod ends. That it is evicted, and with which grace period, is on
// disk before anything of it is stopped: to the next agent its containers would just have ended,
// and be started again, or be given the time that a pod has which is not evicted. A disk that
// is too slow for it is not waited for: the pod may be filling it.
func (p *pass) reportEnding(ctx context.Context) error {
	if p.Pod == nil {
		return nil
	}
	if p.Evicted {
		p.syncer.Status.SetEvicted(p.UID, int64(p.Grace/time.Second))
	}
	p.report(ctx, stillRunning)
	if p.Evicted {
		limited, cancel := context.WithTimeout(ctx, checkpointLimit)
		defer cancel()
		p.syncer.Checkpoint(limited)
	}
	return nil
}

// stopContainers stops everything of the pod.
func (p *pass) stopContainers(ctx context.Context) error {
	p.expectKill()
	err := p.killPod(ctx)
	if err != nil && p.Pod != nil && ctx.Err() == nil {
		p.event(v1.EventTypeWarning, "FailedKillPod", "error killing pod: "+err.Error())
	}
	return err
}

// killPod stops everything of the pod. That may last as long as the grace period; what changes
// meanwhile, a container that ends or that is not ready any more, is reported, and volumes are
// refreshed with what is new of objects.
func (p *pass) killPod(ctx context.Context) error {
	kill := func(observed *pod.Status) error {
		return p.syncer.Runtime.KillPod(ctx, p.Pod, observed, p.Grace)
	}
	if p.Pod == nil {
		return kill(p.Observed)
	}
	refresh, stop := p.refreshWhileEnding(ctx)
	defer stop()
	done := make(chan error, 1)
	go func(observed *pod.Status) { done <- kill(observed) }(p.Observed)
	for {
		select {
		case err := <-done:
			return err
		case <-p.Changed:
			refresh()
			now, err := p.syncer.Observe(ctx, p.UID)
			if err != nil {
				continue // it is read when the pod has ended
			}
			p.Observed = now
			_ = p.endProbes(ctx)
			p.report(ctx, stillRunning)
		}
	}
}

func (p *pass) observe(ctx context.Context) (err error) {
	p.Observed, err = p.syncer.Observe(ctx, p.UID)
	return err
}

// checkEnd makes sure that nothing of the pod runs any more.
func (p *pass) checkEnd(context.Context) error {
	running := func(c pod.ContainerStatus) bool { return c.State == pod.StateRunning }
	if i := slices.IndexFunc(p.Observed.Containers, running); i >= 0 {
		return fmt.Errorf("container %q still runs after it was stopped", p.Observed.Containers[i].Name)
	}
	return nil
}

// reportEnd reports the end of all containers. What a refused pod ends with stays what its refusal
// says.
func (p *pass) reportEnd(ctx context.Context) error {
	if p.Pod != nil && !p.Refused {
		p.report(ctx, ended)
	}
	return nil
}

// reportTerminated reports that nothing is held for the pod any more.
func (p *pass) reportTerminated() {
	if p.Pod != nil {
		p.syncer.Status.Terminated(p.Pod)
	}
}

// pruneContainers leaves the containers that a user may inspect, and nothing of an evicted pod.
func (p *pass) pruneContainers(ctx context.Context) error {
	if p.Evicted {
		return p.removeAll(ctx)
	}
	return p.syncer.Remover.PruneDead(ctx, p.Observed)
}

// removeContainers removes containers and sandboxes. Logs stay if another pod of the UID follows,
// whose restarts go on being counted from there.
func (p *pass) removeContainers(ctx context.Context) error {
	if p.Again {
		return p.syncer.Remover.RemovePod(ctx, p.Observed, kuberuntime.KeepLogs)
	}
	return p.removeAll(ctx)
}

// removeAll removes containers, sandboxes and the log folder.
func (p *pass) removeAll(ctx context.Context) error {
	if err := p.syncer.Remover.RemovePod(ctx, p.Observed, kuberuntime.WithLogs); err != nil {
		return err
	}
	s := p.subject()
	return p.syncer.Remover.RemoveLogs(s.Namespace, s.Name, p.UID)
}

// removeStatus forgets the pod.
func (p *pass) removeStatus(ctx context.Context) error {
	p.syncer.forget(p.UID)
	p.syncer.Status.Remove(p.UID)
	if p.Pod == nil || pod.IsStatic(p.Pod) {
		// Now: a manifest may bring the UID back, and the next agent must not take this status for
		// that pod's.
		p.syncer.Checkpoint(ctx)
	}
	p.recordRemoved()
	return nil
}
