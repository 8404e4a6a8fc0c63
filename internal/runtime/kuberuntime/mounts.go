package kuberuntime

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	v1 "k8s.io/api/core/v1"

	"berth/internal/host/safepath"
	"berth/internal/runtime/cri"
	"berth/internal/runtime/crispec"
)

// Volumes makes subPaths safe to mount. Containers can modify the volumes' contents at any time.
type Volumes interface {
	// BindSubpath bind-mounts the subPath at a host path that no container can change, and returns
	// that path.
	BindSubpath(ctx context.Context, p *v1.Pod, s crispec.Subpath) (hostPath string, err error)
}

type mountPreparer struct {
	cri     *cri.Client
	volumes Volumes
}

// prepare sets what the container's mounts need beyond the pod's volumes.
func (m *mountPreparer) prepare(ctx context.Context, in *crispec.Container, handler string) error {
	if crispec.WantsRecursiveReadOnly(in.Container) {
		var err error
		if in.RecursiveReadOnly, err = m.recursiveReadOnly(ctx, handler); err != nil {
			return err
		}
	}
	parts, err := crispec.Subpaths(*in)
	if err != nil {
		return err
	}
	in.Subpaths = make(map[int]string, len(parts))
	for _, s := range parts {
		if in.Subpaths[s.Index], err = m.volumes.BindSubpath(ctx, in.Pod, s); err != nil {
			return err
		}
	}
	return nil
}

// recursiveReadOnly reports whether the runtime handler supports recursive read-only mounts.
func (m *mountPreparer) recursiveReadOnly(ctx context.Context, handler string) (bool, error) {
	s, err := m.cri.Status(ctx)
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

// readEnvFiles reads the container's environment files from its volumes. Missing files are left
// out.
func readEnvFiles(c *v1.Container, volumes map[string]crispec.Volume) (map[crispec.EnvFile][]byte, error) {
	files := map[crispec.EnvFile][]byte{}
	for _, f := range crispec.EnvFiles(c) {
		vol, ok := volumes[f.Volume]
		if !ok {
			return nil, fmt.Errorf("cannot find volume %q to take variables of container %q from", f.Volume, c.Name)
		}
		content, err := safepath.ReadFile(vol.HostPath, f.Path, crispec.EnvFileLimit)
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
