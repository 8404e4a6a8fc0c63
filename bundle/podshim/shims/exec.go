package shims

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"syscall"
	"time"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/types/known/emptypb"

	"berth/bundle/podshim/plan"
	"berth/bundle/podshim/wire"
)

// neverStartedExitCode is the exit code of an exec that was not started.
const neverStartedExitCode = 255

// errPaused means that a process cannot start, because it would be paused too.
var errPaused = fmt.Errorf("cannot exec in a paused state: %w", errdefs.ErrFailedPrecondition)

func newExec(parent *task, id string) *task {
	return &task{pod: parent.pod, parent: parent, state: wire.Created, done: make(chan struct{}), record: taskRecord{ID: id}}
}

// String returns the name of a task for errors.
func (t *task) String() string {
	if t.parent != nil {
		return fmt.Sprintf("exec %s in task %s", t.record.ID, t.parent.record.ID)
	}
	return "task " + t.record.ID
}

// request returns a message about the task.
func (t *task) request(op wire.Op, arg uint32) wire.Request {
	if t.parent != nil {
		return wire.Request{Op: op, Arg: arg, ID: t.parent.record.ID, Exec: t.record.ID}
	}
	return wire.Request{Op: op, Arg: arg, ID: t.record.ID}
}

// Exec records a further process of a container. The pod shim creates it at its start.
func (s *tasks) Exec(_ context.Context, q *taskapi.ExecProcessRequest) (*emptypb.Empty, error) {
	t, err := s.get(q.ID, "")
	if err != nil {
		return nil, err
	}
	if err := t.addExec(q); err != nil {
		return nil, errgrpc.ToGRPC(fmt.Errorf("exec %s in %s: %w", q.ExecID, t, err))
	}
	return &emptypb.Empty{}, nil
}

func (t *task) addExec(q *taskapi.ExecProcessRequest) error {
	if !validID.MatchString(q.ExecID) {
		return fmt.Errorf("exec id %q: %s: %w", q.ExecID, idRule, errdefs.ErrInvalidArgument)
	}
	e := newExec(t, q.ExecID)
	d := json.NewDecoder(bytes.NewReader(q.Spec.GetValue()))
	d.DisallowUnknownFields()
	if err := d.Decode(&e.process); err != nil || e.process == nil {
		return fmt.Errorf("process: %w: %w", err, errdefs.ErrInvalidArgument)
	}
	if e.process.Terminal != q.Terminal {
		return fmt.Errorf("process.terminal: is %t, and the request says %t: %w", e.process.Terminal, q.Terminal, errdefs.ErrInvalidArgument)
	}
	e.record.Stdin, e.record.Stdout, e.record.Stderr, e.record.Terminal = q.Stdin, q.Stdout, q.Stderr, q.Terminal
	confined, err := t.confinement()
	if err == nil {
		err = hostModules().validate(e.process, "")
	}
	if err == nil {
		_, err = plan.NewExec(e.process, nil, confined) // reject unsupported requests now
	}
	if err != nil {
		return invalidArgument(err)
	}
	if t.paused() {
		return errPaused
	}
	t.pod.mu.Lock()
	defer t.pod.mu.Unlock()
	if t.execs[q.ExecID] != nil {
		return fmt.Errorf("id %s: %w", q.ExecID, errdefs.ErrAlreadyExists)
	}
	t.execs[q.ExecID] = e
	return nil
}

