package kuberuntime

import (
	"context"
	"slices"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/pod"
	"berth/internal/pod/lifecycle"
	"berth/internal/runtime/images"
)

// imageFetcher pulls the images of containers.
type imageFetcher struct{ puller *images.Puller }

// forget drops the pull state of a pod.
func (f imageFetcher) forget(uid pod.UID) { f.puller.Forget(uid) }

type pulled struct {
	image   images.Result
	volumes map[string]*runtimeapi.ImageSpec // by volume name (KEP-4639)
}

// pull ensures that the container's image and its image volumes are present for the runtime
// handler, under the same pull policy rules.
func (f imageFetcher) pull(ctx context.Context, p *v1.Pod, c *v1.Container, sandbox *runtimeapi.PodSandboxConfig, handler string) (pulled, error) {
	out := pulled{volumes: map[string]*runtimeapi.ImageSpec{}}
	var err error
	if out.image, err = f.puller.Ensure(ctx, p, c, sandbox, handler); err != nil {
		return pulled{}, err
	}
	for i := range p.Spec.Volumes {
		v := &p.Spec.Volumes[i]
		if v.Image == nil || !mountsVolume(c, v.Name) {
			continue
		}
		// Pull errors are reported on the container that waits for the image.
		wanted := &v1.Container{Name: c.Name, Image: v.Image.Reference, ImagePullPolicy: v.Image.PullPolicy}
		got, err := f.puller.Ensure(ctx, p, wanted, sandbox, handler)
		if err != nil {
			return pulled{}, err
		}
		out.volumes[v.Name] = &runtimeapi.ImageSpec{Image: got.Ref, UserSpecifiedImage: v.Image.Reference}
	}
	return out, nil
}

func mountsVolume(c *v1.Container, name string) bool {
	for i := range c.VolumeMounts {
		if c.VolumeMounts[i].Name == name {
			return true
		}
	}
	return false
}

// computePrefetch returns the containers that start after those that run or that the plan starts:
// those that wait for init containers.
func computePrefetch(p *v1.Pod, s *pod.Status, a *podActions) []images.PrefetchContainer {
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
	var ahead []images.PrefetchContainer
	behind := !lifecycle.IsSidecar(&inits[reached])
	add := func(c *v1.Container) {
		if a.starts(c.Name) {
			return
		}
		for _, image := range imagesOf(p, c) {
			ahead = append(ahead, images.PrefetchContainer{Container: image, BehindInit: behind})
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

// imagesOf returns the container, and for each image volume that it mounts a container of the same
// name with that image: pull errors are reported on the container that waits for the image.
func imagesOf(p *v1.Pod, c *v1.Container) []*v1.Container {
	all := []*v1.Container{c}
	for i := range p.Spec.Volumes {
		if v := &p.Spec.Volumes[i]; v.Image != nil && mountsVolume(c, v.Name) {
			all = append(all, &v1.Container{Name: c.Name, Image: v.Image.Reference, ImagePullPolicy: v.Image.PullPolicy})
		}
	}
	return all
}

// prefetch prefetches the images of containers that start later.
func (f imageFetcher) prefetch(req Request, a *podActions, sandbox *runtimeapi.PodSandboxConfig, handler string) {
	if ahead := computePrefetch(req.Pod, req.Observed, a); len(ahead) > 0 {
		f.puller.Prefetch(req.Pod, ahead, sandbox, handler)
	}
}
