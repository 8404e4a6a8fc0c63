package kuberuntime

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"
	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/cri"
	"berth/internal/crispec"
	"berth/internal/images"
	"berth/internal/lifecycle"
	"berth/internal/logs"
	"berth/internal/pod"
)

// Delays between the tries to get a name that a cancelled call still holds.
const (
	reservedFirst = 50 * time.Millisecond
	reservedMost  = time.Second
)

// SyncPod brings the pod nearer to its spec: it plans and does what the plan says, in the plan's order. Failures of single containers are in the
// result; an error ends the pass.
func (r *Runtime) SyncPod(ctx context.Context, req Request) (Result, error) {
	p := req.Pod
	a := computePodActions(p, req.Observed)
	if a.empty() {
		return Result{}, nil
	}
	r.note(p, "", a.String(), a.Why, time.Time{}, nil)
	var res Result

	if a.KillPod {
		if len(req.Observed.Sandboxes) > 0 && a.CreateSandbox {
			r.Recorder.Event(p, "", v1.EventTypeNormal, "SandboxChanged", "Pod sandbox changed, it will be killed and re-created.")
		}
		res.Touched = true
		if err := r.KillPod(ctx, p, req.Observed, graceOf(p)); err != nil {
			return res, fmt.Errorf("kill pod: %w", err)
		}
	}
	for _, k := range a.Kill {
		res.Touched = true
		cs := req.Observed.FindContainer(k.Name)
		if err := r.killContainer(ctx, p, cs, k.Message, graceOf(p)); err != nil {
			return res, fmt.Errorf("kill container %q: %w", k.Name, err)
		}
	}
	if len(a.Start) > 0 {
		if err := r.start(ctx, req, &a, &res); err != nil {
			return res, err
		}
	}
	return res, r.removeGarbage(ctx, req, &a, &res)
}

// start makes the sandbox if the plan wants one and starts the plan's containers. The sandbox, the mounts and the images of those
// containers are got side by side.
func (r *Runtime) start(ctx context.Context, req Request, a *podActions, res *Result) error {
	p := req.Pod
	starts := r.dueStarts(req, a, res)
	if len(starts) == 0 && !a.CreateSandbox {
		return nil
	}
	attempt := a.Attempt
	if !a.CreateSandbox {
		attempt = req.Observed.Sandboxes[0].Attempt
	}
	// Shared with the pulls from here on, and not changed any more.
	cfg := crispec.SandboxConfig(crispec.Sandbox{
		Pod: p, Attempt: attempt, CgroupParent: req.CgroupParent, LogDirectory: logs.PodDir(r.PodLogsDir, p.Namespace, p.Name, string(p.UID)),
	})
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	volumes := begin(func() (map[string]crispec.Volume, error) { return req.Volumes(ctx) })
	pulls := make([]func() (images.Result, error), len(starts))
	for i, s := range starts {
		c := findSpec(p, s.Name)
		pulls[i] = begin(func() (images.Result, error) { return r.Images.Ensure(ctx, p, c, cfg, "") })
	}
	defer func() {
		// A pass leaves nothing running behind: what is not waited for below has been cancelled.
		cancel()
		_, _ = volumes()
		for _, wait := range pulls {
			_, _ = wait()
		}
	}()

	sandbox, ips, made := a.SandboxID, req.Observed.IPs, cfg
	if a.CreateSandbox {
		if err := r.purgeInit(ctx, req, a); err != nil {
			return err
		}
		res.Touched = true
		var err error
		if sandbox, made, err = r.createSandbox(ctx, p, cfg); err != nil {
			if ctx.Err() == nil {
				r.Recorder.Event(p, "", v1.EventTypeWarning, "FailedCreatePodSandBox", "Failed to create pod sandbox: "+cri.Message(err))
			}
			return fmt.Errorf("create pod sandbox: %w", err)
		}
		if ips, err = r.sandboxIPs(ctx, sandbox); err != nil {
			r.Recorder.Event(p, "", v1.EventTypeWarning, "FailedPodSandBoxStatus", "Unable to get pod sandbox status: "+cri.Message(err))
			return fmt.Errorf("pod sandbox status: %w", err)
		}
	}
	mounted, err := volumes()
	if err != nil {
		return err
	}
	for i, s := range starts {
		if err := ctx.Err(); err != nil {
			return err
		}
		c := findSpec(p, s.Name)
		st := &start{req: req, container: c, sandbox: sandbox, sandboxConfig: made, volumes: mounted, ips: ips, image: pulls[i]}
		if e := r.startContainer(ctx, st); e != nil {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			res.failed(s.Name, *e)
			res.Touched = res.Touched || st.created
			if isInit(p, s.Name) && !lifecycle.IsSidecar(c) {
				return nil // nothing may start before it
			}
			continue
		}
		res.Touched = true
		res.Started = append(res.Started, s.Name)
	}
	return nil
}

