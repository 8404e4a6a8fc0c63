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

// A container of containerd has a task while there is a process of it, and the task service, at the
// same socket as CRI, reaches that process where CRI does not: CRI sends a container no signal but
// the one of its image, and forgets the task of a StartContainer that is cut off between the making
// of the task and the answer that has its process id. Such a container has exited for CRI, which
// offers nothing more to end it by, and yet RemoveContainer refuses it for its task. Other runtimes
// have no such service.

// Tasks reaches the processes of containers through containerd's task service.
type Tasks struct{ service tasksapi.TasksClient }

// EndTask sends a signal to the container's process, SIGKILL to all its processes, and waits for
// the end, as long as ctx allows. That nothing of it runs is no error. The error is
// ErrUnimplemented with a runtime without a task service.
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

// isShimGone reports whether a wait for a task ended as its shim did, which outlives it for a
// moment only.
func isShimGone(err error) bool { return err != nil && strings.Contains(Message(err), "ttrpc: closed") }

// inNamespace makes a call of containerd's own services one about CRI's containers.
func inNamespace(ctx context.Context) context.Context {
	return metadata.AppendToOutgoingContext(ctx, "containerd-namespace", "k8s.io")
}

// remove kills and deletes the task of a container, whatever its state. Idempotent. The error is
// not ErrTaskLeft when the process may run on.
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
