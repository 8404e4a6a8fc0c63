package agent

import (
	"cmp"
	"context"

	"berth/internal/host/cgroups"
	"berth/internal/resources/nodeallocatable"
	"berth/internal/sync/admission"
)

// newNodeResources returns the machine's resources after the configured reservations.
func newNodeResources(g *dependencies) (*nodeallocatable.Resources, error) {
	return nodeallocatable.Compute(nodeallocatable.Input{
		Config: g.cfg.Kubelet, MaxPods: cmp.Or(g.cfg.MaxPods, admission.LocalMaxPods), Machine: readMachine(&g.base), Host: nodeallocatable.ReadHost(),
	})
}

// newCgroups creates containerManager for the runtime's cgroup driver, and the cgroups that belong
// to no pod.
func (a *Agent) newCgroups(ctx context.Context, driver cgroups.Driver) (ContainerManager, error) {
	m, err := cgroups.New(cgroups.Config{
		Root: a.deps.cfg.CgroupRoot, Driver: driver, Allocatable: a.deps.resources.Kubepods, Settings: a.deps.resources.Pods, Log: a.deps.cfg.Log, Metrics: a.deps.out.Metrics,
	})
	if err != nil {
		return nil, err
	}
	return m, a.enforcer().EnforceReserved(ctx, m)
}

func (a *Agent) enforcer() nodeallocatable.Enforcer {
	return nodeallocatable.Enforcer{Resources: a.deps.resources, Recorder: a.deps.recorder}
}

// enforceAllocatable limits the pods' total resources.
func (a *Agent) enforceAllocatable(ctx context.Context) error {
	if err := a.enforcer().EnforceAllocatable(ctx, a.runtime.facts); err != nil {
		return err
	}
	return waitDone(ctx)
}
