package kuberuntime

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"

	"berth/internal/pod"
	"berth/internal/runtime/action"
	"berth/internal/runtime/cri"
)

// hookWatch is the interval at which a container is inspected while a hook runs that would not
// notice its exit: CRI has no call that waits for it.
const hookWatch = time.Second

// Causes of a hook's cancellation.
var (
	errContainerExited = errors.New("the container has ended")
	errAgentStops      = errors.New("the agent leaves")
)

// hookRunner runs lifecycle hooks. PreStop hooks outlive passes.
type hookRunner struct {
	report  reporter
	actions *action.Actions
	cri     *cri.Client
	hostIPs func() []string
	files   podFiles

	mu       sync.Mutex
	preStops map[pod.ContainerID]*hookRun // guarded by mu
	stopping bool                         // guarded by mu; the agent is stopping: no hook starts

	running sync.WaitGroup // preStop hooks
}

func newHookRunner(cfg Config, files podFiles) *hookRunner {
	return &hookRunner{
		report: reporter{cfg.Recorder, cfg.Journal, cfg.Log}, actions: cfg.Actions, cri: cfg.CRI, hostIPs: cfg.HostIPs,
		files: files, preStops: map[pod.ContainerID]*hookRun{},
	}
}

// hookRun is the run of the preStop hook of one container incarnation. It belongs to no pass: it
// continues when a pass is cancelled because the grace period became shorter, and the next pass
// waits for it.
type hookRun struct {
	cancel context.CancelCauseFunc // cancels it
	done   chan struct{}           // closed when the hook has completed
}

// run runs preStop hooks until ctx is done, and returns when all have terminated.
func (r *hookRunner) run(ctx context.Context) error {
	<-ctx.Done()
	r.mu.Lock()
	r.stopping = true
	for _, h := range r.preStops {
		h.cancel(errAgentStops)
	}
	r.mu.Unlock()
	r.running.Wait()
	return ctx.Err()
}

// preStop runs the container's preStop hook, and waits for its completion, the deadline, or ctx,
// whose error it returns. A hook that exceeds the deadline continues while its container is
// stopped. It runs at most once per container: also if termination is requested again with a
// shorter grace period, by a retried pass, or by a restarted agent. An agent that stops cancels a
// running hook.
func (r *hookRunner) preStop(ctx context.Context, s *stopping, deadline time.Time) error {
	h, c, err := preStopOf(s.pod, s.container)
	if err != nil {
		r.report.log.Warn("preStop hook left out", "container", s.container.Name, "id", s.container.ID, "error", err)
		return nil
	}
	if h == nil {
		return nil
	}
	run := r.beginPreStop(s, h, c)
	if run == nil {
		return ctx.Err()
	}
	timer := time.NewTimer(time.Until(deadline))
	defer timer.Stop()
	select {
	case <-run.done:
	case <-timer.C:
	case <-ctx.Done():
		return ctx.Err()
	}
	return nil
}

// cancelPreStop cancels the preStop hook of a container that has exited, if it is still running,
// and waits for it.
func (r *hookRunner) cancelPreStop(id pod.ContainerID) {
	r.mu.Lock()
	run := r.preStops[id]
	r.mu.Unlock()
	if run != nil {
		run.cancel(errContainerExited)
		<-run.done
	}
}

// forget drops the run of a removed container.
func (r *hookRunner) forget(id pod.ContainerID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.preStops, id)
}