// dueStarts leaves out the containers whose crash-loop back-off has not ended yet, and those behind an init container among them.
func (r *Runtime) dueStarts(req Request, a *podActions, res *Result) []startAction {
	p := req.Pod
	var due []startAction
	for _, s := range a.Start {
		c := findSpec(p, s.Name)
		cs := req.Observed.FindContainer(s.Name)
		ended, ok := endOf(cs)
		if !ok {
			due = append(due, s)
			continue
		}
		until, wait := r.crash.Until(lifecycle.CrashKey(p, c), ended, time.Now())
		if !wait {
			due = append(due, s)
			continue
		}
		delay := r.crash.Delay(lifecycle.CrashKey(p, c))
		r.Recorder.Event(p, s.Name, v1.EventTypeWarning, "BackOff", fmt.Sprintf("Back-off restarting failed container %s in pod %s", s.Name, pod.Describe(p)))
		res.failed(s.Name, lifecycle.StartError{
			Reason:       lifecycle.CrashLoopBackOff,
			Message:      fmt.Sprintf("back-off %s restarting failed container=%s pod=%s", delay, s.Name, pod.Describe(p)),
			BackOffUntil: until,
		})
		if isInit(p, s.Name) && !lifecycle.IsSidecar(c) {
			break
		}
	}
	return due
}

// endOf returns when the last incarnation of a container ended, and false when it did not. One that was created and never started has
// failed at its creation: it must back off like one that crashed.
func endOf(cs *pod.ContainerStatus) (time.Time, bool) {
	switch {
	case cs == nil || cs.State == pod.StateRunning || cs.State == pod.StateUnknown:
		return time.Time{}, false
	case cs.FinishedAt.IsZero():
		return cs.CreatedAt, true
	}
	return cs.FinishedAt, true
}

// createSandbox runs the sandbox. While a cancelled call holds its name it tries again; at last it takes the next attempt's name. It returns
// the configuration that the sandbox has.
func (r *Runtime) createSandbox(ctx context.Context, p *v1.Pod, cfg *runtimeapi.PodSandboxConfig) (pod.SandboxID, *runtimeapi.PodSandboxConfig, error) {
	select {
	case r.starting <- struct{}{}:
		defer func() { <-r.starting }()
	case <-ctx.Done():
		return "", cfg, ctx.Err()
	}
	handler := ""
	if p.Spec.RuntimeClassName != nil {
		handler = *p.Spec.RuntimeClassName
	}
	id, err := whileReserved(ctx, func() (pod.SandboxID, error) {
		began := time.Now()
		id, err := r.CRI.RunPodSandbox(ctx, cfg, handler)
		r.note(p, "", "sandbox created", fmt.Sprintf("attempt %d", cfg.Metadata.Attempt), began, err)
		return id, err
	})
	if errors.Is(err, cri.ErrNameReserved) {
		cfg = proto.Clone(cfg).(*runtimeapi.PodSandboxConfig)
		cfg.Metadata.Attempt++
		id, err = r.CRI.RunPodSandbox(ctx, cfg, handler)
	}
	return id, cfg, err
}

// whileReserved calls create until the name that it asks for is free: a call that was cancelled, as by the end of an earlier agent, holds
// its name for a moment. After a few tries the error is returned.
func whileReserved[ID any](ctx context.Context, create func() (ID, error)) (ID, error) {
	for wait := reservedFirst; ; wait *= 2 {
		id, err := create()
		if !errors.Is(err, cri.ErrNameReserved) || wait > reservedMost {
			return id, err
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return id, ctx.Err()
		}
	}
}

// purgeInit removes the init containers of earlier sandboxes.
func (r *Runtime) purgeInit(ctx context.Context, req Request, a *podActions) error {
	if !a.PurgeInit {
		return nil
	}
	for i := range req.Observed.Containers {
		cs := &req.Observed.Containers[i]
		if !isInit(req.Pod, cs.Name) {
			continue
		}
		if err := r.CRI.RemoveContainer(ctx, cs.ID); err != nil {
			return fmt.Errorf("remove init container %q of the old sandbox: %w", cs.Name, err)
		}
	}
	return nil
}

func (r *Runtime) removeGarbage(ctx context.Context, req Request, a *podActions, res *Result) error {
	for _, id := range a.RemoveContainers {
		for i := range req.Observed.Containers {
			if cs := &req.Observed.Containers[i]; cs.ID == id {
				if err := r.removeContainer(ctx, cs); err != nil {
					return err
				}
			}
		}
	}
	for _, id := range a.RemoveSandboxes {
		if err := r.removeSandbox(ctx, id); err != nil {
			return err
		}
	}
	res.Touched = res.Touched || len(a.RemoveContainers)+len(a.RemoveSandboxes) > 0
	return nil
}

// begin runs f beside the caller; the returned function waits for its result and may be called again.
func begin[T any](f func() (T, error)) (wait func() (T, error)) {
	done := make(chan struct{})
	var v T
	var err error
	go func() {
		defer close(done)
		v, err = f()
	}()
	return func() (T, error) {
		<-done
		return v, err
	}
}

func graceOf(p *v1.Pod) time.Duration {
	switch {
	case p.DeletionGracePeriodSeconds != nil:
		return time.Duration(*p.DeletionGracePeriodSeconds) * time.Second
	case p.Spec.TerminationGracePeriodSeconds != nil:
		return time.Duration(*p.Spec.TerminationGracePeriodSeconds) * time.Second
	}
	return minGrace
}
