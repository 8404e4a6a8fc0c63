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

// hookWatch is how often a container is inspected while a hook runs that would not notice its end:
// CRI has no call that waits for one.
const hookWatch = time.Second

// Why a hook is ended before its time.
var (
	errContainerEnded = errors.New("the container has ended")
	errAgentLeaves    = errors.New("the agent leaves")
)

// hookRunner runs lifecycle hooks. PreStop hooks run beside passes.
type hookRunner struct {
	reporter
	actions *action.Actions // nil: every hook fails
	cri     *cri.Client
	hostIPs func() []string
	files   podFiles

	mu       sync.Mutex
	preStops map[pod.ContainerID]*hookRun // guarded by mu
	leaving  bool                         // guarded by mu; run ended: no hook begins any more

	running sync.WaitGroup // preStop hooks
}

func newHookRunner(cfg Config, files podFiles) *hookRunner {
	return &hookRunner{
		reporter: reporter{cfg.Recorder, cfg.Journal, cfg.Log}, actions: cfg.Actions, cri: cfg.CRI, hostIPs: cfg.HostIPs,
		files: files, preStops: map[pod.ContainerID]*hookRun{},
	}
}

// hookRun is the run of the preStop hook of one incarnation of a container. It belongs to no pass:
// a pass that ends early, for the grace period became shorter, leaves it running, and the next one
// waits for it.
type hookRun struct {
	end   context.CancelCauseFunc // ends it early
	ended chan struct{}           // closed when it has ended
}

// run keeps what runs beside passes, the preStop hooks, until ctx is done; they have ended when it
// returns.
func (r *hookRunner) run(ctx context.Context) error {
	<-ctx.Done()
	r.mu.Lock()
	r.leaving = true
	for _, h := range r.preStops {
		h.end(errAgentLeaves)
	}
	r.mu.Unlock()
	r.running.Wait()
	return ctx.Err()
}

// preStop lets the container's preStop hook run, and waits for its end or the deadline, or for that
// of ctx, which is the error. A hook that is not over at the deadline goes on while its container
// is stopped. It runs at most once in the life of a container: also when its end is asked for
// again, with a shorter grace period, by the next try of a pass that failed, or by another agent.
// An agent that leaves takes a running hook with it.
func (r *hookRunner) preStop(ctx context.Context, s *stopping, deadline time.Time) error {
	h, c, err := preStopOf(s.pod, s.container)
	if err != nil {
		r.log.Warn("preStop hook left out", "container", s.container.Name, "id", s.container.ID, "error", err)
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
	case <-run.ended:
	case <-timer.C:
	case <-ctx.Done():
		return ctx.Err()
	}
	return nil
}

// endPreStop ends the preStop hook of a container that has ended, if one still runs, and waits for
// it.
func (r *hookRunner) endPreStop(id pod.ContainerID) {
	r.mu.Lock()
	run := r.preStops[id]
	r.mu.Unlock()
	if run != nil {
		run.end(errContainerEnded)
		<-run.ended
	}
}

// forget drops the run of a container that is removed.
func (r *hookRunner) forget(id pod.ContainerID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.preStops, id)
}

// beginPreStop returns the run of the hook, which it begins unless it runs or ran already; nil when
// an earlier agent began it, or this one leaves.
func (r *hookRunner) beginPreStop(s *stopping, h *v1.LifecycleHandler, c *v1.Container) *hookRun {
	id := s.container.ID
	r.mu.Lock()
	run, known := r.preStops[id]
	r.mu.Unlock()
	if known {
		return run
	}
	// Nobody else asks for the same container meanwhile: passes of one pod do not overlap.
	first, err := r.files.notePreStop(s.uid, s.container)
	if err != nil {
		r.log.Warn("preStop hook not noted: another agent would run it again", "container", c.Name, "error", err)
	}
	if !first {
		if s.pod != nil {
			r.note(decision{
				pod: s.pod, container: c.Name, what: "preStop hook not repeated", why: "it was begun by an earlier agent",
			})
		}
		return nil
	}
	ctx, end := context.WithCancelCause(context.Background())
	run = &hookRun{end: end, ended: make(chan struct{})}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.leaving {
		end(nil)
		return nil
	}
	r.preStops[id] = run
	r.running.Go(func() {
		defer close(run.ended)
		defer end(nil)
		r.runPreStop(ctx, s, h, c)
	})
	return run
}

