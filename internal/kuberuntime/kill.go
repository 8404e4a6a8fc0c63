package kuberuntime

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"

	"berth/internal/lifecycle"
	"berth/internal/pod"
)

// minGrace is the least time that a container is given between the stop signal and the kill.
const minGrace = 2 * time.Second

// KillPod stops every container of the pod within grace and then its sandboxes. Containers stop side by side, but a sidecar
// waits for the regular containers and for the sidecars after it, as long as the grace period lasts. p is nil for a pod that only
// the runtime knows. Idempotent.
func (r *Runtime) KillPod(ctx context.Context, p *v1.Pod, observed *pod.Status, grace time.Duration) error {
	running := map[string][]*pod.ContainerStatus{}
	for i := range observed.Containers {
		if cs := &observed.Containers[i]; cs.State == pod.StateRunning || cs.State == pod.StateUnknown {
			running[cs.Name] = append(running[cs.Name], cs)
		}
	}
	deadline := time.Now().Add(grace)
	ended := map[string]chan struct{}{}
	for name := range running {
		ended[name] = make(chan struct{})
	}
	errs := make(chan error, len(observed.Containers))
	var all sync.WaitGroup
	for name, list := range running {
		all.Go(func() {
			defer close(ended[name])
			r.waitForOthers(ctx, sidecarWaits(p, name), ended, deadline)
			left := max(time.Until(deadline), minGrace)
			if list[0].State == pod.StateUnknown {
				left = minGrace
			}
			for _, cs := range list {
				errs <- r.killContainer(ctx, p, cs, "", left)
			}
		})
	}
	all.Wait()
	close(errs)
	var err error
	for e := range errs {
		err = errors.Join(err, e)
	}
	if err != nil {
		return err
	}
	for i := range observed.Sandboxes {
		sb := &observed.Sandboxes[i]
		began := time.Now()
		err := r.CRI.StopPodSandbox(ctx, sb.ID)
		if sb.Ready && p != nil {
			r.note(p, "", "sandbox stopped", fmt.Sprintf("attempt %d", sb.Attempt), began, err)
		}
		if err != nil {
			return fmt.Errorf("stop sandbox %s: %w", sb.ID, err)
		}
	}
	return nil
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

func (r *Runtime) waitForOthers(ctx context.Context, names []string, ended map[string]chan struct{}, deadline time.Time) {
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

// killContainer stops one container; message is why, "" for the end of the pod.
func (r *Runtime) killContainer(ctx context.Context, p *v1.Pod, cs *pod.ContainerStatus, message string, grace time.Duration) error {
	if cs == nil {
		return nil
	}
	if message == "" {
		message = "Stopping container " + cs.Name
	}
	if p != nil {
		r.Recorder.Event(p, cs.Name, v1.EventTypeNormal, "Killing", message)
	}
	grace = max(grace, minGrace)
	began := time.Now()
	err := r.CRI.StopContainer(ctx, cs.ID, grace)
	if p != nil {
		r.note(p, cs.Name, "container stopped", fmt.Sprintf("grace %s", grace.Round(time.Second)), began, err)
	}
	if err != nil {
		return fmt.Errorf("stop container %q: %w", cs.Name, err)
	}
	return nil
}
