package kuberuntime

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"

	"berth/internal/host/cgroups"
	"berth/internal/pod"
	"berth/internal/pod/allocation"
	"berth/internal/runtime/cri"
	"berth/internal/runtime/crispec"
)

// Cgroups (containerManager) changes the resources of whole pods, and kills what the runtime
// cannot. Calls for one pod do not overlap, except KillContainer.
type Cgroups interface {
	// ResizePod writes one part of the pod's cgroup from the pod's resources. Idempotent.
	ResizePod(ctx context.Context, p *v1.Pod, part cgroups.PodPart) error
	// PodMemoryUsage returns the pod's memory usage in bytes; 0 if unknown.
	PodMemoryUsage(p *v1.Pod) (int64, error)
	// KillPod kills all processes in the pod's cgroup and waits a few seconds for their exit; the
	// error names those that remain. KillContainer does so for a container.
	KillPod(ctx context.Context, uid pod.UID) error
	KillContainer(ctx context.Context, uid pod.UID, id pod.ContainerID) error
}

type resizer struct {
	report      reporter
	cri         *cri.Client
	cgroups     Cgroups
	allocations *allocation.Allocations
	resources   crispec.ResourceSettings
}

// resize actuates the pod's allocated resources, in the order of computeResizeSteps. Running
// containers are changed in place; others will be created with them. Each step is idempotent, so an
// interrupted resize starts again. After an error, the remaining values are unchanged, except that
// the pod's cgroup grows: until the next try a container may start with its allocated resources.
func (r *resizer) resize(ctx context.Context, req Request, a *podActions, res *Result) error {
	p := req.Pod
	ids := map[string]pod.ContainerID{}
	var names []string
	for _, c := range a.ResizeInPlace {
		ids[c.Name], names = c.ID, append(names, c.Name)
	}
	writes := changedOnly
	if r.allocations.Resize(p.UID).Superseded {
		writes = everything
	}
	steps := computeResizeSteps(holding{r.allocations.Cgroup(p), r.allocations.Actuated(p)}, p, names, writes, r.resources)
	if a.KillPod && !a.CreateSandbox {
		steps = nil // no container is running or will; the cgroup is removed with the pod
	}
	began, done := time.Now(), []string{}
	err := r.updateSandbox(ctx, p, a)
	for _, s := range steps {
		if ctx.Err() != nil {
			err = cmp.Or(err, ctx.Err())
			break
		}
		if err != nil && !s.growsPod() {
			continue
		}
		if failed := r.step(ctx, p, s, ids[s.Container]); failed != nil {
			err = cmp.Or(err, failed)
			continue
		}
		done = append(done, s.String())
	}
	if len(steps) > 0 {
		r.report.record(decision{pod: p, what: "resized in place", failed: "not resized in place", why: strings.Join(done, ", "), began: began, err: err})
	}
	res.Touched = true
	if err != nil {
		return err
	}
	r.allocations.Complete(ctx, p)
	return nil
}

// recordActuated records that the containers about to start get their allocated resources.
func (r *resizer) recordActuated(ctx context.Context, p *v1.Pod, a *podActions) {
	if len(a.Start) == 0 {
		return
	}
	names := make([]string, len(a.Start))
	for i, s := range a.Start {
		names[i] = s.Name
	}
	r.allocations.Actuate(ctx, p, names...)
}

// updateSandbox reports the pod's new size to the runtime; most runtimes ignore it.
func (r *resizer) updateSandbox(ctx context.Context, p *v1.Pod, a *podActions) error {
	if a.KillPod || a.SandboxID == "" {
		return nil
	}
	err := r.cri.UpdatePodSandboxResources(ctx, a.SandboxID, crispec.Overhead(p, r.resources), crispec.SandboxResources(p, r.resources))
	if err != nil && !errors.Is(err, cri.ErrUnimplemented) {
		return fmt.Errorf("pod sandbox: %w", err)
	}
	return nil
}

func (r *resizer) step(ctx context.Context, p *v1.Pod, s resizeStep, id pod.ContainerID) error {
	if err := r.checkLowered(ctx, p, s, id); err != nil {
		return err
	}
	if s.Container == "" {
		return r.cgroups.ResizePod(ctx, p, s.Part)
	}
	if err := r.cri.UpdateContainerResources(ctx, id, s.Update); err != nil {
		return fmt.Errorf("container %q: %w", s.Container, err)
	}
	return nil
}

// checkLowered rejects a memory limit that is not above the current usage: the kernel would
// OOM-kill.
func (r *resizer) checkLowered(ctx context.Context, p *v1.Pod, s resizeStep, id pod.ContainerID) error {
	if s.Lowers == 0 {
		return nil
	}
	what := "pod"
	usage, err := int64(0), error(nil)
	if s.Container == "" {
		usage, err = r.cgroups.PodMemoryUsage(p)
	} else {
		what = fmt.Sprintf("container %q", s.Container)
		usage, err = r.cri.MemoryUsage(ctx, id)
	}
	if err != nil {
		return fmt.Errorf("memory usage of %s: %w", what, err)
	}
	if usage >= s.Lowers {
		return fmt.Errorf("attempting to set %s memory limit (%d) below current usage (%d)", what, s.Lowers, usage)
	}
	return nil
}
