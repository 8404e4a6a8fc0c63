package critest

import (
	"context"
	"maps"
	"slices"

	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func (s *runtimeService) Version(context.Context, *runtimeapi.VersionRequest) (*runtimeapi.VersionResponse, error) {
	return proto.CloneOf(s.runtime.config.version), nil
}

func (s *runtimeService) Status(_ context.Context, req *runtimeapi.StatusRequest) (*runtimeapi.StatusResponse, error) {
	s.runtime.mu.Lock()
	defer s.runtime.mu.Unlock()
	resp := &runtimeapi.StatusResponse{
		Status:          &runtimeapi.RuntimeStatus{},
		RuntimeHandlers: cloneAll(s.runtime.config.handlers),
		Features:        proto.CloneOf(s.runtime.config.features),
	}
	for _, condition := range slices.Sorted(maps.Keys(s.runtime.conditions)) {
		resp.Status.Conditions = append(resp.Status.Conditions, proto.CloneOf(s.runtime.conditions[condition]))
	}
	if req.Verbose {
		resp.Info = map[string]string{"config": "{}"}
	}
	return resp, nil
}

func (s *runtimeService) RuntimeConfig(context.Context, *runtimeapi.RuntimeConfigRequest) (*runtimeapi.RuntimeConfigResponse, error) {
	if s.runtime.config.cgroupDriver == nil {
		return nil, errUnimplemented("RuntimeConfig")
	}
	return &runtimeapi.RuntimeConfigResponse{
		Linux: &runtimeapi.LinuxRuntimeConfiguration{CgroupDriver: *s.runtime.config.cgroupDriver},
	}, nil
}

func (s *runtimeService) UpdateRuntimeConfig(context.Context, *runtimeapi.UpdateRuntimeConfigRequest) (*runtimeapi.UpdateRuntimeConfigResponse, error) {
	return &runtimeapi.UpdateRuntimeConfigResponse{}, nil
}
