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

// Cgroups (containerManager) changes what a pod as a whole may use, and ends what the runtime
// cannot. Calls for one pod do not overlap, but for KillContainer.
type Cgroups interface {
	// ResizePod writes one part of the pod's cgroup as the pod's resources have it. Idempotent.
	ResizePod(ctx context.Context, p *v1.Pod, part cgroups.PodPart) error
	// PodMemoryUsage returns the bytes that the pod uses; 0 if it is not known.
	PodMemoryUsage(p *v1.Pod) (int64, error)
	// KillPod kills what runs in the pod's cgroup and waits for its end, a few seconds; the error
	// names what does not end. KillContainer does so for a container.
	KillPod(ctx context.Context, uid pod.UID) error
	KillContainer(ctx context.Context, uid pod.UID, id pod.ContainerID) error
}

// resizer changes the resources of what runs.
type resizer struct {
	reporter
	cri         *cri.Client
	cgroups     Cgroups
	allocations *allocation.Allocations
	resources   crispec.ResourceSettings
}

// resize lets what the pod was given hold, in the order of computeResizeSteps. What runs is changed
// in place; what does not will be made with it. Each step can be done twice, so a resize that was
// cut off begins again. An error says what could not be done; the rest is left as it was, but the
// pod grows all the same: until the next try a container may start, with what it was given.
func (r *resizer) resize(ctx context.Context, req Request, a *podActions, res *Result) error {
	p := req.Pod
	ids := map[string]pod.ContainerID{}
	var names []string
	for _, c := range a.ResizeInPlace {
		ids[c.Name], names = c.ID, append(names, c.Name)
	}
	anew := changedOnly
	if r.allocations.Resize(p.UID).Superseded {
		anew = everything
	}
	steps := computeResizeSteps(holding{r.allocations.Cgroup(p), r.allocations.Actuated(p)}, p, names, anew, r.resources)
	if a.KillPod && !a.CreateSandbox {
		steps = nil // nothing of the pod runs, or will; its cgroup goes with it
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
		r.note(decision{pod: p, what: "resized in place", failed: "not resized in place", why: strings.Join(done, ", "), began: began, err: err})
	}
	res.Touched = true
	if err != nil {
		return err
	}
	r.allocations.Complete(ctx, p)
	return nil
}

// noteActuated notes that the containers which are about to start get what they were given.
func (r *resizer) noteActuated(ctx context.Context, p *v1.Pod, a *podActions) {
	if len(a.Start) == 0 {
		return
	}
	names := make([]string, len(a.Start))
	for i, s := range a.Start {
		names[i] = s.Name
	}
	r.allocations.Actuate(ctx, p, names...)
}

// updateSandbox gives the runtime the pod's new size, which most ignore.
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

// checkLowered refuses a memory limit that is not more than what is used: the kernel would kill for
// it.
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
