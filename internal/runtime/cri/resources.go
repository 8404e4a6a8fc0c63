package cri

import (
	"context"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/pod"
)

// UpdateContainerResources changes the limits of a container that was created. Fields that are zero
// stay as they are.
func (c *Client) UpdateContainerResources(ctx context.Context, id pod.ContainerID, r *runtimeapi.LinuxContainerResources) error {
	_, err := c.runtime.UpdateContainerResources(ctx, &runtimeapi.UpdateContainerResourcesRequest{ContainerId: string(id), Linux: r})
	return err
}

// UpdatePodSandboxResources gives the runtime what the pod may take as a whole; runtimes that give
// each pod a machine change its size. The error is ErrUnimplemented where that means nothing.
func (c *Client) UpdatePodSandboxResources(ctx context.Context, id pod.SandboxID, overhead, r *runtimeapi.LinuxContainerResources) error {
	_, err := c.runtime.UpdatePodSandboxResources(ctx, &runtimeapi.UpdatePodSandboxResourcesRequest{PodSandboxId: string(id), Overhead: overhead, Resources: r})
	return err
}

// MemoryUsage returns the bytes of memory that a running container uses, caches included; 0 if the
// runtime does not say.
func (c *Client) MemoryUsage(ctx context.Context, id pod.ContainerID) (int64, error) {
	r, err := c.runtime.ContainerStats(ctx, &runtimeapi.ContainerStatsRequest{ContainerId: string(id)})
	if err != nil {
		return 0, err
	}
	return int64(r.GetStats().GetMemory().GetUsageBytes().GetValue()), nil
}
