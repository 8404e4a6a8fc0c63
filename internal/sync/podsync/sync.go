package podsync

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	v1 "k8s.io/api/core/v1"

	"berth/internal/pod"
	"berth/internal/record/journal"
	"berth/internal/runtime/crispec"
	"berth/internal/runtime/kuberuntime"
	"berth/internal/storage/volumes"
)

// syncPass is a pass of SyncPod: its request, the findings of its steps, and its result.
type syncPass struct {
	Request
	syncer *Syncer

	verdicts pod.ProbeVerdicts // of the containers in Observed
	volumes  *podVolumes       // set once their inputs have been read
	synced   kuberuntime.Result
	result   Result
}

// syncProbes updates the probes from the observed state, and reads their results.
func (p *syncPass) syncProbes(context.Context) error {
	p.syncer.Probes.Sync(p.Pod, p.Observed)
	p.verdicts = p.syncer.Probes.Verdicts(p.UID)
	return nil
}

// reportObserved reports the observed state of the pod, which may be terminal.
func (p *syncPass) reportObserved(ctx context.Context) error {
	p.syncer.Journal.Reach(subjectOf(&p.Request), journal.Admitted, "")
	p.syncer.Journal.Expect(subjectOf(&p.Request)) // nothing yet
	if p.report(ctx) {
		p.result.Terminal = true
		return errTerminal
	}
	p.result.RetryAt = deadlineOf(p.Pod, p.syncer.Status)
	return nil
}

// reject fails a pod without running containers permanently: it does not fit this node.
func (p *syncPass) reject(ctx context.Context, reason, message string) error {
	p.syncer.Event(p.Pod, "", v1.EventTypeWarning, reason, message)
	p.StatusFunc = func(st *v1.PodStatus) {
		st.Phase, st.Reason, st.Message = v1.PodFailed, reason, "Pod was rejected: "+message
	}
	p.report(ctx)
	p.result.Terminal = true
	return errTerminal
}

// report reports the observed state of the running pod, and whether its phase is terminal.
func (p *syncPass) report(ctx context.Context) (terminal bool) {
	st := p.syncer.report(ctx, &p.Request, p.verdicts, stillRunning)
	if st.Reason != "" {
		p.result.Why = "it has failed: " + st.Reason
	}
	return pod.IsTerminal(st.Phase)
}

func (p *syncPass) makeDataDirs(context.Context) error {
	dir := p.syncer.podDir(p.UID)
	for _, d := range []string{dir, filepath.Join(dir, "volumes"), filepath.Join(dir, "plugins")} {
		if err := p.syncer.files().Ensure(d, 0o750, 0o750); err != nil {
			p.syncer.Event(p.Pod, "", v1.EventTypeWarning, "Failed", "error making pod data directories: "+err.Error())
			return err
		}
	}
	return nil
}

func (p *syncPass) ensureCgroup(ctx context.Context) error {
	// The actuated cgroup resources, not the desired ones: those are applied in order, also after
	// an agent was killed during a resize.
	if err := p.syncer.Cgroups.EnsurePod(ctx, p.syncer.Allocations.Cgroup(p.Pod)); err != nil {
		p.syncer.Event(p.Pod, "", v1.EventTypeWarning, "FailedCreatePodContainer", "unable to ensure pod container exists: "+err.Error())
		return err
	}
	p.syncer.Journal.Reach(subjectOf(&p.Request), journal.Cgroup, "")
	return nil
}

// prepareVolumes reads the inputs of the volumes. Without a ready sandbox, missing inputs fail the
// pass, and a pod that exceeds the node's volume limit is rejected.
func (p *syncPass) prepareVolumes(ctx context.Context) error {
	in, errs := p.syncer.Volumes.Prepare(ctx, p.Pod)
	p.volumes = &podVolumes{syncer: p.syncer, pod: p.Pod, inputs: in}
	hasVolumes := p.Observed.ReadySandbox() != nil
	full := slices.IndexFunc(errs, func(e *volumes.Error) bool { return e.Class == volumes.LimitExceeded })
	if full >= 0 && !hasVolumes {
		return p.reject(ctx, "VolumeAttachmentLimitExceeded", errs[full].Error())
	}
	p.syncer.reportFailedMounts(ctx, p.Pod, errs)
	if hasVolumes {
		return nil // volumes with unreadable inputs stay unchanged, and the pass continues
	}
	return errs.Err()
}

func (p *syncPass) syncRuntime(ctx context.Context) (err error) {
	r := kuberuntime.Request{
		Pod: p.Pod, Observed: p.Observed, CgroupParent: p.syncer.Cgroups.PodParent(p.Pod), Probes: p.verdicts, VolumeGroups: p.volumes.inputs.Groups(),
		Volumes: func(ctx context.Context) (map[string]crispec.Volume, error) {
			mounted, err := p.volumes.setUp(ctx)
			if err != nil {
				return nil, fmt.Errorf("volumes: %w", err)
			}
			p.syncer.Journal.Reach(subjectOf(&p.Request), journal.Volumes, "")
			return mounted, nil
		},
		Ended: func(ctx context.Context, cs *pod.ContainerStatus) {
			recordEnd(ctx, p.syncer.Journal, subjectOf(&p.Request), cs)
		},
	}
	stop := p.volumes.follow(ctx, p.Changed)
	p.synced, err = p.syncer.Runtime.SyncPod(ctx, r)
	stop()
	p.result.Touched = p.synced.Touched
	p.expectRetries()
	if at := p.synced.RetryAt; !at.IsZero() && (p.result.RetryAt.IsZero() || at.Before(p.result.RetryAt)) {
		p.result.RetryAt = at
	}
	switch {
	case err != nil:
		return err
	case p.synced.ResizeError != nil && !p.synced.Touched: // else the next pass reports it
		return p.synced.ResizeError
	case !p.synced.Touched && len(p.synced.StartErrors) > 0 && p.synced.RetryAt.IsZero():
		return errors.New(describe(p.synced.StartErrors)) // retried like any failure
	}
	return nil
}

// reportFailures reports why containers did not start and why a resize failed. If the runtime was
// changed, the next pass reports it.
func (p *syncPass) reportFailures(ctx context.Context) error {
	resizeFailed := p.resizeFailed()
	if p.syncer.state.updateStartErrors(p.UID, p.synced) && !p.result.Touched || resizeFailed {
		p.report(ctx)
	}
	return nil
}

// refreshVolumes updates the volumes of running containers, unless they were set up in this pass.
func (p *syncPass) refreshVolumes(ctx context.Context) error {
	if p.volumes.set || !p.volumes.inputs.Live() {
		return nil
	}
	_, err := p.volumes.setUp(ctx)
	return err
}
