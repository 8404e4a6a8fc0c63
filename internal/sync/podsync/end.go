package podsync

import (
	"context"
	"fmt"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"

	"berth/internal/pod"
	"berth/internal/record/journal"
	"berth/internal/runtime/kuberuntime"
)

// endPass is a pass over a pod that is terminating or has terminated.
type endPass struct {
	Request
	syncer   *Syncer
	verdicts pod.ProbeVerdicts // of the containers in Observed
}

// terminateProbes stops the probes that do not apply to a terminating pod. The others continue as
// long as containers run: clients use their results to see whether the pod still serves.
func (p *endPass) terminateProbes(context.Context) error {
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

// reportTerminating reports that the pod is terminating. The eviction and its grace period are on
// disk before any container is stopped: otherwise the next agent sees exited containers and
// restarts them, or gives them the grace period of a pod that is not evicted. The wait is bounded
// by checkpointLimit: the pod may be filling the disk.
func (p *endPass) reportTerminating(ctx context.Context) error {
	if p.Pod == nil {
		return nil
	}
	if p.Evicted {
		p.syncer.Status.SetEvicted(p.UID, int64(p.Grace/time.Second))
	}
	p.syncer.report(ctx, &p.Request, p.verdicts, stillRunning)
	if p.Evicted {
		limited, cancel := context.WithTimeout(ctx, checkpointLimit)
		defer cancel()
		p.syncer.Checkpoint(limited)
	}
	return nil
}

func (p *endPass) stopContainers(ctx context.Context) error {
	p.syncer.Journal.Expect(subjectOf(&p.Request), journal.Next{
		Time: time.Now().Add(p.Grace), What: "what still runs of the pod is killed", Rule: fmt.Sprintf("its grace period is %s", p.Grace),
	})
	err := p.killPod(ctx)
	if err != nil && p.Pod != nil && ctx.Err() == nil {
		p.syncer.Event(p.Pod, "", v1.EventTypeWarning, "FailedKillPod", "error killing pod: "+err.Error())
	}
	return err
}

// killPod stops all containers and the sandbox. This may take as long as the grace period.
// Meanwhile, container exits and readiness changes are reported, and volumes are refreshed from
// changed objects.
func (p *endPass) killPod(ctx context.Context) error {
	kill := func(observed *pod.Status) error {
		return p.syncer.Runtime.KillPod(ctx, p.Pod, observed, p.Grace)
	}
	if p.Pod == nil {
		return kill(p.Observed)
	}
	refresh, stop := p.refreshWhileTerminating(ctx)
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
			_ = p.terminateProbes(ctx)
			p.syncer.report(ctx, &p.Request, p.verdicts, stillRunning)
		}
	}
}

func (p *endPass) observe(ctx context.Context) (err error) {
	p.Observed, err = p.syncer.Observe(ctx, p.UID)
	return err
}

func (p *endPass) checkEnd(context.Context) error {
	running := func(c pod.ContainerStatus) bool { return c.State == pod.StateRunning }
	if i := slices.IndexFunc(p.Observed.Containers, running); i >= 0 {
		return fmt.Errorf("container %q still runs after it was stopped", p.Observed.Containers[i].Name)
	}
	return nil
}

// reportEnd reports that all containers have terminated. A rejected pod keeps the status of its
// rejection.
func (p *endPass) reportEnd(ctx context.Context) error {
	if p.Pod != nil && !p.Refused {
		p.syncer.report(ctx, &p.Request, p.verdicts, ended)
	}
	return nil
}

func (p *endPass) reportTerminated() {
	if p.Pod != nil {
		p.syncer.Status.Terminated(p.Pod)
	}
}

// pruneContainers keeps the containers that a user may inspect, and removes everything of an
// evicted pod.
func (p *endPass) pruneContainers(ctx context.Context) error {
	if p.Evicted {
		return p.removeAll(ctx)
	}
	return p.syncer.Remover.PruneDead(ctx, p.Observed)
}

// removeContainers removes containers and sandboxes. It keeps the logs if another pod with this UID
// follows, which continues the restart counts from them.
func (p *endPass) removeContainers(ctx context.Context) error {
	if p.Again {
		return p.syncer.Remover.RemovePod(ctx, p.Observed, kuberuntime.KeepLogs)
	}
	return p.removeAll(ctx)
}

func (p *endPass) removeAll(ctx context.Context) error {
	if err := p.syncer.Remover.RemovePod(ctx, p.Observed, kuberuntime.WithLogs); err != nil {
		return err
	}
	s := subjectOf(&p.Request)
	return p.syncer.Remover.RemoveLogs(s.Namespace, s.Name, p.UID)
}

// removeStatus drops all in-memory state of the pod.
func (p *endPass) removeStatus(ctx context.Context) error {
	p.syncer.state.forget(p.UID)
	p.syncer.Status.Remove(p.UID)
	if p.Pod == nil || pod.IsStatic(p.Pod) {
		// Persist now: a manifest may reuse the UID, and the next agent must not apply this status
		// to the new pod.
		p.syncer.Checkpoint(ctx)
	}
	p.syncer.Journal.Record(journal.Entry{
		Subject: subjectOf(&p.Request), Component: "worker", Decision: "pod removed: containers, sandboxes, logs and folders are gone",
	})
	return nil
}

// finishResources releases the pod's resources before its last status is reported: the pod that
// replaces it may need exactly those.
func (p *endPass) finishResources(ctx context.Context) error {
	return p.syncer.Resources.Finish(ctx, p.UID)
}