// startExec makes the pod shim create and start the process, unless ctx is done before.
func (t *task) startExec(ctx context.Context) (pid uint32, err error) {
	t.pod.mu.Lock()
	again := t.requested
	t.requested = true
	t.pod.mu.Unlock()
	if again {
		return 0, fmt.Errorf("%s: was started already: %w", t, errdefs.ErrFailedPrecondition)
	}
	defer func() {
		if err != nil {
			t.pod.mu.Lock()
			defer t.pod.mu.Unlock()
			if t.state != wire.Stopped {
				t.state, t.record.Status, t.record.Exited = wire.Stopped, neverStartedExitCode, time.Now().UnixNano()
				t.markStopped()
			}
		}
	}()
	if t.parent.paused() {
		return 0, fmt.Errorf("%s: %w", t, errPaused)
	}
	parent, _ := t.parent.snapshot()
	groups, err := loadCgroup(parent.Cgroup, parent.Pid)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", t, err)
	}
	confined, err := t.parent.confinement()
	if err != nil {
		return 0, fmt.Errorf("%s: %w", t, err)
	}
	execPlan, err := plan.NewExec(t.process, groups, confined)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", t, err)
	}
	waiting, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() { // for readers of the output: at most until the container exits
		select {
		case <-t.parent.done:
			cancel()
		case <-waiting.Done():
		}
	}()
	f, err := t.openFiles(waiting, confined.Label)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", t, err)
	}
	defer f.close()
	if err := f.addStartCgroup(groups); err != nil {
		return 0, fmt.Errorf("%s: %w", t, err)
	}
	if t.record.Terminal { // the pod shim forwards its output, and does not wait for readers
		output, err := awaitReader(waiting, f[wire.CopyStdout])
		if err != nil {
			return 0, fmt.Errorf("%s: %w", t, err)
		}
		defer unix.Close(output)
		t.holdFIFOs()
	}
	defer context.AfterFunc(ctx, func() { _ = t.signal(syscall.SIGKILL) })() // it may have started or exited
	r, err := t.pod.call(t.request(wire.Execute, 0), execPlan, f)
	var shimErr *shimError
	if errors.As(err, &shimErr) && shimErr.err == syscall.ESRCH && r.Step == wire.ReasonNone {
		return 0, fmt.Errorf("%s: the container does not run: %w", t, errdefs.ErrFailedPrecondition)
	}
	return r.Pid, err
}

// deleteExec deletes an exec that has exited or was never started.
func (t *task) deleteExec() error {
	t.pod.mu.Lock()
	runs, requested := t.requested && t.state != wire.Stopped, t.requested
	if !runs {
		t.requested = true
		delete(t.parent.execs, t.record.ID)
	}
	t.pod.mu.Unlock()
	if runs {
		return fmt.Errorf("runs: %w", errdefs.ErrFailedPrecondition)
	}
	if !requested {
		return nil
	}
	_, err := t.pod.call(t.request(wire.Delete, 0), nil, nil)
	if err != nil && !errors.Is(err, syscall.ENOENT) && !errors.Is(err, errExited) {
		return err
	}
	return nil
}

// ResizePty sets the size of a terminal.
func (s *tasks) ResizePty(_ context.Context, q *taskapi.ResizePtyRequest) (*emptypb.Empty, error) {
	t, err := s.get(q.ID, q.ExecID)
	if err != nil {
		return nil, err
	}
	if max(q.Width, q.Height) > math.MaxUint16 {
		return nil, errgrpc.ToGRPC(fmt.Errorf("%s: a terminal of %d by %d: %w", t, q.Width, q.Height, errdefs.ErrInvalidArgument))
	}
	if !t.record.Terminal && t.process != nil || t.parent == nil && !t.record.Terminal {
		return nil, errgrpc.ToGRPC(fmt.Errorf("%s: has no terminal: %w", t, errdefs.ErrFailedPrecondition))
	}
	if _, err = t.pod.call(t.request(wire.Resize, q.Height<<16|q.Width), nil, nil); err != nil {
		return nil, errgrpc.ToGRPC(fmt.Errorf("%s: %w", t, err))
	}
	return &emptypb.Empty{}, nil
}

// CloseIO closes standard input: containerd has closed its end.
func (s *tasks) CloseIO(_ context.Context, q *taskapi.CloseIORequest) (*emptypb.Empty, error) {
	t, err := s.get(q.ID, q.ExecID)
	if err != nil {
		return nil, err
	}
	if _, err := t.pod.call(t.request(wire.CloseStdin, 0), nil, nil); q.Stdin && err != nil && !errors.Is(err, syscall.ENOENT) && !errors.Is(err, errExited) {
		return nil, errgrpc.ToGRPC(fmt.Errorf("%s: %w", t, err))
	}
	return &emptypb.Empty{}, nil
}
