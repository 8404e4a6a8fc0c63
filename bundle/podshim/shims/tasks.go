package shims

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	tasktypes "github.com/containerd/containerd/api/types/task"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"berth/bundle/podshim/plan"
	"berth/bundle/podshim/wire"
)

// tasks is the task service of all pods' containers, which a shim implements elsewhere.
type tasks struct{ m *Manager }

// get returns the task with an ID, or an exec in it.
func (s *tasks) get(id, exec string) (*task, error) {
	s.m.mu.Lock()
	t := s.m.tasks[id]
	s.m.mu.Unlock()
	if t == nil {
		return nil, errgrpc.ToGRPC(fmt.Errorf("task %s: %w", id, errdefs.ErrNotFound))
	}
	if exec == "" {
		return t, nil
	}
	t.pod.mu.Lock()
	defer t.pod.mu.Unlock()
	if e := t.execs[exec]; e != nil {
		return e, nil
	}
	return nil, errgrpc.ToGRPC(fmt.Errorf("exec %s in task %s: %w", exec, id, errdefs.ErrNotFound))
}

var states = map[wire.State]tasktypes.Status{
	wire.Created: tasktypes.Status_CREATED, wire.Running: tasktypes.Status_RUNNING, wire.Stopped: tasktypes.Status_STOPPED,
}

func exitedAt(r taskRecord) *timestamppb.Timestamp { return timestamppb.New(time.Unix(0, r.Exited)) }

func (s *tasks) State(_ context.Context, q *taskapi.StateRequest) (*taskapi.StateResponse, error) {
	t, err := s.get(q.ID, q.ExecID)
	if err != nil {
		return nil, err
	}
	r, state := t.snapshot()
	a := &taskapi.StateResponse{
		ID: q.ID, ExecID: q.ExecID, Bundle: r.Bundle, Pid: r.Pid, Status: states[state],
		Stdin: r.Stdin, Stdout: r.Stdout, Stderr: r.Stderr, Terminal: r.Terminal,
	}
	if r.Deleted { // its FIFOs were deleted with it, and containerd would fail on them
		a.Stdin, a.Stdout, a.Stderr = "", "", ""
	}
	if t.parent == nil && state == wire.Running && t.paused() {
		a.Status = tasktypes.Status_PAUSED
	}
	if state == wire.Stopped {
		a.ExitStatus, a.ExitedAt = r.Status, exitedAt(r)
	}
	return a, nil
}

// invalidArgument returns the error for unsupported requests. It is not errdefs.ErrNotImplemented:
// containerd would retry with the API of an older task service.
func invalidArgument(err error) error { return fmt.Errorf("%w: %w", err, errdefs.ErrInvalidArgument) }

func (s *tasks) Create(ctx context.Context, q *taskapi.CreateTaskRequest) (*taskapi.CreateTaskResponse, error) {
	t, err := s.m.create(ctx, q)
	var r *plan.FieldError
	if errors.As(err, &r) {
		err = invalidArgument(err)
	}
	if err != nil {
		return nil, errgrpc.ToGRPC(err)
	}
	now, _ := t.snapshot()
	return &taskapi.CreateTaskResponse{Pid: now.Pid}, nil
}

func (s *tasks) Start(ctx context.Context, q *taskapi.StartRequest) (*taskapi.StartResponse, error) {
	t, err := s.get(q.ID, q.ExecID)
	if err != nil {
		return nil, err
	}
	if t.parent != nil {
		pid, err := t.startExec(ctx)
		return &taskapi.StartResponse{Pid: pid}, errgrpc.ToGRPC(err)
	}
	t.pod.mu.Lock()
	l, taskPlan := t.pod.link, t.plan
	t.plan = nil
	t.pod.mu.Unlock()
	if l == nil {
		return nil, errgrpc.ToGRPC(fmt.Errorf("start of %s: %w", q.ID, errExited))
	}
	var shimErr *shimError
	r, err := l.call(t.request(wire.Start, 0), nil, nil)
	if errors.As(err, &shimErr) {
		shimErr.description = taskPlan.Describe(r.Step, r.Err)
	}
	if err != nil {
		return nil, errgrpc.ToGRPC(fmt.Errorf("container %s: %w", q.ID, err))
	}
	crashPoint("task-started")
	return &taskapi.StartResponse{Pid: r.Pid}, nil
}

func (s *tasks) Delete(_ context.Context, q *taskapi.DeleteRequest) (*taskapi.DeleteResponse, error) {
	t, err := s.get(q.ID, q.ExecID)
	if err != nil {
		return nil, err
	}
	if t.parent != nil {
		err = t.deleteExec()
	} else {
		s.m.reportFinalOOM(t)
		err = t.delete()
	}
	if err != nil {
		return nil, errgrpc.ToGRPC(fmt.Errorf("%s: %w", t, err))
	}
	if t.parent == nil {
		s.m.mu.Lock()
		delete(s.m.tasks, q.ID)
		s.m.mu.Unlock()
	}
	r, _ := t.snapshot()
	return &taskapi.DeleteResponse{Pid: r.Pid, ExitStatus: r.Status, ExitedAt: exitedAt(r)}, nil
}