// beginPreStop returns the run of the hook, and starts it unless it was started already; nil if an
// earlier agent started it, or this one is stopping.
func (r *hookRunner) beginPreStop(s *stopping, h *v1.LifecycleHandler, c *v1.Container) *hookRun {
	id := s.container.ID
	r.mu.Lock()
	run, known := r.preStops[id]
	r.mu.Unlock()
	if known {
		return run
	}
	// No race with another caller for the same container: passes of one pod do not overlap.
	first, err := r.files.recordPreStop(s.uid, s.container)
	if err != nil {
		r.report.log.Warn("preStop hook not noted: another agent would run it again", "container", c.Name, "error", err)
	}
	if !first {
		if s.pod != nil {
			r.report.record(decision{
				pod: s.pod, container: c.Name, what: "preStop hook not repeated", why: "it was begun by an earlier agent",
			})
		}
		return nil
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	run = &hookRun{cancel: cancel, done: make(chan struct{})}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.stopping {
		cancel(nil)
		return nil
	}
	r.preStops[id] = run
	r.running.Go(func() {
		defer close(run.done)
		defer cancel(nil)
		r.runPreStop(ctx, s, h, c)
	})
	return run
}

func (r *hookRunner) runPreStop(ctx context.Context, s *stopping, h *v1.LifecycleHandler, c *v1.Container) {
	began := time.Now()
	if s.pod != nil {
		r.report.record(decision{
			pod: s.pod, container: c.Name, what: "wait for the preStop hook of " + c.Name + " to end",
			why: fmt.Sprintf("grace %s", s.grace),
		})
	}
	err := r.runHook(ctx, s.pod, s.container.SandboxID, action.Target{ID: s.container.ID, Container: c}, h)
	if s.pod == nil {
		return
	}
	if errors.Is(context.Cause(ctx), errAgentStops) {
		r.report.record(decision{pod: s.pod, container: c.Name, what: "preStop hook broken off", why: "the agent ends; the hook is not run again", began: began})
		return
	}
	r.report.record(decision{pod: s.pod, container: c.Name, what: "preStop hook ended", began: began, err: err})
	if err != nil {
		r.report.events.Event(s.pod, c.Name, v1.EventTypeWarning, "FailedPreStopHook", "PreStopHook failed")
	}
}

// preStopOf returns the container's preStop hook and the spec that it refers to. Without a pod
// spec, both are read from the container.
func preStopOf(p *v1.Pod, cs *pod.ContainerStatus) (*v1.LifecycleHandler, *v1.Container, error) {
	if p != nil {
		if c := findSpec(p, cs.Name); c != nil {
			if c.Lifecycle == nil {
				return nil, nil, nil
			}
			return c.Lifecycle.PreStop, c, nil
		}
	}
	h, err := cri.PreStopHandler(cs)
	if h == nil || err != nil {
		return nil, nil, err
	}
	ports, err := cri.Ports(cs)
	return h, &v1.Container{Name: cs.Name, Ports: ports}, err
}

// runHook runs a handler until it completes, ctx is done, or the container exits.
func (r *hookRunner) runHook(ctx context.Context, p *v1.Pod, sandbox pod.SandboxID, t action.Target, h *v1.LifecycleHandler) error {
	if h.HTTPGet != nil && h.HTTPGet.Host == "" && t.PodIP == "" {
		ips, err := r.addressesOf(ctx, sandbox)
		if err != nil {
			return err
		}
		if len(ips) > 0 {
			t.PodIP = ips[0]
		}
	}
	if h.Exec == nil { // an exec terminates with its container
		watchedCtx, cancel := context.WithCancelCause(ctx)
		var watch sync.WaitGroup
		watch.Go(func() {
			if awaitExit(watchedCtx, r.cri, t.ID) {
				cancel(errContainerExited)
			}
		})
		defer watch.Wait()
		defer cancel(nil)
		ctx = watchedCtx
	}
	result := r.actions.Hook(ctx, t, h)
	switch {
	case result.Outcome == action.Failure && ctx.Err() != nil:
		return fmt.Errorf("%w: %s", context.Cause(ctx), result.Output)
	case result.Outcome == action.Failure:
		return errors.New(result.Output)
	case result.Outcome == action.Warning && p != nil:
		r.report.events.Event(p, t.Container.Name, v1.EventTypeWarning, "LifecycleHTTPFallback", result.Output)
	}
	return nil
}

// addressesOf returns the addresses of a sandbox's containers.
func (r *hookRunner) addressesOf(ctx context.Context, id pod.SandboxID) ([]string, error) {
	ips, err := sandboxIPs(ctx, r.cri, id)
	if err != nil {
		return nil, fmt.Errorf("address of the pod: %w", err)
	}
	if len(ips) == 0 {
		return r.hostIPs(), nil // a sandbox without an address is in the host network
	}
	return ips, nil
}

// awaitExit returns true when the container has exited, and false if ctx is done first.
func awaitExit(ctx context.Context, client *cri.Client, id pod.ContainerID) bool {
	tick := time.NewTicker(hookWatch)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return false
		case <-tick.C:
		}
		// Errors are ignored: the hook continues within its grace period.
		if state, err := client.ContainerState(ctx, id); err == nil && state == pod.StateExited {
			return true
		}
	}
}
