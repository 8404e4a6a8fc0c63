package podresources

import (
	"context"
	"fmt"

	v1 "k8s.io/api/core/v1"
	podresourcesv1 "k8s.io/kubelet/pkg/apis/podresources/v1"
	"k8s.io/kubelet/pkg/apis/podresources/v1alpha1"
	"k8s.io/utils/cpuset"

	"berth/internal/pod"
)

type serverV1 struct {
	podresourcesv1.UnimplementedPodResourcesListerServer
	s *Server
}

// List returns the resources of all active pods, or of all known pods if ListKnown is set.
func (v serverV1) List(context.Context, *podresourcesv1.ListPodResourcesRequest) (*podresourcesv1.ListPodResourcesResponse, error) {
	pods := v.s.Pods.Active
	if v.s.ListKnown {
		pods = v.s.Pods.List
	}
	out := &podresourcesv1.ListPodResourcesResponse{}
	for _, p := range sortedPods(pods()) {
		out.PodResources = append(out.PodResources, generatePod(p, v.s.holdings(p)))
	}
	return out, nil
}

// Get returns the resources of one pod. The error for an unknown pod has no specific code, as in
// the kubelet: clients check its text.
func (v serverV1) Get(_ context.Context, in *podresourcesv1.GetPodResourcesRequest) (*podresourcesv1.GetPodResourcesResponse, error) {
	named := &v1.Pod{}
	named.Name, named.Namespace = in.GetPodName(), in.GetPodNamespace()
	p, ok := v.s.Pods.GetByFullName(pod.FullNameOf(named))
	if !ok {
		return nil, fmt.Errorf("pod %s in namespace %s not found", named.Name, named.Namespace)
	}
	return &podresourcesv1.GetPodResourcesResponse{PodResources: generatePod(p, v.s.holdings(p))}, nil
}

// GetAllocatableResources returns the allocatable resources of the node.
func (v serverV1) GetAllocatableResources(
	context.Context, *podresourcesv1.AllocatableResourcesRequest,
) (*podresourcesv1.AllocatableResourcesResponse, error) {
	return &podresourcesv1.AllocatableResourcesResponse{
		Devices: generateDevices(v.s.Devices.Healthy()),
		CpuIds:  generateCPUs(v.s.CPUs.Allocatable()),
		Memory:  generateMemory(v.s.Memory.Allocatable()),
	}, nil
}

type serverV1alpha1 struct {
	v1alpha1.UnimplementedPodResourcesListerServer
	s *Server
}

// List returns the devices of the regular containers of all known pods.
func (v serverV1alpha1) List(context.Context, *v1alpha1.ListPodResourcesRequest) (*v1alpha1.ListPodResourcesResponse, error) {
	out := &v1alpha1.ListPodResourcesResponse{}
	for _, p := range sortedPods(v.s.Pods.List()) {
		out.PodResources = append(out.PodResources, generateAlphaPod(p, v.s.holdings(p)))
	}
	return out, nil
}

// holdings reads a pod's resources from the managers.
func (s *Server) holdings(p *v1.Pod) holdings {
	h := holdings{map[string][]Device{}, map[string]cpuset.CPUSet{}, map[string][]Block{}, map[string][]Claim{}}
	for _, c := range reportedContainers(p) {
		h.devices[c.Name] = s.Devices.Devices(p.UID, c.Name)
		h.cpus[c.Name] = s.CPUs.Exclusive(p.UID, c.Name)
		h.blocks[c.Name] = s.Memory.Blocks(p.UID, c.Name)
		if s.Claims != nil {
			h.claims[c.Name] = s.Claims.Claims(p, c)
		}
	}
	return h
}
