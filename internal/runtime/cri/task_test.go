package cri_test

import (
	"context"
	"errors"
	"net"
	"slices"
	"strings"
	"testing"

	tasksapi "github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/types/known/emptypb"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/observe/metrics/metricstest"
	"berth/internal/runtime/cri"
)

// leftTask is containerd with the task of a start that was cut off.
type leftTask struct {
	runtimeapi.UnimplementedRuntimeServiceServer
	gone    bool  // the process has ended by itself
	stays   error // of the deletion of the task
	runs    error // of the kill
	refuses bool  // to remove the container, also without a task
	calls   []string
}

func (l *leftTask) RemoveContainer(context.Context, *runtimeapi.RemoveContainerRequest) (*runtimeapi.RemoveContainerResponse, error) {
	l.calls = append(l.calls, "RemoveContainer")
	if l.refuses || !slices.Contains(l.calls, "Delete") {
		return nil, status.Error(codes.Unknown, `failed to delete containerd container "c": cannot delete running task c: failed precondition`)
	}
	return &runtimeapi.RemoveContainerResponse{}, nil
}

// taskService is that of a leftTask.
type taskService struct {
	tasksapi.UnimplementedTasksServer
	left *leftTask
}

func (l *leftTask) task(ctx context.Context, call, id string, err error) error {
	l.calls = append(l.calls, call)
	in, _ := metadata.FromIncomingContext(ctx)
	if namespace := in.Get("containerd-namespace"); !slices.Equal(namespace, []string{"k8s.io"}) || id != "c" {
		return status.Errorf(codes.InvalidArgument, "%s of task %q in namespace %q", call, id, namespace)
	}
	return err
}

func (s taskService) Kill(ctx context.Context, r *tasksapi.KillRequest) (*emptypb.Empty, error) {
	err := s.left.runs
	if s.left.gone {
		err = status.Error(codes.NotFound, "process already finished")
	}
	return &emptypb.Empty{}, s.left.task(ctx, "Kill", r.ContainerID, err)
}

func (s taskService) Wait(ctx context.Context, r *tasksapi.WaitRequest) (*tasksapi.WaitResponse, error) {
	return &tasksapi.WaitResponse{}, s.left.task(ctx, "Wait", r.ContainerID, nil)
}

func (s taskService) Delete(ctx context.Context, r *tasksapi.DeleteTaskRequest) (*tasksapi.DeleteResponse, error) {
	return &tasksapi.DeleteResponse{}, s.left.task(ctx, "Delete", r.ContainerID, s.left.stays)
}

// connect serves, and returns a client and where its calls are counted.
func (l *leftTask) connect(t *testing.T) (*cri.Client, *prometheus.Registry) {
	t.Helper()
	server := grpc.NewServer()
	runtimeapi.RegisterRuntimeServiceServer(server, l)
	tasksapi.RegisterTasksServer(server, taskService{left: l})
	listener := bufconn.Listen(1 << 16)
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	registry := prometheus.NewRegistry()
	c, err := cri.New(cri.Config{
		Endpoint: "fake",
		Dial:     func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) },
		Metrics:  registry,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		server.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return c, registry
}

func TestRemoveContainerWithATaskLeft(t *testing.T) {
	for _, test := range []struct {
		name   string
		left   leftTask
		want   []string
		words  string // of the error
		isLeft bool
	}{
		{name: "not started", want: []string{"RemoveContainer", "Kill", "Wait", "Delete", "RemoveContainer"}},
		{name: "its process has gone", left: leftTask{gone: true}, want: []string{"RemoveContainer", "Kill", "Delete", "RemoveContainer"}},
		{name: "its task has gone", left: leftTask{stays: status.Error(codes.NotFound, "no running task found")}, want: []string{"RemoveContainer", "Kill", "Wait", "Delete", "RemoveContainer"}},
		{
			name: "the task stays", left: leftTask{stays: status.Error(codes.Unavailable, "ttrpc: closed")}, want: []string{"RemoveContainer", "Kill", "Wait", "Delete"},
			words: "a task is left: delete the task of a start that was cut off: Delete: container runtime is down: ttrpc: closed", isLeft: true,
		},
		{
			name: "its process may run on", left: leftTask{runs: status.Error(codes.Unknown, "runc did not terminate successfully")}, want: []string{"RemoveContainer", "Kill"},
			words: "end the task of a start that was cut off: Kill: runc did not terminate successfully",
		},
		{
			name: "it is refused again", left: leftTask{refuses: true}, want: []string{"RemoveContainer", "Kill", "Wait", "Delete", "RemoveContainer"},
			words: "cannot delete running task c", isLeft: true,
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			c, registry := test.left.connect(t)
			err := c.RemoveContainer(t.Context(), "c")
			switch {
			case test.words == "" && err != nil:
				t.Errorf("got %v", err)
			case test.words != "" && (err == nil || !strings.Contains(err.Error(), test.words)):
				t.Errorf("got error %v, want %q in it", err, test.words)
			case errors.Is(err, cri.ErrTaskLeft) != test.isLeft:
				t.Errorf("%v: is ErrTaskLeft: %t, want %t", err, !test.isLeft, test.isLeft)
			}
			if !slices.Equal(test.left.calls, test.want) {
				t.Errorf("calls %q, want %q", test.left.calls, test.want)
			}
			for name := range metricstest.Values(t, registry) {
				if strings.Contains(name, "operation_type=") && !strings.Contains(name, `"remove_container"`) {
					t.Errorf("counted %s, which is no call of CRI", name)
				}
			}
		})
	}
}
