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

// No pod can refuse to end. These are the ways in which a runtime fails to end what runs, again and
// again, and what ends it then. "Forced" is by the means of force, one after the other.
//
//   - StopContainer fails as the image's stop signal is none: SIGTERM by the task service, the rest of
//     the grace period, then forced. Without such a service it is forced at once.
//   - StopContainer fails for another reason: it is asked again until the grace period is over; forced.
//   - StopContainer does not answer: forced, patience after the end of the grace period.
//   - A container is in unknown state, as when its shim is dead: like any other, with minGrace.
//   - StopContainer succeeds, but something runs on, as of a container that the runtime has forgotten
//     (NotFound), or outside of its process namespace: KillPod kills what is left in the pod's cgroup.
//   - StopPodSandbox fails: the pod's network cannot be taken down (CNI DEL), or its namespace is gone.
//     KillPod kills what is left in the pod's cgroup. The pod has ended, its sandbox has not gone.
//   - The runtime is down: tried again when it is back. An agent that is to leave nothing behind kills
//     by the cgroup.
//   - A process in state D waits for a device or a file server: nothing ends it before that has
//     answered. The error names it, by number and command, at each try.
const (
	// askAgain is how long after a StopContainer that failed the runtime is asked again.
	askAgain = 5 * time.Second
	// patience is how long after the grace period the runtime has to answer that a container has
	// ended.
	patience = 10 * time.Second
	// forceLimit is how long each means of force has.
	forceLimit = 10 * time.Second
)

// end lets a container end within grace, and forces it when the runtime cannot. It returns when
// nothing of the container runs; the error says why something does.
func (k *killer) end(ctx context.Context, s *stopping, grace time.Duration) error {
	deadline := time.Now().Add(grace)
	for noted := ""; ; {
		err := k.askToStop(ctx, s, ceilSeconds(time.Until(deadline)))
		if err == nil || ctx.Err() != nil || errors.Is(err, cri.ErrUnavailable) {
			return err
		}
		if errors.Is(err, cri.ErrStopSignal) {
			k.terminate(ctx, s, deadline, err)
			return k.force(ctx, s, err)
		}
		rest := time.Until(deadline)
		if rest > 0 && s.pod != nil && err.Error() != noted {
			noted = err.Error()
			why := fmt.Sprintf("asked again until the grace period is over, in %s", ceilSeconds(rest))
			k.note(decision{pod: s.pod, container: s.container.Name, what: "container not stopped", why: why, err: err})
		}
		if err := sleep(ctx, min(askAgain, rest)); err != nil {
			return err
		}
		if rest <= askAgain {
			return k.force(ctx, s, err)
		}
	}
}

// askToStop is StopContainer with a bound on the time that the runtime takes besides the grace
// period.
func (k *killer) askToStop(ctx context.Context, s *stopping, grace time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, grace+patience)
	defer cancel()
	return k.cri.StopContainer(ctx, s.container.ID, grace)
}

// terminate sends SIGTERM to a container whose own stop signal is none, and waits for its end, at
// most until the deadline. What comes of it does not matter: what still runs is forced.
func (k *killer) terminate(ctx context.Context, s *stopping, deadline time.Time, why error) {
	if s.pod != nil {
		k.events.Event(s.pod, s.container.Name, v1.EventTypeWarning, "InvalidStopSignal", fmt.Sprintf(
			"The stop signal of the image (STOPSIGNAL) is none: %s. SIGTERM is sent instead, and SIGKILL after %s; "+
				"name a signal in the image, such as SIGTERM", cri.Message(why), ceilSeconds(time.Until(deadline))))
	}
	ctx, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	if err := k.cri.EndTask(ctx, s.container.ID, unix.SIGTERM); err != nil {
		k.log.Debug("SIGTERM not sent, or container not ended on it",
			"container", s.container.Name, "id", s.container.ID, "error", err)
	}
}

// force ends a container whose grace period is over, by each means until one has.
func (k *killer) force(ctx context.Context, s *stopping, why error) error {
	id := s.container.ID
	errs := []error{why}
	for _, means := range []struct {
		name string
		kill func(context.Context) error
	}{
		// It sends SIGKILL, whatever the image's stop signal is.
		{"StopContainer without grace period", func(ctx context.Context) error { return k.cri.StopContainer(ctx, id, 0) }},
		{"the runtime's task service", func(ctx context.Context) error { return k.cri.EndTask(ctx, id, unix.SIGKILL) }},
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
			k.note(decision{
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

// forceBy kills a container and waits until the runtime shows that it has ended, for forceLimit at
// most.
func (k *killer) forceBy(ctx context.Context, id pod.ContainerID, kill func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, forceLimit)
	defer cancel()
	if err := kill(ctx); err != nil {
		return err
	}
	if state, err := k.cri.ContainerState(ctx, id); err == nil && state == pod.StateExited || awaitEnd(ctx, k.cri, id) {
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
