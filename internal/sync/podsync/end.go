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

// endProbes stops the probes that do not apply to a terminating pod. The others continue as long as
// containers run: clients use their results to see whether the pod still serves.
func (p *pass) endProbes(context.Context) error {
	if p.Pod != nil {
		p.syncer.Probes.Sync(p.Pod, p.Observed)
		p.syncer.Probes.Terminating(p.UID)
		p.verdicts = p.syncer.Probes.Verdicts(p.UID)
	}
	return nil
}

// checkpointLimit is how long the termination of an evicted pod waits for the status to be
// persisted.
const checkpointLimit = 2 * time.Second

// reportEnding reports that the pod is terminating. The eviction and its grace period are on disk
// before any container is stopped: otherwise the next agent sees exited containers and restarts
// them, or gives them the grace period of a pod that is not evicted. The wait is bounded by
// checkpointLimit: the pod may be filling the disk.
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

func (p *pass) stopContainers(ctx context.Context) error {
	p.expectKill()
	err := p.killPod(ctx)
	if err != nil && p.Pod != nil && ctx.Err() == nil {
		p.event(v1.EventTypeWarning, "FailedKillPod", "error killing pod: "+err.Error())
	}
	return err
}

// killPod stops all containers and the sandbox. This may take as long as the grace period.
// Meanwhile, container exits and readiness changes are reported, and volumes are refreshed from
// changed objects.
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
				continue // it is read again after the kill
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

// checkEnd fails if a container of the pod still runs.
func (p *pass) checkEnd(context.Context) error {
	running := func(c pod.ContainerStatus) bool { return c.State == pod.StateRunning }
	if i := slices.IndexFunc(p.Observed.Containers, running); i >= 0 {
		return fmt.Errorf("container %q still runs after it was stopped", p.Observed.Containers[i].Name)
	}
	return nil
}

// reportEnd reports that all containers have terminated. A rejected pod keeps the status of its
// rejection.
func (p *pass) reportEnd(ctx context.Context) error {
	if p.Pod != nil && !p.Refused {
		p.report(ctx, ended)
	}
	return nil
}

// reportTerminated reports that the pod's resources are released.
func (p *pass) reportTerminated() {
	if p.Pod != nil {
		p.syncer.Status.Terminated(p.Pod)
	}
}

// pruneContainers keeps the containers that a user may inspect, and removes everything of an
// evicted pod.
func (p *pass) pruneContainers(ctx context.Context) error {
	if p.Evicted {
		return p.removeAll(ctx)
	}
	return p.syncer.Remover.PruneDead(ctx, p.Observed)
}

// removeContainers removes containers and sandboxes. It keeps the logs if another pod with this UID
// follows, which continues the restart counts from them.
func (p *pass) removeContainers(ctx context.Context) error {
	if p.Again {
		return p.syncer.Remover.RemovePod(ctx, p.Observed, kuberuntime.KeepLogs)
	}
	return p.removeAll(ctx)
}

// removeAll removes containers, sandboxes and the log directory.
func (p *pass) removeAll(ctx context.Context) error {
	if err := p.syncer.Remover.RemovePod(ctx, p.Observed, kuberuntime.WithLogs); err != nil {
		return err
	}
	s := p.subject()
	return p.syncer.Remover.RemoveLogs(s.Namespace, s.Name, p.UID)
}

// removeStatus drops all in-memory state of the pod.
func (p *pass) removeStatus(ctx context.Context) error {
	p.syncer.forget(p.UID)
	p.syncer.Status.Remove(p.UID)
	if p.Pod == nil || pod.IsStatic(p.Pod) {
		// Persist now: a manifest may reuse the UID, and the next agent must not apply this status
		// to the new pod.
		p.syncer.Checkpoint(ctx)
	}
	p.recordRemoved()
	return nil
}
