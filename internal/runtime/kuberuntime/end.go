package kuberuntime

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"berth/internal/pod"
	"berth/internal/runtime/cri"
)

// A pod cannot prevent its termination. These are the ways in which a runtime repeatedly fails to
// stop a container, and how the agent handles them. "Forced" means each kill method in turn.
//
//   - StopContainer fails because the image's stop signal is invalid: SIGTERM by the task service,
//     the rest of the grace period, then forced. Without such a service it is forced at once.
//   - StopContainer fails for another reason: retried until the end of the grace period, then
//     forced.
//   - StopContainer does not return: forced, patience after the end of the grace period.
//   - A container is in unknown state, as when its shim is dead: like any other, with minGrace.
//   - StopContainer succeeds, but a process is still running, as of a container that the runtime
//     lost (NotFound), or outside of its PID namespace: KillPod kills what remains in the pod's
//     cgroup.
//   - StopPodSandbox fails: CNI DEL fails, or the pod's network namespace does not exist any more.
//     KillPod kills what remains in the pod's cgroup. The pod is terminated, its sandbox remains.
//   - The runtime is unavailable: retried when it recovers. An agent that stops all pods kills by
//     cgroup.
//   - A process in state D waits for a device or a file server and cannot be killed until that
//     responds. The error of each try names its PID and command.
const (
	// stopRetry is the delay before a failed StopContainer is retried.
	stopRetry = 5 * time.Second
	// patience is how long after the grace period the runtime may take to report the container's
	// exit.
	patience = 10 * time.Second
	// forceLimit is the timeout of each kill method.
	forceLimit = 10 * time.Second
)

// stopOrKill stops a container within grace, and force-kills it if the runtime cannot. It returns
// when no process of the container is running; the error is the reason why one still is.
func (k *killer) stopOrKill(ctx context.Context, s *stopping, grace time.Duration) error {
	deadline := time.Now().Add(grace)
	for reported := ""; ; {
		err := k.stopContainer(ctx, s, ceilSeconds(time.Until(deadline)))
		if err == nil || ctx.Err() != nil || errors.Is(err, cri.ErrUnavailable) {
			return err
		}
		if errors.Is(err, cri.ErrStopSignal) {
			k.terminate(ctx, s, deadline, err)
			return k.force(ctx, s, err)
		}
		remaining := time.Until(deadline)
		if remaining > 0 && s.pod != nil && err.Error() != reported {
			reported = err.Error()
			why := fmt.Sprintf("asked again until the grace period is over, in %s", ceilSeconds(remaining))
			k.report.record(decision{pod: s.pod, container: s.container.Name, what: "container not stopped", why: why, err: err})
		}
		if err := sleep(ctx, min(stopRetry, remaining)); err != nil {
			return err
		}
		if remaining <= stopRetry {
			return k.force(ctx, s, err)
		}
	}
}

// stopContainer calls StopContainer with a timeout of the grace period plus patience.
func (k *killer) stopContainer(ctx context.Context, s *stopping, grace time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, grace+patience)
	defer cancel()
	return k.cri.StopContainer(ctx, s.container.ID, grace)
}

// terminate sends SIGTERM to a container with an invalid stop signal, and waits for its exit until
// the deadline. Its result is ignored: what is still running is forced.
func (k *killer) terminate(ctx context.Context, s *stopping, deadline time.Time, why error) {
	if s.pod != nil {
		k.report.events.Event(s.pod, s.container.Name, v1.EventTypeWarning, "InvalidStopSignal", fmt.Sprintf(
			"The stop signal of the image (STOPSIGNAL) is none: %s. SIGTERM is sent instead, and SIGKILL after %s; "+
				"name a signal in the image, such as SIGTERM", cri.Message(why), ceilSeconds(time.Until(deadline))))
	}
	ctx, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	if err := k.cri.Tasks.EndTask(ctx, s.container.ID, unix.SIGTERM); err != nil {
		k.report.log.Debug("SIGTERM not sent, or container not ended on it",
			"container", s.container.Name, "id", s.container.ID, "error", err)
	}
}

// force kills a container after its grace period, by each method until one succeeds.
func (k *killer) force(ctx context.Context, s *stopping, why error) error {
	id := s.container.ID
	errs := []error{why}
	for _, means := range []struct {
		name string
		kill func(context.Context) error
	}{
		// It sends SIGKILL, whatever the image's stop signal is.
		{"StopContainer without grace period", func(ctx context.Context) error { return k.cri.StopContainer(ctx, id, 0) }},
		{"the runtime's task service", func(ctx context.Context) error { return k.cri.Tasks.EndTask(ctx, id, unix.SIGKILL) }},
		{"its cgroup", func(ctx context.Context) error { return k.cgroups.KillContainer(ctx, s.uid, id) }},
	} {
		if err := ctx.Err(); err != nil {
			return err
		}
		began := time.Now()
		err := k.forceBy(ctx, id, means.kill)
		if s.pod != nil {
			what := "container killed by "
			if err != nil {
				what = "container not killed by "
			}
			k.report.record(decision{
				pod: s.pod, container: s.container.Name, what: what + means.name,
				why: "the runtime did not stop it: " + cri.Message(why), began: began, err: err,
			})
		}
		if err == nil {
			return nil
		}
		errs = append(errs, fmt.Errorf("kill by %s: %w", means.name, err))
	}
	return errors.Join(errs...)
}

// forceBy kills a container and waits until the runtime reports its exit, at most forceLimit.
func (k *killer) forceBy(ctx context.Context, id pod.ContainerID, kill func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, forceLimit)
	defer cancel()
	if err := kill(ctx); err != nil {
		return err
	}
	if state, err := k.cri.ContainerState(ctx, id); err == nil && state == pod.StateExited || awaitExit(ctx, k.cri, id) {
		return nil
	}
	return errors.New("killed, but the runtime shows it running")
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
