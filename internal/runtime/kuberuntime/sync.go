package kuberuntime

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"

	"berth/internal/pod"
	"berth/internal/pod/lifecycle"
	"berth/internal/record/journal"
	"berth/internal/runtime/crispec"
)

// SyncPod brings the pod nearer to its spec: it plans and does what the plan says, in the plan's
// order. Failures of single containers are in the result; an error ends the pass.
func (r *Runtime) SyncPod(ctx context.Context, req Request) (Result, error) {
	p := req.Pod
	r.backOffs.check(p)
	in := planInput{Pod: p, Observed: req.Observed, Probes: req.Probes, Actuated: r.allocations.Actuated(p), Resources: r.resizer.resources, Holds: r.backOffs.holds(p, req.Observed, time.Now())}
	in.Failed = r.backOffs.failed.of(p, time.Now())
	var res Result
	resize := r.allocations.Resize(p.UID)
	in.ResizeAnew = resize.Superseded
	if time.Now().Before(resize.RetryAt) {
		in.ResizeHeld = resize.RetryAt
		res.retry(resize.RetryAt)
	}
	a := computePodActions(in)
	if !a.empty() {
		r.notePlan(in, &a)
		if err := r.act(ctx, req, &a, &res); err != nil {
			res.RetryAt = time.Time{} // an error is tried again sooner than a back-off ends
			return res, err
		}
	} else if err := r.lookAheadBesideInit(ctx, req, &a); err != nil {
		return res, err
	}
	if err := ctx.Err(); err != nil {
		return res, err
	}
	if !res.RetryAt.IsZero() { // else the worker takes the pass for a failed one, and tries it again
		for _, f := range r.backOffs.failed.of(p, time.Now()) {
			res.retry(f.Until)
		}
	}
	if err := r.garbage.collect(ctx, req.Observed, &res); err != nil && ctx.Err() == nil {
		// The pod is none the worse for it: its pass has done what it should.
		r.note(decision{pod: p, what: "garbage is left, to be tried again", err: err})
		res.retry(time.Now().Add(garbageRetry))
	}
	return res, ctx.Err()
}

// act does what the plan says, as far as garbage.
func (r *Runtime) act(ctx context.Context, req Request, a *podActions, res *Result) error {
	if a.Resize {
		r.allocations.Persist(ctx)
	}
	if a.KillPod {
		if a.CreateSandbox && a.Replaces != "" {
			r.events.Event(req.Pod, "", v1.EventTypeNormal, "SandboxChanged", "Pod sandbox changed, it will be killed and re-created.")
		}
		res.Touched = true
		var running []killAction
		for i := range req.Observed.Containers {
			if cs := &req.Observed.Containers[i]; cs.State == pod.StateRunning {
				running = append(running, killAction{ID: cs.ID, Name: cs.Name})
			}
		}
		r.expectKills(req.Pod, running, func(killAction) time.Duration { return graceOf(req.Pod) })
		if err := r.killer.restartPod(ctx, req.Pod, req.Observed, graceOf(req.Pod)); err != nil {
			return fmt.Errorf("kill pod: %w", err)
		}
	}
	if len(a.RestartAll) > 0 {
		return r.restartAll(ctx, req, a, res)
	}
	err := r.killContainers(ctx, req, a.Kill, res, func(k killAction) time.Duration { return computeGrace(req.Pod, k.Name, k.Reason) })
	if err != nil {
		return err
	}
	if a.Resize {
		res.ResizeError = r.resizer.resize(ctx, req, a, res) // what is to start is started all the same
		if err := ctx.Err(); err != nil {
			return err
		}
	}
	r.backOffs.waitFor(req.Pod, a.Wait, res)
	r.resizer.noteActuated(ctx, req.Pod, a)
	if f := a.SandboxFailed; f != nil {
		return fmt.Errorf("create pod sandbox: %w", f.Err)
	}
	return r.start(ctx, req, a, res)
}

func (r *Runtime) notePlan(in planInput, a *podActions) {
	why := in.String()
	if a.Why != "" {
		why = a.Why + " [" + why + "]"
	}
	r.note(decision{pod: in.Pod, what: a.String(), why: why})
}

