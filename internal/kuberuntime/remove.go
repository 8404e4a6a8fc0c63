package kuberuntime

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"berth/internal/logs"
	"berth/internal/pod"
)

// RemovePod removes every container, sandbox and log of the pod. Nothing of it may run any more. Idempotent.
func (r *Runtime) RemovePod(ctx context.Context, observed *pod.Status) error {
	r.crash.GC(time.Now())
	for i := range observed.Containers {
		if err := r.removeContainer(ctx, &observed.Containers[i]); err != nil {
			return err
		}
	}
	for i := range observed.Sandboxes {
		if err := r.removeSandbox(ctx, observed.Sandboxes[i].ID); err != nil {
			return err
		}
	}
	return nil
}

// RemoveLogs removes the pod's log folder.
func (r *Runtime) RemoveLogs(namespace, name string, uid pod.UID) error {
	if name == "" || namespace == "" {
		return nil
	}
	if err := os.RemoveAll(logs.PodDir(r.PodLogsDir, namespace, name, string(uid))); err != nil {
		return fmt.Errorf("remove logs: %w", err)
	}
	return nil
}

// removeContainer removes a dead container with its logs, termination message and link.
func (r *Runtime) removeContainer(ctx context.Context, cs *pod.ContainerStatus) error {
	if cs.LogPath != "" {
		files, err := filepath.Glob(cs.LogPath + "*")
		if err != nil {
			return fmt.Errorf("remove container %q: logs: %w", cs.Name, err)
		}
		for _, f := range files {
			if err := os.Remove(f); err != nil && !errors.Is(err, os.ErrNotExist) {
				return fmt.Errorf("remove container %q: %w", cs.Name, err)
			}
		}
	}
	if err := r.CRI.RemoveContainer(ctx, cs.ID); err != nil {
		return fmt.Errorf("remove container %q: %w", cs.Name, err)
	}
	r.forgetMessage(cs.ID)
	if cs.TerminationLog != "" {
		if err := os.Remove(cs.TerminationLog); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("remove container %q: %w", cs.Name, err)
		}
	}
	if r.ContainerLogsDir != "" {
		links, err := filepath.Glob(filepath.Join(r.ContainerLogsDir, "*-"+string(cs.ID)+".log"))
		if err != nil {
			return fmt.Errorf("remove container %q: link: %w", cs.Name, err)
		}
		for _, l := range links {
			if err := os.Remove(l); err != nil && !errors.Is(err, os.ErrNotExist) {
				return fmt.Errorf("remove container %q: %w", cs.Name, err)
			}
		}
	}
	return nil
}

func (r *Runtime) removeSandbox(ctx context.Context, id pod.SandboxID) error {
	if err := r.CRI.StopPodSandbox(ctx, id); err != nil {
		return fmt.Errorf("stop sandbox %s: %w", id, err)
	}
	if err := r.CRI.RemovePodSandbox(ctx, id); err != nil {
		return fmt.Errorf("remove sandbox %s: %w", id, err)
	}
	return nil
}
