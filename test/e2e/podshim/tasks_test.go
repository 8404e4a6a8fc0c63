//go:build e2e && podshim

package podshim

import (
	"context"

	"github.com/containerd/containerd/api/services/tasks/v1"
	"google.golang.org/grpc/metadata"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// tasks is containerd's own service for tasks, which has what the CRI has not.
func (r *rig) tasks() (tasks.TasksClient, context.Context, context.CancelFunc) {
	ctx, cancel := r.within()
	return tasks.NewTasksClient(r.conn), metadata.AppendToOutgoingContext(ctx, "containerd-namespace", "k8s.io"), cancel
}

// state is the state of a container as containerd's service for tasks tells it.
func (r *rig) state(id string) string {
	r.Helper()
	client, ctx, cancel := r.tasks()
	defer cancel()
	a, err := client.Get(ctx, &tasks.GetRequest{ContainerID: id})
	r.must(err)
	return a.Process.Status.String()
}

func (r *rig) pause(id string) error {
	client, ctx, cancel := r.tasks()
	defer cancel()
	_, err := client.Pause(ctx, &tasks.PauseTaskRequest{ContainerID: id})
	return err
}

func (r *rig) resume(id string) error {
	client, ctx, cancel := r.tasks()
	defer cancel()
	_, err := client.Resume(ctx, &tasks.ResumeTaskRequest{ContainerID: id})
	return err
}

// pid is a container's first process.
func (r *rig) pid(id string) uint32 {
	r.Helper()
	client, ctx, cancel := r.tasks()
	defer cancel()
	a, err := client.Get(ctx, &tasks.GetRequest{ContainerID: id})
	r.must(err)
	return a.Process.Pid
}

// stopped ends a container at once.
func (r *rig) stopped(id string) *cri.ContainerStatus {
	r.Helper()
	ctx, cancel := r.within()
	defer cancel()
	_, err := r.rt.StopContainer(ctx, &cri.StopContainerRequest{ContainerId: id})
	r.must(err)
	return r.exits(id)
}