func (r *hookRunner) runPreStop(ctx context.Context, s *stopping, h *v1.LifecycleHandler, c *v1.Container) {
	began := time.Now()
	if s.pod != nil {
		r.note(decision{
			pod: s.pod, container: c.Name, what: "wait for the preStop hook of " + c.Name + " to end",
			why: fmt.Sprintf("grace %s", s.grace),
		})
	}
	err := r.runHook(ctx, s.pod, s.container.SandboxID, action.Target{ID: s.container.ID, Container: c}, h)
	if s.pod == nil {
		return
	}
	if errors.Is(context.Cause(ctx), errAgentLeaves) {
		r.note(decision{pod: s.pod, container: c.Name, what: "preStop hook broken off", why: "the agent ends; the hook is not run again", began: began})
		return
	}
	r.note(decision{pod: s.pod, container: c.Name, what: "preStop hook ended", began: began, err: err})
	if err != nil {
		r.events.Event(s.pod, c.Name, v1.EventTypeWarning, "FailedPreStopHook", "PreStopHook failed")
	}
}

// preStopOf returns the preStop hook of a container and the spec that it refers to. Of a container
// without a pod's spec, both are what the container was made with.
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

// runHook runs a handler until it ends, ctx does, or the container does.
func (r *hookRunner) runHook(ctx context.Context, p *v1.Pod, sandbox pod.SandboxID, t action.Target, h *v1.LifecycleHandler) error {
	if r.actions == nil {
		return errors.New("lifecycle hooks are not carried out here")
	}
	if h.HTTPGet != nil && h.HTTPGet.Host == "" && t.PodIP == "" {
		ips, err := r.addressesOf(ctx, sandbox)
		if err != nil {
			return err
		}
		if len(ips) > 0 {
			t.PodIP = ips[0]
		}
	}
	if h.Exec == nil { // a command ends with its container
		watched, end := context.WithCancelCause(ctx)
		var watch sync.WaitGroup
		watch.Go(func() {
			if awaitEnd(watched, r.cri, t.ID) {
				end(errContainerEnded)
			}
		})
		defer watch.Wait()
		defer end(nil)
		ctx = watched
	}
	result := r.actions.Hook(ctx, t, h)
	switch {
	case result.Outcome == action.Failure && ctx.Err() != nil:
		return fmt.Errorf("%w: %s", context.Cause(ctx), result.Output)
	case result.Outcome == action.Failure:
		return errors.New(result.Output)
	case result.Outcome == action.Warning && p != nil:
		r.events.Event(p, t.Container.Name, v1.EventTypeWarning, "LifecycleHTTPFallback", result.Output)
	}
	return nil
}

// addressesOf returns the addresses under which the containers of a sandbox are reached.
func (r *hookRunner) addressesOf(ctx context.Context, id pod.SandboxID) ([]string, error) {
	ips, err := sandboxIPs(ctx, r.cri, id)
	if err != nil {
		return nil, fmt.Errorf("address of the pod: %w", err)
	}
	if len(ips) == 0 {
		return r.hostIPs(), nil // none of its own: it is in the host's network
	}
	return ips, nil
}

// awaitEnd returns true when the container has ended, and false when ctx is done first.
func awaitEnd(ctx context.Context, client *cri.Client, id pod.ContainerID) bool {
	tick := time.NewTicker(hookWatch)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return false
		case <-tick.C:
		}
		// An error is no answer: the hook goes on within its grace period.
		if state, err := client.ContainerState(ctx, id); err == nil && state == pod.StateExited {
			return true
		}
	}
}
