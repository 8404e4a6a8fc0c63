package shims

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/containerd/containerd/api/events"
	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/containerd/v2/core/runtime"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/containerd/typeurl/v2"
	"github.com/opencontainers/cgroups"
	"github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/protobuf/types/known/emptypb"

	"berth/bundle/podshim/plan"
	"berth/bundle/podshim/wire"
)

// cgroup returns the cgroup of a container that has not exited.
func (t *task) cgroup() (*cgroup, error) {
	if _, state := t.snapshot(); state == wire.Stopped {
		return nil, fmt.Errorf("has ended: %w", errdefs.ErrNotFound)
	}
	g, err := cgroupAt(t.record.Cgroup)
	if err == nil && !g.Exists() {
		err = fmt.Errorf("cgroup %s: is gone: %w", t.record.Cgroup, errdefs.ErrNotFound)
	}
	return g, err
}

func (t *task) paused() bool {
	g, err := cgroupAt(t.record.Cgroup)
	return err == nil && g.frozen()
}

// thaw thaws a paused container that was killed, so that it exits. With cgroup v2, the kernel does
// that.
func (t *task) thaw() error {
	if unified() || !t.paused() {
		return nil
	}
	g, err := cgroupAt(t.record.Cgroup)
	if err == nil {
		err = g.Freeze(cgroups.Thawed)
	}
	return err
}

func (s *tasks) Stats(_ context.Context, q *taskapi.StatsRequest) (*taskapi.StatsResponse, error) {
	t, err := s.get(q.ID, "")
	if err != nil {
		return nil, err
	}
	g, err := cgroupAt(t.record.Cgroup)
	if err == nil && !g.Exists() {
		err = fmt.Errorf("is gone: %w", errdefs.ErrNotFound)
	}
	var m any
	if err == nil {
		m, err = g.stat()
	}
	if err != nil {
		return nil, errgrpc.ToGRPC(fmt.Errorf("cgroup of task %s: %w", q.ID, err))
	}
	a, err := typeurl.MarshalAnyToProto(m)
	return &taskapi.StatsResponse{Stats: a}, err
}

// freeze pauses or resumes a container.
func (s *tasks) freeze(id string, state cgroups.FreezerState) (*emptypb.Empty, error) {
	t, err := s.get(id, "")
	if err != nil {
		return nil, err
	}
	g, err := t.cgroup()
	if _, now := t.snapshot(); err == nil && now != wire.Running {
		err = fmt.Errorf("does not run: %w", errdefs.ErrFailedPrecondition)
	}
	if err == nil {
		err = g.Freeze(state)
	}
	if err != nil {
		return nil, errgrpc.ToGRPC(fmt.Errorf("%s: %w", t, err))
	}
	return &emptypb.Empty{}, nil
}

func (s *tasks) Pause(_ context.Context, q *taskapi.PauseRequest) (*emptypb.Empty, error) {
	a, err := s.freeze(q.ID, cgroups.Frozen)
	if err == nil {
		s.m.publish(runtime.TaskPausedEventTopic, &events.TaskPaused{ContainerID: q.ID})
	}
	return a, err
}

func (s *tasks) Resume(_ context.Context, q *taskapi.ResumeRequest) (*emptypb.Empty, error) {
	a, err := s.freeze(q.ID, cgroups.Thawed)
	if err == nil {
		s.m.publish(runtime.TaskResumedEventTopic, &events.TaskResumed{ContainerID: q.ID})
	}
	return a, err
}

// Update changes the limits of a container. Unset limits and device rules are unchanged.
func (s *tasks) Update(_ context.Context, q *taskapi.UpdateTaskRequest) (*emptypb.Empty, error) {
	t, err := s.get(q.ID, "")
	if err != nil {
		return nil, err
	}
	if err := t.update(q.Resources.GetValue()); err != nil {
		return nil, errgrpc.ToGRPC(fmt.Errorf("%s: update: %w", t, err))
	}
	return &emptypb.Empty{}, nil
}

func (t *task) update(resources []byte) error {
	var r specs.LinuxResources
	d := json.NewDecoder(bytes.NewReader(resources))
	d.DisallowUnknownFields()
	if err := d.Decode(&r); err != nil {
		return fmt.Errorf("resources: %w: %w", err, errdefs.ErrInvalidArgument)
	}
	err := plan.ValidateResources(&r, unified())
	var no *plan.FieldError
	if errors.As(err, &no) {
		return invalidArgument(err)
	}
	if _, err := t.cgroup(); err != nil {
		return err
	}
	r.Devices = nil
	g, err := cgroupOf(&specs.Spec{Linux: &specs.Linux{CgroupsPath: t.record.Cgroup, Resources: &r}})
	if err != nil {
		return err
	}
	g.limits.SkipDevices, g.limits.Devices = true, nil
	return g.Set(g.limits)
}
