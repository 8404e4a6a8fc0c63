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

// SyncPod brings the pod closer to its spec: it plans and executes the plan in order. Failures of
// single containers are in the result; an error terminates the pass.
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
		r.recordPlan(in, &a)
		if err := r.act(ctx, req, &a, &res); err != nil {
			res.RetryAt = time.Time{} // an error is retried sooner than a back-off expires
			return res, err
		}
	} else if err := r.prefetchDuringInit(ctx, req, &a); err != nil {
		return res, err
	}
	if err := ctx.Err(); err != nil {
		return res, err
	}
	if !res.RetryAt.IsZero() { // otherwise the worker takes the pass for failed, and retries it
		for _, f := range r.backOffs.failed.of(p, time.Now()) {
			res.retry(f.Until)
		}
	}
	if err := r.garbage.collect(ctx, req.Observed, &res); err != nil && ctx.Err() == nil {
		// The pass itself has succeeded: garbage does not affect the pod.
		r.report.record(decision{pod: p, what: "garbage is left, to be tried again", err: err})
		res.retry(time.Now().Add(garbageRetry))
	}
	return res, ctx.Err()
}

// act executes the plan, except garbage collection.
func (r *Runtime) act(ctx context.Context, req Request, a *podActions, res *Result) error {
	if a.Resize {
		r.allocations.Persist(ctx)
	}
	if a.KillPod {
		if a.CreateSandbox && a.Replaces != "" {
			r.report.events.Event(req.Pod, "", v1.EventTypeNormal, "SandboxChanged", "Pod sandbox changed, it will be killed and re-created.")
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
		res.ResizeError = r.resizer.resize(ctx, req, a, res) // starts are not affected by a failed resize
		if err := ctx.Err(); err != nil {
			return err
		}
	}
	r.backOffs.waitFor(req.Pod, a.Wait, res)
	r.resizer.recordActuated(ctx, req.Pod, a)
	if f := a.SandboxFailed; f != nil {
		return fmt.Errorf("create pod sandbox: %w", f.Err)
	}
	return r.start(ctx, req, a, res)
}

func (r *Runtime) recordPlan(in planInput, a *podActions) {
	why := in.String()
	if a.Why != "" {
		why = a.Why + " [" + why + "]"
	}
	r.report.record(decision{pod: in.Pod, what: a.String(), why: why})
}

// killContainers stops containers concurrently.
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

// expectKills records in the journal when containers of a running pod are killed unless they exit
// before.
func (r *Runtime) expectKills(p *v1.Pod, kills []killAction, grace func(killAction) time.Duration) {
	var next []journal.Next
	for _, k := range kills {
		last := max(grace(k), minGrace)
		next = append(next, journal.Next{
			Time: time.Now().Add(last), Container: k.Name, What: "it is killed, if it has not ended before", Rule: fmt.Sprintf("its grace period is %s", last),
		})
	}
	if len(next) > 0 {
		r.report.journal.Expect(subject(p), next...)
	}
}

// find returns the container with the ID, which must be in the observation.
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
	r.recordExits(ctx, req, stop)
	for _, k := range a.RestartAll {
		res.Touched = true
		if err := r.removeIncarnation(ctx, req, find(req.Observed, k.ID)); err != nil {
			return err
		}
		res.failed(k.Name, lifecycle.StartError{Reason: lifecycle.RestartingAllContainers})
	}
	return nil
}

// recordExits records the exits of stopped containers. Those that the runtime does not report are
// skipped.
func (r *Runtime) recordExits(ctx context.Context, req Request, stopped []killAction) {
	if req.Ended == nil {
		return
	}
	for _, k := range stopped {
		if cs, err := r.killer.cri.ReadContainer(ctx, k.ID); err == nil && cs.State == pod.StateExited {
			req.Ended(ctx, &cs)
		}
	}
}

// removeIncarnation removes an incarnation of a container that is to be restarted; the newest must
// come first. One log is retained to preserve the restart count; if it crashed, its back-off
// continues.
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

// start creates the sandbox if planned and starts the plan's containers. The sandbox, the mounts
// and the images are prepared concurrently, together with a prefetch of the images of later
// containers.
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
	cfg, err := r.sandboxes.config(ctx, req, a, attempt, handler) // shared with the pulls from here on, and not modified any more
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
	r.images.prefetch(req, a, cfg, handler)
	defer func() {
		// A pass leaves no goroutine behind: what is not awaited below has been cancelled.
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

// startContainers starts containers sequentially.
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

// prefetchDuringInit prefetches images in a pass that starts nothing: the prefetch of an earlier
// agent may have been interrupted.
func (r *Runtime) prefetchDuringInit(ctx context.Context, req Request, a *podActions) error {
	if len(computePrefetch(req.Pod, req.Observed, a)) == 0 || len(req.Observed.Sandboxes) == 0 {
		return nil
	}
	handler := req.Observed.Sandboxes[0].RuntimeHandler
	cfg, err := r.sandboxes.config(ctx, req, a, req.Observed.Sandboxes[0].Attempt, handler)
	if err != nil {
		return err
	}
	r.images.prefetch(req, a, cfg, handler)
	return nil
}

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

// begin runs f concurrently; the returned function waits for its result and may be called
// repeatedly.
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
