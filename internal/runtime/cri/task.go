package cri

import (
	"context"
	"fmt"
	"strings"

	tasksapi "github.com/containerd/containerd/api/services/tasks/v1"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/metadata"

	"berth/internal/pod"
)

// A containerd container has a task while it has a process, and the task service, at the same
// socket as CRI, reaches that process where CRI does not: CRI only sends the image's stop signal,
// and forgets the task of a StartContainer that is interrupted between the creation of the task and
// the response with its PID. For CRI such a container has exited and cannot be stopped, but
// RemoveContainer rejects it because of its task. Other runtimes have no such service.

// Tasks accesses container processes through containerd's task service.
type Tasks struct{ service tasksapi.TasksClient }

// EndTask sends a signal to the container's process, SIGKILL to all its processes, and waits for
// the exit until ctx is done. It is not an error if no process is running. The error is
// ErrUnimplemented for a runtime without a task service.
func (t *Tasks) EndTask(ctx context.Context, id pod.ContainerID, signal unix.Signal) error {
	ctx = inNamespace(ctx)
	_, err := t.service.Kill(ctx, &tasksapi.KillRequest{
		ContainerID: string(id), Signal: uint32(signal), All: signal == unix.SIGKILL,
	})
	if err == nil {
		_, err = t.service.Wait(ctx, &tasksapi.WaitRequest{ContainerID: string(id)})
		if isShimGone(err) {
			err = nil
		}
	}
	return ignoreNotFound(err)
}

// isShimGone reports whether a wait for a task failed because its shim exited, which it does a
// moment after the task.
func isShimGone(err error) bool { return err != nil && strings.Contains(Message(err), "ttrpc: closed") }

// inNamespace sets the containerd namespace of CRI for calls of containerd's own services.
func inNamespace(ctx context.Context) context.Context {
	return metadata.AppendToOutgoingContext(ctx, "containerd-namespace", "k8s.io")
}

// remove kills and deletes the task of a container, whatever its state. Idempotent. If a process
// may still be running, the error is not ErrTaskLeft.
func (t *Tasks) remove(ctx context.Context, id pod.ContainerID) error {
	ctx = context.WithoutCancel(ctx)
	if err := t.EndTask(ctx, id, unix.SIGKILL); err != nil {
		return fmt.Errorf("end the task of a start that was cut off: %w", err)
	}
	_, err := t.service.Delete(inNamespace(ctx), &tasksapi.DeleteTaskRequest{ContainerID: string(id)})
	if err = ignoreNotFound(err); err != nil {
		return fmt.Errorf("%w: delete the task of a start that was cut off: %w", ErrTaskLeft, err)
	}
	return nil
}
