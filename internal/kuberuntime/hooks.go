package kuberuntime

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"

	"berth/internal/action"
	"berth/internal/cri"
	"berth/internal/lifecycle"
	"berth/internal/pod"
)

// hookWatch is how often a container is looked at while a hook runs that would not notice its end: CRI has no call that waits for one.
const hookWatch = time.Second

// Why a hook is ended before its time.
var (
	errContainerEnded = errors.New("the container has ended")
	errAgentLeaves    = errors.New("the agent leaves")
)

// hookRun is the run of the preStop hook of one incarnation of a container. It belongs to no pass: a pass that ends early, for the
// grace period became shorter, leaves it running, and the next one waits for it.
type hookRun struct {
	end   context.CancelCauseFunc // ends it early
	ended chan struct{}           // closed when it has ended
}

// Run keeps what runs beside passes, the preStop hooks, until ctx is done; they have ended when it returns.
func (r *Runtime) Run(ctx context.Context) error {
	<-ctx.Done()
	r.mu.Lock()
	r.leaving = true
	for _, h := range r.preStops {
		h.end(errAgentLeaves)
	}
	r.mu.Unlock()
	r.hooks.Wait()
	return ctx.Err()
}

// preStop lets the container's preStop hook run, and waits for its end or the deadline, or for that of
// ctx, which is the error. A hook that is not over at the deadline goes on while its container is
// stopped. It runs at most once in the life of a container: also when its end is asked for again, with
// a shorter grace period, by the next try of a pass that failed, or by another agent. An agent that
// leaves takes a running hook with it.
func (r *Runtime) preStop(ctx context.Context, s *stopping, deadline time.Time) error {
	h, c, err := preStopOf(s.pod, s.container)
	if err != nil {
		r.Log.Warn("preStop hook left out", "container", s.container.Name, "id", s.container.ID, "error", err)
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

// endPreStop ends the preStop hook of a container that has ended, if one still runs, and waits for it.
func (r *Runtime) endPreStop(id pod.ContainerID) {
	r.mu.Lock()
	run := r.preStops[id]
	r.mu.Unlock()
	if run != nil {
		run.end(errContainerEnded)
		<-run.ended
	}
}

// beginPreStop returns the run of the hook, which it begins unless it runs or ran already; nil when an earlier agent began it, or this one
// leaves.
func (r *Runtime) beginPreStop(s *stopping, h *v1.LifecycleHandler, c *v1.Container) *hookRun {
	id := s.container.ID
	r.mu.Lock()
	run, known := r.preStops[id]
	r.mu.Unlock()
	if known {
		return run
	}
	// Nobody else asks for the same container meanwhile: passes of one pod do not overlap.
	if first := r.notePreStop(s); !first {
		if s.pod != nil {
			r.note(s.pod, c.Name, "preStop hook not repeated", "it was begun by an earlier agent", time.Time{}, nil)
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
	r.hooks.Go(func() {
		defer close(run.ended)
		defer end(nil)
		r.runPreStop(ctx, s, h, c)
	})
	return run
}

func (r *Runtime) runPreStop(ctx context.Context, s *stopping, h *v1.LifecycleHandler, c *v1.Container) {
	began := time.Now()
	if s.pod != nil {
		r.note(s.pod, c.Name, "wait for the preStop hook of "+c.Name+" to end", fmt.Sprintf("grace %s", s.grace), time.Time{}, nil)
	}
	err := r.runHook(ctx, s.pod, s.container.SandboxID, action.Target{ID: s.container.ID, Container: c}, h)
	if s.pod == nil || errors.Is(context.Cause(ctx), errAgentLeaves) {
		return
	}
	r.note(s.pod, c.Name, "preStop hook ended", "", began, err)
	if err != nil {
		r.Recorder.Event(s.pod, c.Name, v1.EventTypeWarning, "FailedPreStopHook", "PreStopHook failed")
	}
}

// preStopOf returns the preStop hook of a container and the spec that it refers to. Of a container without a pod's spec, both are what
// the container was made with.
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

// postStart runs the postStart hook of a container that was just started. A container whose hook fails is killed. The error says why the
// container does not run.
func (r *Runtime) postStart(ctx context.Context, s *start, id pod.ContainerID) *lifecycle.StartError {
	p, c := s.req.Pod, s.container
	if c.Lifecycle == nil || c.Lifecycle.PostStart == nil {
		return nil
	}
	target := action.Target{ID: id, Container: c}
	if len(s.ips) > 0 {
		target.PodIP = s.ips[0]
	}
	r.note(p, c.Name, "wait for the postStart hook of "+c.Name+" to end", "", time.Time{}, nil)
	began := time.Now()
	err := r.runHook(ctx, p, s.sandbox, target, c.Lifecycle.PostStart)
	if err == nil {
		r.note(p, c.Name, "postStart hook ended", "", began, nil)
		return nil
	}
	e := &lifecycle.StartError{Reason: lifecycle.PostStartHookError, Message: "PostStart hook failed: " + err.Error()}
	if ctx.Err() != nil {
		return e // the pass was ended; the next one ends the pod
	}
	r.note(p, c.Name, "postStart hook failed", "the container is killed", began, err)
	r.Recorder.Event(p, c.Name, v1.EventTypeWarning, "FailedPostStartHook", "PostStartHook failed")
	started := &pod.ContainerStatus{ID: id, SandboxID: s.sandbox, Name: c.Name, State: pod.StateRunning}
	if err := r.killContainer(ctx, p, started, "FailedPostStartHook", computeGrace(p, c.Name, killOther)); err != nil {
		e.Message += "; " + err.Error()
	}
	return e
}

// runHook runs a handler until it ends, ctx does, or the container does.
func (r *Runtime) runHook(ctx context.Context, p *v1.Pod, sandbox pod.SandboxID, t action.Target, h *v1.LifecycleHandler) error {
	if r.Actions == nil {
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
			if r.awaitEnd(watched, t.ID) {
				end(errContainerEnded)
			}
		})
		defer watch.Wait()
		defer end(nil)
		ctx = watched
	}
	result := r.Actions.Hook(ctx, t, h)
	switch {
	case result.Outcome == action.Failure && ctx.Err() != nil:
		return fmt.Errorf("%w: %s", context.Cause(ctx), result.Output)
	case result.Outcome == action.Failure:
		return errors.New(result.Output)
	case result.Outcome == action.Warning && p != nil:
		r.Recorder.Event(p, t.Container.Name, v1.EventTypeWarning, "LifecycleHTTPFallback", result.Output)
	}
	return nil
}

// addressesOf returns the addresses under which the containers of a sandbox are reached.
func (r *Runtime) addressesOf(ctx context.Context, id pod.SandboxID) ([]string, error) {
	ips, err := r.sandboxIPs(ctx, id)
	if err != nil {
		return nil, fmt.Errorf("address of the pod: %w", err)
	}
	if len(ips) == 0 {
		return r.HostIPs(), nil // none of its own: it is in the host's network
	}
	return ips, nil
}

// awaitEnd returns true when the container has ended, and false when ctx is done first.
func (r *Runtime) awaitEnd(ctx context.Context, id pod.ContainerID) bool {
	tick := time.NewTicker(hookWatch)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return false
		case <-tick.C:
		}
		// An error is no answer: the hook goes on within its grace period.
		if state, err := r.CRI.ContainerState(ctx, id); err == nil && state == pod.StateExited {
			return true
		}
	}
}

// preStopFile is the file in a container's folder that names the incarnation whose preStop hook was begun last.
const preStopFile = "prestop"

// noteLimit is how long that file can be, in bytes; an id of a container is shorter.
const noteLimit = 4096

// notePreStop notes on disk that the container's hook begins, and returns false if that was noted already. Without the pod's folder
// nothing can be noted, and the hook runs.
func (r *Runtime) notePreStop(s *stopping) (first bool) {
	pod := r.podDir(s.uid)
	path := filepath.Join(pod, "containers", s.container.Name, preStopFile)
	known, err := r.files().ReadFile(path, noteLimit)
	if err == nil && string(known) == string(s.container.ID) {
		return false
	}
	if _, err := r.files().Lstat(pod); errors.Is(err, os.ErrNotExist) {
		return true
	}
	err = r.files().Ensure(filepath.Dir(path), 0o750, 0o750)
	if err == nil {
		err = r.files().Replace(path, 0o600, func(f *os.File) error {
			_, err := f.WriteString(string(s.container.ID))
			return err
		})
	}
	if err != nil {
		r.Log.Warn("preStop hook not noted: another agent would run it again", "container", s.container.Name, "error", err)
	}
	return true
}
