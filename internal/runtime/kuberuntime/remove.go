package kuberuntime

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth/internal/pod"
	"berth/internal/runtime/cri"
)

// LogFate determines whether the log of a removed container is removed.
type LogFate int

// The values of LogFate.
const (
	WithLogs LogFate = iota // the log is removed
	KeepLogs                // the log is retained: it preserves the restart count
)

// remover removes containers and sandboxes from the runtime, with their files on disk.
type remover struct {
	cri      *cri.Client
	killer   *killer
	hooks    *hookRunner
	messages *messages
	files    podFiles
	logs     *podLogs
}

func (r *remover) removeContainers(ctx context.Context, observed *pod.Status, fate LogFate) error {
	for i := range observed.Containers {
		cs := &observed.Containers[i]
		if fate == KeepLogs && cs == observed.FindContainer(cs.Name) {
			if err := saveRestartCount(cs); err != nil {
				return err
			}
		}
		if err := r.removeContainer(ctx, observed, cs, fate); err != nil {
			return err
		}
	}
	return nil
}

// removeContainer removes a container that is not running, with its termination message, its link
// and, with WithLogs, its logs. A container in unknown state is stopped first. The log of a
// container whose start was interrupted is always removed: containerd creates it before the
// process, and it must not count as a restart.
func (r *remover) removeContainer(ctx context.Context, s *pod.Status, cs *pod.ContainerStatus, fate LogFate) error {
	fail := func(err error) error { return fmt.Errorf("remove container %q: %w", cs.Name, err) }
	if (fate == WithLogs || cs.CutOff) && cs.LogPath != "" { // first: without the container they could not be found
		if err := ignoreLink(removeLog(cs.LogPath)); err != nil {
			return fail(err)
		}
	}
	if cs.State == pod.StateUnknown {
		p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{UID: s.UID, Namespace: s.Namespace, Name: s.Name}}
		r.killer.report.events.Event(p, cs.Name, v1.EventTypeNormal, "Killing", "Container is in unknown state, try killing it before removal")
		if err := r.killer.stopOrKill(ctx, &stopping{uid: s.UID, container: cs}, minGrace); err != nil {
			return fail(err)
		}
	}
	if err := r.cri.RemoveContainer(ctx, cs.ID); err != nil {
		return fail(err)
	}
	r.forget(cs.ID)
	if err := ignoreLink(r.files.removeTerminationLog(cs.TerminationLog)); err != nil {
		return fail(err)
	}
	if err := r.logs.unlink(s, cs); err != nil {
		return fail(err)
	}
	return nil
}

// forget drops the in-memory state of a removed container.
func (r *remover) forget(id pod.ContainerID) {
	r.messages.forget(id)
	r.hooks.forget(id)
}

// ignoreLink treats a file behind a symbolic link as missing: a container has replaced a directory
// of the agent with the link, and its target is not the agent's. The link is removed with the pod's
// directories.
func ignoreLink(err error) error {
	if errors.Is(err, unix.ELOOP) {
		return nil
	}
	return err
}

func (r *remover) removeSandbox(ctx context.Context, id pod.SandboxID) error {
	if err := r.cri.StopPodSandbox(ctx, id); err != nil {
		return fmt.Errorf("stop sandbox %s: %w", id, err)
	}
	if err := r.cri.RemovePodSandbox(ctx, id); err != nil {
		return fmt.Errorf("remove sandbox %s: %w", id, err)
	}
	return nil
}

// removeUnstarted removes a container that was created and never started, as by an interrupted
// pass, so that its name is free for a new one. If the runtime has lost its task (taskLost), the
// container remains with its name, and garbage collection retries. It is an error if the container
// was started since it was observed.
func (r *remover) removeUnstarted(ctx context.Context, observed *pod.Status, id pod.ContainerID) (taskLost bool, err error) {
	// If an agent is killed during the start, containerd takes some seconds to notice.
	limit := time.Now().Add(startingLimit)
	for backoff := reservedBackoff; ; {
		cs, err := r.cri.ReadContainer(ctx, id)
		switch {
		case errors.Is(err, cri.ErrNotFound):
			return false, nil
		case err != nil:
			return false, fmt.Errorf("read container %s, which was not started: %w", id, err)
		case cs.State != pod.StateCreated:
			return false, fmt.Errorf("container %q is %s, and was not when it was observed", cs.Name, cs.State)
		}
		err = r.removeContainer(ctx, observed, &cs, KeepLogs)
		switch {
		case err == nil:
			return false, nil
		case errors.Is(err, cri.ErrTaskLeft):
			return true, nil
		case !errors.Is(err, cri.ErrStarting) || time.Now().After(limit):
			return false, err
		}
		if err := sleep(ctx, backoff.Step()); err != nil {
			return false, err
		}
	}
}

// startingLimit is how long a cancelled start may block the removal of its container.
const startingLimit = 10 * time.Second
