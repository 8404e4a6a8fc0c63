package critest

import (
	"context"

	tasksapi "github.com/containerd/containerd/api/services/tasks/v1"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"
)

// taskService is the part of containerd's task service that affects the processes of containers.
// Its calls are recorded, and faults apply, under the names "Kill" and "Wait".
type taskService struct {
	tasksapi.UnimplementedTasksServer
	runtime *Runtime
	serving *serving
}

// WithoutTasks disables the task service, which only containerd has.
func WithoutTasks() Option { return func(r *Runtime) { r.config.withTasks = false } }

// alive returns a container that has a process.
func (s *taskService) alive(id string) (*container, error) {
	s.runtime.mu.Lock()
	defer s.runtime.mu.Unlock()
	c := s.runtime.containers.all[id]
	if c == nil || !c.alive() {
		return nil, status.Errorf(codes.NotFound, "process not found: task %s: not found", id)
	}
	return c, nil
}

func (s *taskService) Kill(_ context.Context, req *tasksapi.KillRequest) (*emptypb.Empty, error) {
	c, err := s.alive(req.ContainerID)
	if err != nil {
		return nil, err
	}
	switch unix.Signal(req.Signal) {
	case unix.SIGKILL:
		s.runtime.processes.kill(c)
	case unix.SIGTERM:
		s.runtime.processes.terminate(c)
	}
	return &emptypb.Empty{}, nil
}

func (s *taskService) Wait(ctx context.Context, req *tasksapi.WaitRequest) (*tasksapi.WaitResponse, error) {
	c, err := s.alive(req.ContainerID)
	if err != nil {
		return nil, err
	}
	select {
	case <-c.exited:
		return &tasksapi.WaitResponse{}, nil
	case <-ctx.Done():
		return nil, status.FromContextError(ctx.Err()).Err()
	case <-s.serving.stopped:
		return nil, errShutdown
	}
}
