package cri

import (
	"context"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/pod"
)

// UpdateContainerResources changes the limits of a created container. Zero fields are not changed.
func (c *Client) UpdateContainerResources(ctx context.Context, id pod.ContainerID, r *runtimeapi.LinuxContainerResources) error {
	_, err := c.runtime.UpdateContainerResources(ctx, &runtimeapi.UpdateContainerResourcesRequest{ContainerId: string(id), Linux: r})
	return err
}

// UpdatePodSandboxResources passes the pod-level resources to the runtime; VM-based runtimes resize
// the pod's VM. The error is ErrUnimplemented if the runtime does not support it.
func (c *Client) UpdatePodSandboxResources(ctx context.Context, id pod.SandboxID, overhead, r *runtimeapi.LinuxContainerResources) error {
	_, err := c.runtime.UpdatePodSandboxResources(ctx, &runtimeapi.UpdatePodSandboxResourcesRequest{PodSandboxId: string(id), Overhead: overhead, Resources: r})
	return err
}

// MemoryUsage returns the memory usage of a running container in bytes, including caches; 0 if it
// is not reported.
func (c *Client) MemoryUsage(ctx context.Context, id pod.ContainerID) (int64, error) {
	r, err := c.runtime.ContainerStats(ctx, &runtimeapi.ContainerStatsRequest{ContainerId: string(id)})
	if err != nil {
		return 0, err
	}
	return int64(r.GetStats().GetMemory().GetUsageBytes().GetValue()), nil
}
