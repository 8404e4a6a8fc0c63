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

// LogFate says what becomes of the log of a container that is removed.
type LogFate int

// The values of LogFate.
const (
	WithLogs LogFate = iota // it goes too
	KeepLogs                // it stays: the next incarnation is counted by it
)

// remover removes containers and sandboxes from the runtime, with what belongs to them on disk.
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

// removeContainer removes a container that does not run, with its termination message, its link
// and, with WithLogs, its logs. One of which the runtime does not know whether it runs is stopped
// first. The log of one whose start was cut off goes in any case: containerd makes it before the
// process, and no next incarnation is to be counted by it.
func (r *remover) removeContainer(ctx context.Context, s *pod.Status, cs *pod.ContainerStatus, fate LogFate) error {
	fail := func(err error) error { return fmt.Errorf("remove container %q: %w", cs.Name, err) }
	if (fate == WithLogs || cs.CutOff) && cs.LogPath != "" { // first: without the container nobody would know of them
		if err := ignoreLink(removeLog(cs.LogPath)); err != nil {
			return fail(err)
		}
	}
	if cs.State == pod.StateUnknown {
		p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{UID: s.UID, Namespace: s.Namespace, Name: s.Name}}
		r.killer.events.Event(p, cs.Name, v1.EventTypeNormal, "Killing", "Container is in unknown state, try killing it before removal")
		if err := r.killer.end(ctx, &stopping{uid: s.UID, container: cs}, minGrace); err != nil {
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

// forget drops what is in memory of a container that is removed.
func (r *remover) forget(id pod.ContainerID) {
	r.messages.forget(id)
	r.hooks.forget(id)
}

// ignoreLink makes a file that lies behind a link one that is not there: a container has put the
// link in the place of a folder of the agent's, and what it leads to is not the agent's. The link
// goes with the pod's folders.
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

// removeUnstarted removes a container that was created and never started, as by a pass that was
// ended in between. It gives way, with its name, to one made from what holds now. It stays when the
// runtime has lost hold of it (left): then it keeps its name, and garbage collection tries again.
// It is an error if it has been started since it was observed.
func (r *remover) removeUnstarted(ctx context.Context, observed *pod.Status, id pod.ContainerID) (left bool, err error) {
	// When an agent is killed during the start, containerd takes some seconds to notice.
	limit := time.Now().Add(startingLimit)
	for wait := reservedFirst; ; wait = min(2*wait, reservedMost) {
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
		if err := sleep(ctx, wait); err != nil {
			return false, err
		}
	}
}

// startingLimit is how long a start that was cancelled may hold its container.
const startingLimit = 10 * time.Second