// killContainers stops containers side by side.
func (r *Runtime) killContainers(ctx context.Context, req Request, kills []killAction, res *Result, grace func(killAction) time.Duration) error {
	r.expectKills(req.Pod, kills, grace)
	errs := make([]error, len(kills))
	var all sync.WaitGroup
	for i, k := range kills {
		res.Touched = true
		all.Go(func() {
			if err := r.killer.killContainer(ctx, req.Pod, find(req.Observed, k.ID), k.Message, grace(k)); err != nil {
				errs[i] = fmt.Errorf("kill container %q: %w", k.Name, err)
			}
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

// expectKills says when containers of a pod that goes on are killed, if they have not ended before.
func (r *Runtime) expectKills(p *v1.Pod, kills []killAction, grace func(killAction) time.Duration) {
	var next []journal.Next
	for _, k := range kills {
		last := max(grace(k), minGrace)
		next = append(next, journal.Next{
			Time: time.Now().Add(last), Container: k.Name, What: "it is killed, if it has not ended before", Rule: fmt.Sprintf("its grace period is %s", last),
		})
	}
	if len(next) > 0 {
		r.journal.Expect(subject(p), next...)
	}
}

// find returns the container that a plan over this observation names.
func find(s *pod.Status, id pod.ContainerID) *pod.ContainerStatus {
	i := slices.IndexFunc(s.Containers, func(cs pod.ContainerStatus) bool { return cs.ID == id })
	return &s.Containers[i]
}

// restartAll stops all containers of the pod, without preStop hooks and grace periods (KEP-5532),
// and removes those of the plan.
func (r *Runtime) restartAll(ctx context.Context, req Request, a *podActions, res *Result) error {
	var stop []killAction
	for i := range req.Observed.Containers {
		cs := &req.Observed.Containers[i]
		if cs.State == pod.StateRunning || cs.State == pod.StateUnknown {
			stop = append(stop, killAction{cs.ID, cs.Name, killOther, "Container " + cs.Name + " will be restarted with all containers of the pod"})
		}
	}
	if err := r.killContainers(ctx, req, stop, res, func(killAction) time.Duration { return 0 }); err != nil {
		return err
	}
	r.noteEnds(ctx, req, stop)
	for _, k := range a.RestartAll {
		res.Touched = true
		if err := r.removeIncarnation(ctx, req, find(req.Observed, k.ID)); err != nil {
			return err
		}
		res.failed(k.Name, lifecycle.StartError{Reason: lifecycle.RestartingAllContainers})
	}
	return nil
}

// noteEnds takes note of how containers ended that were stopped. What the runtime does not tell is
// left out: the pod goes on without it.
func (r *Runtime) noteEnds(ctx context.Context, req Request, stopped []killAction) {
	if req.Ended == nil {
		return
	}
	for _, k := range stopped {
		if cs, err := r.killer.cri.ReadContainer(ctx, k.ID); err == nil && cs.State == pod.StateExited {
			req.Ended(ctx, &cs)
		}
	}
}

// removeIncarnation removes an incarnation of a container that is to run anew; the newest must come
// first. One log stays, so that its restarts go on being counted from there, and if it crashed its
// back-off is remembered.
func (r *Runtime) removeIncarnation(ctx context.Context, req Request, cs *pod.ContainerStatus) error {
	if cs == req.Observed.FindContainer(cs.Name) {
		if cs.State == pod.StateExited && (cs.ExitCode != 0 || slices.Contains(lifecycle.RestartAllTriggers(req.Pod, req.Observed), cs.Name)) {
			r.backOffs.removed(req.Pod, cs)
		}
		if err := saveRestartCount(cs); err != nil {
			return err
		}
	}
	return r.remover.removeContainer(ctx, req.Observed, cs, KeepLogs)
}

// start makes the sandbox if the plan wants one and starts the plan's containers. The sandbox, the
// mounts and the images of those containers are got side by side, and the images of the containers
// after them beside all of it.
func (r *Runtime) start(ctx context.Context, req Request, a *podActions, res *Result) error {
	p, starts := req.Pod, a.Start
	if len(starts) == 0 && !a.CreateSandbox {
		return nil
	}
	attempt := a.Attempt
	if !a.CreateSandbox {
		attempt = req.Observed.Sandboxes[0].Attempt
	}
	handler, err := r.sandboxes.handler(ctx, req, a)
	if err != nil {
		return err
	}
	cfg, err := r.sandboxes.config(ctx, req, a, attempt, handler) // shared with the pulls from here on, and not changed any more
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	volumes := begin(func() (map[string]crispec.Volume, error) { return req.Volumes(ctx) })
	pulls := make([]func() (pulled, error), len(starts))
	for i, s := range starts {
		c := findSpec(p, s.Name)
		pulls[i] = begin(func() (pulled, error) { return r.images.pull(ctx, p, c, cfg, handler) })
	}
	r.images.lookAhead(req, a, cfg, handler)
	defer func() {
		// A pass leaves nothing running behind: what is not waited for below has been cancelled.
		cancel()
		_, _ = volumes()
		for _, wait := range pulls {
			_, _ = wait()
		}
	}()

	sb := sandbox{id: a.SandboxID, config: cfg, handler: handler, ips: req.Observed.IPs}
	if a.CreateSandbox {
		if err := r.purgeInit(ctx, req, a); err != nil {
			return err
		}
		res.Touched = true
		if sb, err = r.sandboxes.create(ctx, p, cfg, handler); err != nil {
			return err
		}
	}
	mounted, err := volumes()
	if err != nil {
		return err
	}
	list := make([]*start, len(starts))
	for i, s := range starts {
		list[i] = &start{req: req, container: findSpec(p, s.Name), sandbox: sb, volumes: mounted, images: pulls[i]}
	}
	return r.startContainers(ctx, list, res)
}

// startContainers starts containers one after the other.
func (r *Runtime) startContainers(ctx context.Context, starts []*start, res *Result) error {
	for _, s := range starts {
		if err := ctx.Err(); err != nil {
			return err
		}
		name := s.container.Name
		if e := r.starter.startContainer(ctx, s); e != nil {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			res.failed(name, *e)
			r.metrics.startFailed(s.req.Pod, name, e.Reason)
			res.Touched = res.Touched || s.created
			if isPlainInit(s.req.Pod, name) {
				return nil // nothing may start before it
			}
			continue
		}
		res.Touched = true
		res.Started = append(res.Started, name)
	}
	return nil
}

// lookAheadBesideInit has images fetched in a pass that starts nothing: an earlier agent may have
// begun a fetch that has ended with it.
func (r *Runtime) lookAheadBesideInit(ctx context.Context, req Request, a *podActions) error {
	if len(computeAhead(req.Pod, req.Observed, a)) == 0 || len(req.Observed.Sandboxes) == 0 {
		return nil
	}
	handler := req.Observed.Sandboxes[0].RuntimeHandler
	cfg, err := r.sandboxes.config(ctx, req, a, req.Observed.Sandboxes[0].Attempt, handler)
	if err != nil {
		return err
	}
	r.images.lookAhead(req, a, cfg, handler)
	return nil
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
		if err := r.removeIncarnation(ctx, req, cs); err != nil {
			return fmt.Errorf("init container of the old sandbox: %w", err)
		}
	}
	return nil
}

// begin runs f beside the caller; the returned function waits for its result and may be called
// again.
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