// delete removes a task that has exited or was never started. Its exit stays in its record.
func (t *task) delete() error {
	switch _, state := t.snapshot(); state {
	case wire.Stopped:
	case wire.Created:
		if err := t.signal(syscall.SIGKILL); err != nil && !errors.Is(err, errdefs.ErrNotFound) {
			return err
		}
		<-t.done
	default:
		return fmt.Errorf("runs: %w", errdefs.ErrFailedPrecondition)
	}
	t.pod.mu.Lock()
	t.record.Deleted = true
	r := t.record
	t.pod.mu.Unlock()
	if err := t.save(); err != nil {
		return err
	}
	_, err := t.pod.call(t.request(wire.Delete, 0), nil, nil)
	if err != nil && !errors.Is(err, syscall.ENOENT) && !errors.Is(err, errExited) {
		return err
	}
	if r.SharesProcesses {
		if err := killAll(r.Cgroup); err != nil {
			return err
		}
	}
	crashPoint("task-deleted")
	crashPointDirDeleted(r.Bundle)
	return removeCgroup(r.Cgroup)
}

// signal sends a signal to the process. When the first process of a container exits, the kernel
// kills the others.
func (t *task) signal(sig syscall.Signal) error {
	_, err := t.pod.call(t.request(wire.Kill, uint32(sig)), nil, nil)
	if errors.Is(err, syscall.ESRCH) || errors.Is(err, syscall.ENOENT) || errors.Is(err, errExited) {
		return fmt.Errorf("has ended: %w", errdefs.ErrNotFound)
	}
	if err == nil && sig == syscall.SIGKILL {
		err = t.container().thaw()
	}
	return err
}

// container returns the container of an exec, or the container itself.
func (t *task) container() *task {
	if t.parent != nil {
		return t.parent
	}
	return t
}

func (s *tasks) Kill(_ context.Context, q *taskapi.KillRequest) (*emptypb.Empty, error) {
	t, err := s.get(q.ID, q.ExecID)
	if err != nil {
		return nil, err
	}
	sig := syscall.Signal(q.Signal)
	if q.All && sig != syscall.SIGKILL && t.parent == nil {
		return nil, errgrpc.ToGRPC(fmt.Errorf("task %s: all: signal %d to all processes of a container: %w", q.ID, sig, errdefs.ErrNotImplemented))
	}
	if err := t.signal(sig); err != nil {
		return nil, errgrpc.ToGRPC(fmt.Errorf("%s: %w", t, err))
	}
	return &emptypb.Empty{}, nil
}

// Pids never returns an empty list: containerd treats a task without processes as never created,
// and deletes it with its exit code.
func (s *tasks) Pids(_ context.Context, q *taskapi.PidsRequest) (*taskapi.PidsResponse, error) {
	t, err := s.get(q.ID, "")
	if err != nil {
		return nil, err
	}
	r, _ := t.snapshot()
	return &taskapi.PidsResponse{Processes: []*tasktypes.ProcessInfo{{Pid: r.Pid}}}, nil
}

func (s *tasks) Wait(ctx context.Context, q *taskapi.WaitRequest) (*taskapi.WaitResponse, error) {
	t, err := s.get(q.ID, q.ExecID)
	if err != nil {
		return nil, err
	}
	if t.parent == nil {
		t.watchOOM(s.m)
	}
	select {
	case <-t.done:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if t.parent == nil {
		s.m.reportFinalOOM(t)
	}
	r, _ := t.snapshot()
	return &taskapi.WaitResponse{ExitStatus: r.Status, ExitedAt: exitedAt(r)}, nil
}

func (s *tasks) Connect(_ context.Context, q *taskapi.ConnectRequest) (*taskapi.ConnectResponse, error) {
	t, err := s.get(q.ID, "")
	if err != nil {
		return nil, err
	}
	t.pod.mu.Lock()
	defer t.pod.mu.Unlock()
	return &taskapi.ConnectResponse{ShimPid: t.pod.record.Pid, TaskPid: t.record.Pid, Version: fmt.Sprint(taskVersion)}, nil
}

// Shutdown is a no-op: containerd calls it after a shim's last task was deleted, but a pod is
// stopped through its sandbox.
func (s *tasks) Shutdown(context.Context, *taskapi.ShutdownRequest) (*emptypb.Empty, error) {
	return &emptypb.Empty{}, nil
}

// Checkpoint is not supported, because a pod shim cannot restore.
func (s *tasks) Checkpoint(_ context.Context, q *taskapi.CheckpointTaskRequest) (*emptypb.Empty, error) {
	return nil, errgrpc.ToGRPC(fmt.Errorf("checkpoint of task %s: the pod shim does not support it: %w", q.ID, errdefs.ErrNotImplemented))
}
