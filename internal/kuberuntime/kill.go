package kuberuntime

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"

	"berth/internal/cri"
	"berth/internal/lifecycle"
	"berth/internal/pod"
)

// minGrace is the least time that a container is given between the stop signal and the kill.
const minGrace = 2 * time.Second

// killReason is why a container is killed, as far as its grace period depends on it.
type killReason int

const (
	killOther killReason = iota
	killLiveness
	killStartup
)

// computeGrace returns the grace period of a container of a pod that goes on: that of the pod's deletion if it was asked for, else that of
// the probe that failed, else the pod's own.
func computeGrace(p *v1.Pod, container string, why killReason) time.Duration {
	var probe *v1.Probe
	if c := findSpec(p, container); c != nil {
		switch why {
		case killLiveness:
			probe = c.LivenessProbe
		case killStartup:
			probe = c.StartupProbe
		}
	}
	seconds := p.DeletionGracePeriodSeconds
	if seconds == nil && probe != nil {
		seconds = probe.TerminationGracePeriodSeconds
	}
	if seconds == nil {
		seconds = p.Spec.TerminationGracePeriodSeconds
	}
	if seconds == nil {
		return minGrace
	}
	return time.Duration(*seconds) * time.Second
}

// stopping is the end of one container.
type stopping struct {
	uid       pod.UID
	pod       *v1.Pod // nil for a pod that only the runtime knows
	container *pod.ContainerStatus
	message   string // why it is stopped; "" is the end of the pod
	grace     time.Duration
	// await, if not nil, waits for the containers that must end before this one is told to, at most until the deadline.
	await func(ctx context.Context, deadline time.Time)
}

// KillPod stops every container of the pod within grace and then its sandboxes. Containers stop side by side, but a sidecar
// waits for the regular containers and for the sidecars after it, as long as the grace period lasts; its preStop hook does not
// wait. p is nil for a pod that only the runtime knows. With a grace of 0, no preStop hook runs. Nothing of the pod is to be started
// any more, and nothing of it runs when the error is nil. Idempotent.
func (r *Runtime) KillPod(ctx context.Context, p *v1.Pod, observed *pod.Status, grace time.Duration) error {
	r.Images.Forget(observed.UID)
	if err := r.killAll(ctx, p, observed, grace); err != nil {
		return err
	}
	stopped := r.stopSandboxes(ctx, p, observed)
	if ctx.Err() != nil || errors.Is(stopped, cri.ErrUnavailable) {
		return errors.Join(stopped, ctx.Err())
	}
	if err := r.Cgroups.KillPod(ctx, observed.UID); err != nil {
		return errors.Join(stopped, err)
	}
	if stopped != nil {
		// Differs from the kubelet, whose pod goes on to end for as long as the network cannot be taken
		// down: no process of it is left, which is what its end means to others. Its addresses stay
		// taken until its removal, which stops the sandbox again, until the runtime does.
		r.Log.Warn("pod has ended, but its sandbox has not; its removal tries again",
			"pod", observed.Namespace+"/"+observed.Name, "uid", observed.UID, "error", stopped)
	}
	return nil
}

// killPod is KillPod for a pod that goes on, with another sandbox.
func (r *Runtime) killPod(ctx context.Context, p *v1.Pod, observed *pod.Status, grace time.Duration) error {
	if err := r.killAll(ctx, p, observed, grace); err != nil {
		return err
	}
	return r.stopSandboxes(ctx, p, observed)
}

// killAll stops the containers of the pod.
func (r *Runtime) killAll(ctx context.Context, p *v1.Pod, observed *pod.Status, grace time.Duration) error {
	running := map[string][]*pod.ContainerStatus{}
	for i := range observed.Containers {
		if cs := &observed.Containers[i]; cs.State == pod.StateRunning || cs.State == pod.StateUnknown {
			running[cs.Name] = append(running[cs.Name], cs)
		}
	}
	ended := map[string]chan struct{}{}
	for name := range running {
		ended[name] = make(chan struct{})
	}
	errs := make(chan error, len(observed.Containers))
	var all sync.WaitGroup
	for name, list := range running {
		others := sidecarWaits(p, name)
		all.Go(func() {
			defer close(ended[name])
			var incarnations sync.WaitGroup
			for _, cs := range list {
				incarnations.Go(func() {
					errs <- r.stop(ctx, &stopping{
						uid: observed.UID, pod: p, container: cs, grace: grace,
						await: func(ctx context.Context, deadline time.Time) { waitForOthers(ctx, others, ended, deadline) },
					})
				})
			}
			incarnations.Wait()
		})
	}
	all.Wait()
	close(errs)
	var err error
	for e := range errs {
		err = errors.Join(err, e)
	}
	return err
}

