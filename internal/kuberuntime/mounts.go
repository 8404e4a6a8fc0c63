package kuberuntime

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/beneath"
	"berth/internal/crispec"
	"berth/internal/images"
)

// Volumes gives containers what is in their pod's volumes, which belong to the containers: nothing in them can be trusted to stay.
type Volumes interface {
	// BindSubpath shows the part at a path of the host that no container can change, and returns that path.
	BindSubpath(ctx context.Context, p *v1.Pod, s crispec.Subpath) (hostPath string, err error)
}

// prepareMounts gets what the container's mounts need beyond the volumes of the pod.
func (r *Runtime) prepareMounts(ctx context.Context, in *crispec.Container, handler string) error {
	if crispec.WantsRecursiveReadOnly(in.Container) {
		var err error
		if in.RecursiveReadOnly, err = r.recursiveReadOnly(ctx, handler); err != nil {
			return err
		}
	}
	parts, err := crispec.Subpaths(*in)
	if err != nil {
		return err
	}
	in.Subpaths = make(map[int]string, len(parts))
	for _, s := range parts {
		if in.Subpaths[s.Index], err = r.Volumes.BindSubpath(ctx, in.Pod, s); err != nil {
			return err
		}
	}
	return nil
}

// recursiveReadOnly asks the runtime whether the handler can make mounts read-only with all that is mounted below.
func (r *Runtime) recursiveReadOnly(ctx context.Context, handler string) (bool, error) {
	s, err := r.CRI.Status(ctx)
	if err != nil {
		return false, fmt.Errorf("features of the runtime: %w", err)
	}
	for _, h := range s.GetRuntimeHandlers() {
		if h.Name == handler {
			return h.GetFeatures().GetRecursiveReadOnlyMounts(), nil
		}
	}
	return false, nil
}

// readEnvFiles reads the files in volumes that the container takes variables from. What does not exist is left out.
func (r *Runtime) readEnvFiles(c *v1.Container, volumes map[string]crispec.Volume) (map[crispec.EnvFile][]byte, error) {
	files := map[crispec.EnvFile][]byte{}
	for _, f := range crispec.EnvFiles(c) {
		vol, ok := volumes[f.Volume]
		if !ok {
			return nil, fmt.Errorf("cannot find volume %q to take variables of container %q from", f.Volume, c.Name)
		}
		content, err := beneath.ReadFile(vol.HostPath, f.Path, crispec.EnvFileLimit)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("file %q of volume %q: %w", f.Path, f.Volume, err)
		}
		files[f] = content
	}
	return files, nil
}

// pulled are the images that a container needs.
type pulled struct {
	image   images.Result
	volumes map[string]*runtimeapi.ImageSpec // by the names of the volumes that they are (KEP-4639)
}

// pull makes the container's images present for the runtime handler: its own, and those that it mounts as volumes, under the same rules.
func (r *Runtime) pull(ctx context.Context, p *v1.Pod, c *v1.Container, sandbox *runtimeapi.PodSandboxConfig, handler string) (pulled, error) {
	out := pulled{volumes: map[string]*runtimeapi.ImageSpec{}}
	var err error
	if out.image, err = r.Images.Ensure(ctx, p, c, sandbox, handler); err != nil {
		return pulled{}, err
	}
	for i := range p.Spec.Volumes {
		v := &p.Spec.Volumes[i]
		if v.Image == nil || !mountsVolume(c, v.Name) {
			continue
		}
		// What is wrong with the image is told as of the container that waits for it.
		wanted := &v1.Container{Name: c.Name, Image: v.Image.Reference, ImagePullPolicy: v.Image.PullPolicy}
		got, err := r.Images.Ensure(ctx, p, wanted, sandbox, handler)
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
