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

// pass is one pass: its request, the findings of its steps, and its result.
type pass struct {
	Request
	syncer *Syncer

	verdicts pod.ProbeVerdicts // of the containers in Observed
	volumes  *podVolumes       // set once their inputs have been read
	synced   kuberuntime.Result
	result   Result
}

type step struct {
	name string
	do   func(ctx context.Context) error
	// always: run the step even if an earlier step failed or the pass was interrupted.
	always bool
}

// does adapts a function that cannot fail to a step.
func does(f func()) func(context.Context) error {
	return func(context.Context) error {
		f()
		return nil
	}
}

// run runs the steps in order, until one fails or the pod's phase is terminal.
func (p *pass) run(ctx context.Context, what string, steps []step) (failed error) {
	for _, st := range steps {
		if failed == nil {
			failed = ctx.Err()
		}
		if failed != nil && !st.always {
			continue
		}
		if err := st.do(ctx); err != nil {
			failed = fmt.Errorf("%s %s: step %s: %w", what, p.name(), st.name, err)
		}
		if p.result.Terminal {
			break
		}
	}
	return failed
}

// name returns the pod's name for errors.
func (p *pass) name() string {
	if s := p.subject(); s.Name != "" {
		return s.String()
	}
	return string(p.UID)
}

// syncProbes updates the probes from the observed state, and reads their results.
func (p *pass) syncProbes(context.Context) error {
	p.syncer.Probes.Sync(p.Pod, p.Observed)
	p.verdicts = p.syncer.Probes.Verdicts(p.UID)
	return nil
}

// reportObserved reports the observed state of the pod, which may be terminal.
func (p *pass) reportObserved(ctx context.Context) error {
	p.recordAdmitted()
	p.result.Terminal = p.report(ctx, stillRunning)
	if !p.result.Terminal {
		p.result.RetryAt = deadlineOf(p.Pod, p.syncer.Status)
	}
	return nil
}

// reject fails a pod without running containers permanently: it does not fit this node.
func (p *pass) reject(ctx context.Context, reason, message string) {
	p.event(v1.EventTypeWarning, reason, message)
	p.StatusFunc = func(st *v1.PodStatus) {
		st.Phase, st.Reason, st.Message = v1.PodFailed, reason, "Pod was rejected: "+message
	}
	p.result.Terminal = p.report(ctx, stillRunning)
}

func (p *pass) event(eventtype, reason, message string) {
	p.syncer.Event(p.Pod, "", eventtype, reason, message)
}

func (p *pass) makeDataDirs(context.Context) error {
	dir := p.syncer.podDir(p.UID)
	for _, d := range []string{dir, filepath.Join(dir, "volumes"), filepath.Join(dir, "plugins")} {
		if err := p.syncer.files().Ensure(d, 0o750, 0o750); err != nil {
			p.event(v1.EventTypeWarning, "Failed", "error making pod data directories: "+err.Error())
			return err
		}
	}
	return nil
}

func (p *pass) ensureCgroup(ctx context.Context) error {
	// The actuated cgroup resources, not the desired ones: those are applied in order, also after
	// an agent was killed during a resize.
	if err := p.syncer.Cgroups.EnsurePod(ctx, p.syncer.Allocations.Cgroup(p.Pod)); err != nil {
		p.event(v1.EventTypeWarning, "FailedCreatePodContainer", "unable to ensure pod container exists: "+err.Error())
		return err
	}
	p.reach(journal.Cgroup)
	return nil
}

// prepareVolumes reads the inputs of the volumes. Without a ready sandbox, missing inputs fail the
// pass, and a pod that exceeds the node's volume limit is rejected.
func (p *pass) prepareVolumes(ctx context.Context) error {
	in, errs := p.syncer.Volumes.Prepare(ctx, p.Pod)
	p.volumes = &podVolumes{syncer: p.syncer, pod: p.Pod, inputs: in}
	hasVolumes := p.Observed.ReadySandbox() != nil
	full := slices.IndexFunc(errs, func(e *volumes.Error) bool { return e.Class == volumes.LimitExceeded })
	if full >= 0 && !hasVolumes {
		p.reject(ctx, "VolumeAttachmentLimitExceeded", errs[full].Error())
		return nil
	}
	p.syncer.reportFailedMounts(ctx, p.Pod, errs)
	if hasVolumes {
		return nil // volumes with unreadable inputs stay unchanged, and the pass continues
	}
	return errs.Err()
}

func (p *pass) syncRuntime(ctx context.Context) (err error) {
	r := kuberuntime.Request{
		Pod: p.Pod, Observed: p.Observed, CgroupParent: p.syncer.Cgroups.PodParent(p.Pod), Probes: p.verdicts, VolumeGroups: p.volumes.inputs.Groups(),
		Volumes: func(ctx context.Context) (map[string]crispec.Volume, error) {
			mounted, err := p.volumes.setUp(ctx)
			if err != nil {
				return nil, fmt.Errorf("volumes: %w", err)
			}
			p.reach(journal.Volumes)
			return mounted, nil
		},
		Ended: func(ctx context.Context, cs *pod.ContainerStatus) {
			recordEnd(ctx, p.syncer.Journal, p.subject(), cs)
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
func (p *pass) reportFailures(ctx context.Context) error {
	resizeFailed := p.resizeFailed()
	if p.syncer.updateStartErrors(p.UID, p.synced) && !p.result.Touched || resizeFailed {
		p.report(ctx, stillRunning)
	}
	return nil
}

// refreshVolumes updates the volumes of running containers, unless they were set up in this pass.
func (p *pass) refreshVolumes(ctx context.Context) error {
	if p.volumes.set || !p.volumes.inputs.Live() {
		return nil
	}
	_, err := p.volumes.setUp(ctx)
	return err
}