// stopSandboxes stops the sandboxes of the pod, with what still runs in them, and takes its network down.
func (r *Runtime) stopSandboxes(ctx context.Context, p *v1.Pod, observed *pod.Status) error {
	var errs []error
	for i := range observed.Sandboxes {
		sb := &observed.Sandboxes[i]
		began := time.Now()
		err := r.CRI.StopPodSandbox(ctx, sb.ID)
		if p != nil && (sb.Ready || err != nil) {
			r.note(p, "", "sandbox stopped", fmt.Sprintf("attempt %d", sb.Attempt), began, err)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("stop sandbox %s: %w", sb.ID, err))
		}
	}
	return errors.Join(errs...)
}

// sidecarWaits returns the containers that must have ended before the named sidecar is stopped: all regular ones and the sidecars after it.
func sidecarWaits(p *v1.Pod, name string) []string {
	if p == nil {
		return nil
	}
	var out []string
	found := false
	for i := range p.Spec.InitContainers {
		c := &p.Spec.InitContainers[i]
		if found && lifecycle.IsSidecar(c) {
			out = append(out, c.Name)
		}
		found = found || (c.Name == name && lifecycle.IsSidecar(c))
	}
	if !found {
		return nil
	}
	for i := range p.Spec.Containers {
		out = append(out, p.Spec.Containers[i].Name)
	}
	return out
}

func waitForOthers(ctx context.Context, names []string, ended map[string]chan struct{}, deadline time.Time) {
	timer := time.NewTimer(time.Until(deadline))
	defer timer.Stop()
	for _, n := range names {
		c, ok := ended[n]
		if !ok {
			continue
		}
		select {
		case <-c:
		case <-timer.C:
			return
		case <-ctx.Done():
			return
		}
	}
}

// killContainer stops one container of a pod that goes on; message is why.
func (r *Runtime) killContainer(ctx context.Context, p *v1.Pod, cs *pod.ContainerStatus, message string, grace time.Duration) error {
	if cs == nil {
		return nil
	}
	return r.stop(ctx, &stopping{uid: p.UID, pod: p, container: cs, message: message, grace: grace})
}

// stop ends a container: its preStop hook, the wait for others, the stop signal, and the kill at the
// end of the grace period. What comes before the signal is taken from the grace period in whole
// seconds; at least minGrace is left. A hook that is not over by then ends with its container.
func (r *Runtime) stop(ctx context.Context, s *stopping) error {
	cs := s.container
	if s.message == "" {
		s.message = "Stopping container " + cs.Name
	}
	if s.pod != nil {
		r.Recorder.Event(s.pod, cs.Name, v1.EventTypeNormal, "Killing", s.message)
	}
	left := minGrace
	if cs.State == pod.StateRunning { // what is in an unknown state runs no hook and needs no patience
		deadline := time.Now().Add(s.grace)
		if s.grace > 0 {
			if err := r.preStop(ctx, s, deadline); err != nil {
				return fmt.Errorf("stop container %q: preStop hook: %w", cs.Name, err)
			}
		}
		if s.await != nil {
			s.await(ctx, deadline)
		}
		left = max(ceilSeconds(time.Until(deadline)), minGrace)
	}
	began := time.Now()
	err := r.end(ctx, s, left)
	if err == nil {
		r.endPreStop(cs.ID)
	}
	if s.pod != nil {
		r.note(s.pod, cs.Name, "container stopped", fmt.Sprintf("grace %s", left), began, err)
	}
	if err != nil {
		return fmt.Errorf("stop container %q: %w", cs.Name, err)
	}
	return nil
}

// ceilSeconds rounds up, for the runtime counts in seconds, and a second that was only begun is not taken from a grace period.
func ceilSeconds(d time.Duration) time.Duration {
	return (d + time.Second - 1).Truncate(time.Second)
}
