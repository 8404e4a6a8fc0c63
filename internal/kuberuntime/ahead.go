package kuberuntime

import (
	"context"
	"slices"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/images"
	"berth/internal/lifecycle"
	"berth/internal/pod"
)

// computeAhead returns the containers that come after what the plan starts and what runs: those that wait for init containers.
func computeAhead(p *v1.Pod, s *pod.Status, a *podActions) []images.Ahead {
	inits := p.Spec.InitContainers
	if len(inits) == 0 || p.DeletionTimestamp != nil || a.KillPod && !a.CreateSandbox || len(a.RestartAll) > 0 {
		return nil
	}
	reached := 0
	if !a.CreateSandbox {
		if lifecycle.HasInitialized(p, s) {
			return nil
		}
		for i := range inits {
			if s.FindContainer(inits[i].Name) != nil || a.starts(inits[i].Name) {
				reached = i
			}
		}
	}
	var ahead []images.Ahead
	behind := !lifecycle.IsSidecar(&inits[reached])
	add := func(c *v1.Container) {
		if a.starts(c.Name) {
			return
		}
		for _, image := range imagesOf(p, c) {
			ahead = append(ahead, images.Ahead{Container: image, BehindInit: behind})
		}
	}
	for i := reached + 1; i < len(inits); i++ {
		add(&inits[i])
		behind = behind || !lifecycle.IsSidecar(&inits[i])
	}
	for i := range p.Spec.Containers {
		add(&p.Spec.Containers[i])
	}
	return ahead
}

func (a *podActions) starts(name string) bool {
	return slices.ContainsFunc(a.Start, func(s startAction) bool { return s.Name == name })
}

// imagesOf returns the container, and for each image that it mounts as a volume a container of the same name with that image: what is wrong with
// the image is told as of the container that waits for it.
func imagesOf(p *v1.Pod, c *v1.Container) []*v1.Container {
	all := []*v1.Container{c}
	for i := range p.Spec.Volumes {
		if v := &p.Spec.Volumes[i]; v.Image != nil && mountsVolume(c, v.Name) {
			all = append(all, &v1.Container{Name: c.Name, Image: v.Image.Reference, ImagePullPolicy: v.Image.PullPolicy})
		}
	}
	return all
}

// lookAhead has the images fetched of the containers whose turn is to come.
func (r *Runtime) lookAhead(req Request, a *podActions, sandbox *runtimeapi.PodSandboxConfig, handler string) {
	if ahead := computeAhead(req.Pod, req.Observed, a); len(ahead) > 0 {
		r.Images.LookAhead(req.Pod, ahead, sandbox, handler)
	}
}

// lookAheadBesideInit does so in a pass that starts nothing: an earlier agent may have begun what nobody goes on with.
func (r *Runtime) lookAheadBesideInit(ctx context.Context, req Request, a *podActions) error {
	if len(computeAhead(req.Pod, req.Observed, a)) == 0 || len(req.Observed.Sandboxes) == 0 {
		return nil
	}
	handler := req.Observed.Sandboxes[0].RuntimeHandler
	cfg, err := r.sandboxConfig(ctx, req, a, req.Observed.Sandboxes[0].Attempt, handler)
	if err != nil {
		return err
	}
	r.lookAhead(req, a, cfg, handler)
	return nil
}
