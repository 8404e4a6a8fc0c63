package critest

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func (s *runtimeService) ContainerStatus(_ context.Context, req *runtimeapi.ContainerStatusRequest) (*runtimeapi.ContainerStatusResponse, error) {
	s.runtime.mu.Lock()
	defer s.runtime.mu.Unlock()
	c := s.runtime.containers.all[req.ContainerId]
	if c == nil {
		return nil, errContainerNotFound(req.ContainerId)
	}
	resp := &runtimeapi.ContainerStatusResponse{Status: c.status()}
	if req.Verbose {
		resp.Info = map[string]string{"info": "{}"}
	}
	return resp, nil
}

func (s *runtimeService) ListContainers(_ context.Context, req *runtimeapi.ListContainersRequest) (*runtimeapi.ListContainersResponse, error) {
	s.runtime.mu.Lock()
	defer s.runtime.mu.Unlock()
	resp := &runtimeapi.ListContainersResponse{}
	for _, c := range s.runtime.containers.selected(req.GetFilter().GetLabelSelector()) {
		if !c.matches(req.GetFilter()) {
			continue
		}
		resp.Containers = append(resp.Containers, &runtimeapi.Container{
			Id:           c.id,
			PodSandboxId: c.sandbox.id,
			Metadata:     proto.CloneOf(c.config.Metadata),
			Image:        proto.CloneOf(c.config.Image),
			ImageRef:     c.image.id,
			ImageId:      c.image.id,
			State:        c.state,
			CreatedAt:    c.createdAt.UnixNano(),
			Labels:       maps.Clone(c.config.Labels),
			Annotations:  maps.Clone(c.config.Annotations),
		})
	}
	return resp, nil
}

func (c *container) labels() map[string]string { return c.config.Labels }

// matches evaluates the filter except labels, which the shelf does.
func (c *container) matches(filter *runtimeapi.ContainerFilter) bool {
	return strings.HasPrefix(c.id, filter.GetId()) &&
		strings.HasPrefix(c.sandbox.id, filter.GetPodSandboxId()) &&
		(filter.GetState() == nil || filter.GetState().State == c.state)
}

func (s *runtimeService) UpdateContainerResources(_ context.Context, req *runtimeapi.UpdateContainerResourcesRequest) (*runtimeapi.UpdateContainerResourcesResponse, error) {
	s.runtime.mu.Lock()
	defer s.runtime.mu.Unlock()
	c := s.runtime.containers.all[req.ContainerId]
	if c == nil {
		return nil, errContainerNotFound(req.ContainerId)
	}
	if c.config.Linux == nil {
		c.config.Linux = &runtimeapi.LinuxContainerConfig{}
	}
	if c.config.Linux.Resources == nil {
		c.config.Linux.Resources = &runtimeapi.LinuxContainerResources{}
	}
	// Zero fields in the request do not change the value.
	proto.Merge(c.config.Linux.Resources, req.GetLinux())
	return &runtimeapi.UpdateContainerResourcesResponse{}, nil
}

func (s *runtimeService) ExecSync(ctx context.Context, req *runtimeapi.ExecSyncRequest) (*runtimeapi.ExecSyncResponse, error) {
	s.runtime.mu.Lock()
	c := s.runtime.containers.all[req.ContainerId]
	if c == nil {
		s.runtime.mu.Unlock()
		return nil, errContainerNotFound(req.ContainerId)
	}
	state, exec := c.state, c.program.Exec
	s.runtime.mu.Unlock()
	if state != runtimeapi.ContainerState_CONTAINER_RUNNING {
		return nil, status.Errorf(codes.Unknown, "failed to exec in container: container is in %s state", state)
	}
	if len(req.Cmd) == 0 {
		return nil, status.Error(codes.Unknown, "failed to exec in container: cmd is required")
	}
	if exec == nil {
		return &runtimeapi.ExecSyncResponse{}, nil
	}
	result := exec(slices.Clone(req.Cmd))
	if err := s.awaitExec(ctx, c, result.Takes, time.Duration(req.Timeout)*time.Second); err != nil {
		return nil, err
	}
	if result.Err != nil {
		return nil, result.Err
	}
	s.runtime.mu.Lock()
	killed := c.state != runtimeapi.ContainerState_CONTAINER_RUNNING
	s.runtime.mu.Unlock()
	if killed {
		return &runtimeapi.ExecSyncResponse{ExitCode: killedCode}, nil
	}
	return &runtimeapi.ExecSyncResponse{Stdout: []byte(result.Stdout), Stderr: []byte(result.Stderr), ExitCode: result.ExitCode}, nil
}

