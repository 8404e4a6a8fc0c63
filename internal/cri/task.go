package cri

import (
	"context"
	"errors"
	"fmt"
	"strings"

	tasksapi "github.com/containerd/containerd/api/services/tasks/v1"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/metadata"

	"berth/internal/pod"
)

// A container of containerd has a task while there is a process of it. When a StartContainer is cut off between the making of the task and
// the answer that tells its process id, containerd fails the start and forgets the task: the container has exited for CRI, which offers
// nothing more to end it by, and yet RemoveContainer refuses it for its task. The task service, at the same socket, ends that.

// isTaskLeft reports whether a container could not be removed for its task. containerd ends tasks that it knows to run by itself.
func isTaskLeft(err error) bool {
	return err != nil && strings.Contains(Message(err), "cannot delete running task")
}

// endTask kills and deletes the task of a container, whatever its state. Idempotent.
func (c *Client) endTask(ctx context.Context, id pod.ContainerID) error {
	// CRI's containers are in this namespace.
	ctx = metadata.AppendToOutgoingContext(context.WithoutCancel(ctx), "containerd-namespace", "k8s.io")
	tasks := tasksapi.NewTasksClient(c.conn)
	_, err := tasks.Kill(ctx, &tasksapi.KillRequest{ContainerID: string(id), Signal: uint32(unix.SIGKILL), All: true})
	if err == nil {
		_, err = tasks.Wait(ctx, &tasksapi.WaitRequest{ContainerID: string(id)})
	}
	if err == nil || errors.Is(err, ErrNotFound) { // its process may have gone before
		_, err = tasks.Delete(ctx, &tasksapi.DeleteTaskRequest{ContainerID: string(id)})
	}
	if err = ignoreNotFound(err); err != nil {
		return fmt.Errorf("end the task of a start that was cut off: %w", err)
	}
	return nil
}
