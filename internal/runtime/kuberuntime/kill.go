package kuberuntime

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"

	"berth/internal/pod"
	"berth/internal/pod/lifecycle"
	"berth/internal/runtime/cri"
)

// minGrace is the minimum time between a container's stop signal and its kill.
const minGrace = 2 * time.Second

// killReason is the reason of a kill, as far as the grace period depends on it.
type killReason int

const (
	killOther killReason = iota
	killLiveness
	killStartup
)

// computeGrace returns the grace period of a container of a running pod: that of the pod's deletion
// if requested, else that of the failed probe, else the pod's own.
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

// stopping is the termination of one container.
type stopping struct {
	uid       pod.UID
	pod       *v1.Pod // nil for a pod that only the runtime has
	container *pod.ContainerStatus
	message   string // why it is stopped; "" if the pod is terminating
	grace     time.Duration
	// await, if not nil, waits for the containers that must exit before this one gets its stop
	// signal, at most until the deadline.
	await func(ctx context.Context, deadline time.Time)
}

type killer struct {
	report  reporter
	cri     *cri.Client
	cgroups Cgroups
	hooks   *hookRunner
}

// killPod implements Runtime.KillPod.
func (k *killer) killPod(ctx context.Context, p *v1.Pod, observed *pod.Status, grace time.Duration) error {
	if err := k.killAll(ctx, p, observed, grace); err != nil {
		return err
	}
	stopped := k.stopSandboxes(ctx, p, observed)
	if ctx.Err() != nil || errors.Is(stopped, cri.ErrUnavailable) {
		return errors.Join(stopped, ctx.Err())
	}
	if err := k.cgroups.KillPod(ctx, observed.UID); err != nil {
		return errors.Join(stopped, err)
	}
	if stopped != nil {
		// Differs from the kubelet, whose pod keeps terminating while CNI DEL fails: no process of
		// the pod is running, so it counts as terminated. Its addresses stay allocated until its
		// removal, which retries StopPodSandbox until it succeeds.
		k.report.log.Warn("pod has ended, but its sandbox has not; its removal tries again",
			"pod", observed.Namespace+"/"+observed.Name, "uid", observed.UID, "error", stopped)
	}
	return nil
}

// restartPod stops a pod that gets a new sandbox.
func (k *killer) restartPod(ctx context.Context, p *v1.Pod, observed *pod.Status, grace time.Duration) error {
	if err := k.killAll(ctx, p, observed, grace); err != nil {
		return err
	}
	return k.stopSandboxes(ctx, p, observed)
}

func (k *killer) killAll(ctx context.Context, p *v1.Pod, observed *pod.Status, grace time.Duration) error {
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
					errs <- k.stop(ctx, &stopping{
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

// stopSandboxes stops the pod's sandboxes with the processes in them, and tears its network down.
func (k *killer) stopSandboxes(ctx context.Context, p *v1.Pod, observed *pod.Status) error {
	var errs []error
	for i := range observed.Sandboxes {
		sb := &observed.Sandboxes[i]
		began := time.Now()
		err := k.cri.StopPodSandbox(ctx, sb.ID)
		if p != nil && (sb.Ready || err != nil) {
			k.report.record(decision{pod: p, what: "sandbox stopped", failed: "sandbox not stopped", why: fmt.Sprintf("attempt %d", sb.Attempt), began: began, err: err})
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("stop sandbox %s: %w", sb.ID, err))
		}
	}
	return errors.Join(errs...)
}

// sidecarWaits returns the containers that must exit before the named sidecar is stopped: all
// regular ones and the sidecars after it.
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

// killContainer stops one container of a running pod; message is the reason.
func (k *killer) killContainer(ctx context.Context, p *v1.Pod, cs *pod.ContainerStatus, message string, grace time.Duration) error {
	if cs == nil {
		return nil
	}
	return k.stop(ctx, &stopping{uid: p.UID, pod: p, container: cs, message: message, grace: grace})
}

// stop terminates a container: its preStop hook, the wait for others, the stop signal, and the kill
// at the end of the grace period. What precedes the signal is subtracted from the grace period in
// whole seconds; at least minGrace remains. A hook that is still running then is cancelled after
// the container's exit.
func (k *killer) stop(ctx context.Context, s *stopping) error {
	cs := s.container
	if s.message == "" {
		s.message = "Stopping container " + cs.Name
	}
	if s.pod != nil {
		k.report.events.Event(s.pod, cs.Name, v1.EventTypeNormal, "Killing", s.message)
	}
	remaining := minGrace
	if cs.State == pod.StateRunning { // in unknown state: no hook and no grace
		deadline := time.Now().Add(s.grace)
		if s.grace > 0 {
			if err := k.hooks.preStop(ctx, s, deadline); err != nil {
				return fmt.Errorf("stop container %q: preStop hook: %w", cs.Name, err)
			}
		}
		if s.await != nil {
			s.await(ctx, deadline)
		}
		remaining = max(ceilSeconds(time.Until(deadline)), minGrace)
	}
	began := time.Now()
	err := k.stopOrKill(ctx, s, remaining)
	if err == nil {
		k.hooks.cancelPreStop(cs.ID)
	}
	if s.pod != nil {
		d := decision{
			pod: s.pod, container: cs.Name, what: "container stopped", failed: "container not stopped",
			why: fmt.Sprintf("grace %s", remaining), began: began, err: err,
		}
		if err != nil && ctx.Err() != nil {
			d.what, d.why, d.err = "restart the stop of the container", "a shorter grace period came, or the agent ends", nil
		}
		k.report.record(d)
	}
	if err != nil {
		return fmt.Errorf("stop container %q: %w", cs.Name, err)
	}
	return nil
}

// ceilSeconds rounds up: the runtime counts in seconds, and a partial second is not subtracted from
// a grace period.
func ceilSeconds(d time.Duration) time.Duration {
	return (d + time.Second - 1).Truncate(time.Second)
}