// awaitExec waits until a command exits, its container exits, or its timeout expires (0: none).
func (s *runtimeService) awaitExec(ctx context.Context, c *container, takes, timeout time.Duration) error {
	late := timeout > 0 && takes > timeout
	if late {
		takes = timeout
	}
	timer := time.NewTimer(takes)
	defer timer.Stop()
	select {
	case <-timer.C:
		if late {
			return status.Errorf(codes.DeadlineExceeded, "failed to exec in container: timeout %s exceeded: context deadline exceeded", timeout)
		}
		return nil
	case <-c.exited:
		return nil
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	case <-s.serving.stopped:
		return errShutdown
	}
}

func (s *runtimeService) ReopenContainerLog(_ context.Context, req *runtimeapi.ReopenContainerLogRequest) (*runtimeapi.ReopenContainerLogResponse, error) {
	s.runtime.mu.Lock()
	defer s.runtime.mu.Unlock()
	c := s.runtime.containers.all[req.ContainerId]
	if c == nil {
		return nil, errContainerNotFound(req.ContainerId)
	}
	if c.state != runtimeapi.ContainerState_CONTAINER_RUNNING {
		return nil, status.Error(codes.Unknown, "container is not running")
	}
	c.closeLog()
	if err := c.openLog(s.runtime.config); err != nil {
		return nil, status.Errorf(codes.Unknown, "failed to reopen container log: %v", err)
	}
	return &runtimeapi.ReopenContainerLogResponse{}, nil
}

// The statistics of every container.
const (
	statsCPUShare   = 100      // one part in so many of the time since the start
	statsWorkingSet = 4 << 20  // bytes
	statsDisk       = 64 << 10 // bytes
	statsInodes     = 16
)

// stats returns the statistics of a container; without a process it has neither CPU nor memory.
func (c *container) stats(now time.Time) *runtimeapi.ContainerStats {
	at := now.UnixNano()
	stats := &runtimeapi.ContainerStats{
		Attributes: &runtimeapi.ContainerAttributes{
			Id:          c.id,
			Metadata:    proto.CloneOf(c.config.Metadata),
			Labels:      maps.Clone(c.config.Labels),
			Annotations: maps.Clone(c.config.Annotations),
		},
		WritableLayer: diskUsage(at),
	}
	if c.state != runtimeapi.ContainerState_CONTAINER_RUNNING {
		return stats
	}
	stats.Cpu = &runtimeapi.CpuUsage{
		Timestamp:            at,
		UsageCoreNanoSeconds: &runtimeapi.UInt64Value{Value: uint64(now.Sub(c.startedAt)) / statsCPUShare},
	}
	stats.Memory = &runtimeapi.MemoryUsage{
		Timestamp:       at,
		WorkingSetBytes: &runtimeapi.UInt64Value{Value: statsWorkingSet},
		UsageBytes:      &runtimeapi.UInt64Value{Value: statsWorkingSet},
		RssBytes:        &runtimeapi.UInt64Value{Value: statsWorkingSet},
	}
	return stats
}

func diskUsage(at int64) *runtimeapi.FilesystemUsage {
	return &runtimeapi.FilesystemUsage{
		Timestamp:  at,
		FsId:       &runtimeapi.FilesystemIdentifier{Mountpoint: "/var/lib/containerd/io.containerd.snapshotter.v1.overlayfs"},
		UsedBytes:  &runtimeapi.UInt64Value{Value: statsDisk},
		InodesUsed: &runtimeapi.UInt64Value{Value: statsInodes},
	}
}

func (s *runtimeService) ContainerStats(_ context.Context, req *runtimeapi.ContainerStatsRequest) (*runtimeapi.ContainerStatsResponse, error) {
	s.runtime.mu.Lock()
	defer s.runtime.mu.Unlock()
	c := s.runtime.containers.all[req.ContainerId]
	if c == nil {
		return nil, errContainerNotFound(req.ContainerId)
	}
	if c.state != runtimeapi.ContainerState_CONTAINER_RUNNING {
		return nil, status.Error(codes.Unknown, "unexpected metrics response: []")
	}
	return &runtimeapi.ContainerStatsResponse{Stats: c.stats(time.Now())}, nil
}

func (s *runtimeService) ListContainerStats(_ context.Context, req *runtimeapi.ListContainerStatsRequest) (*runtimeapi.ListContainerStatsResponse, error) {
	s.runtime.mu.Lock()
	defer s.runtime.mu.Unlock()
	filter := &runtimeapi.ContainerFilter{Id: req.GetFilter().GetId(), PodSandboxId: req.GetFilter().GetPodSandboxId()}
	resp := &runtimeapi.ListContainerStatsResponse{}
	for _, c := range s.runtime.containers.selected(req.GetFilter().GetLabelSelector()) {
		if c.matches(filter) {
			resp.Stats = append(resp.Stats, c.stats(time.Now()))
		}
	}
	return resp, nil
}
