package cri

import (
	"context"
	"errors"
	"strings"

	snapshotsapi "github.com/containerd/containerd/api/services/snapshots/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/pod"
)

// Images calls the image service, lists the users of images, and locates the writable layers on top
// of them.
type Images struct {
	service   runtimeapi.ImageServiceClient
	runtime   runtimeapi.RuntimeServiceClient
	snapshots snapshotsapi.SnapshotsClient
}

// ImageStatus returns the image, or nil if the runtime does not have it.
func (i *Images) ImageStatus(ctx context.Context, spec *runtimeapi.ImageSpec) (*runtimeapi.Image, error) {
	r, err := i.service.ImageStatus(ctx, &runtimeapi.ImageStatusRequest{Image: spec})
	if err != nil {
		return nil, err
	}
	return r.Image, nil
}

// PullImage pulls the image and returns its reference. It has no deadline except ctx, since the
// size of an image is not known in advance.
func (i *Images) PullImage(ctx context.Context, spec *runtimeapi.ImageSpec, auth *runtimeapi.AuthConfig, sandbox *runtimeapi.PodSandboxConfig) (string, error) {
	r, err := i.service.PullImage(ctx, &runtimeapi.PullImageRequest{Image: spec, Auth: auth, SandboxConfig: sandbox})
	if err != nil {
		return "", err
	}
	return r.ImageRef, nil
}

func (i *Images) ListImages(ctx context.Context) ([]*runtimeapi.Image, error) {
	r, err := i.service.ListImages(ctx, &runtimeapi.ListImagesRequest{})
	if err != nil {
		return nil, err
	}
	return r.Images, nil
}

// ImageFsInfo returns the file systems of images and of containers.
func (i *Images) ImageFsInfo(ctx context.Context) (*runtimeapi.ImageFsInfoResponse, error) {
	return i.service.ImageFsInfo(ctx, &runtimeapi.ImageFsInfoRequest{})
}

// InspectImage returns the image and its verbose information, JSON by name; a nil image if it is
// not present.
func (i *Images) InspectImage(ctx context.Context, name string) (*runtimeapi.Image, map[string]string, error) {
	r, err := i.service.ImageStatus(ctx, &runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: name}, Verbose: true})
	if err != nil {
		return nil, nil, err
	}
	return r.Image, r.Info, nil
}

// RemoveImage removes the image including all its names. Idempotent.
func (i *Images) RemoveImage(ctx context.Context, name string) error {
	_, err := i.service.RemoveImage(ctx, &runtimeapi.RemoveImageRequest{Image: &runtimeapi.ImageSpec{Image: name}})
	return ignoreNotFound(err)
}

// ImageFilesystem returns the mount point of the image file system.
func (i *Images) ImageFilesystem(ctx context.Context) (string, error) {
	r, err := i.service.ImageFsInfo(ctx, &runtimeapi.ImageFsInfoRequest{})
	if err != nil {
		return "", err
	}
	if len(r.ImageFilesystems) == 0 || r.ImageFilesystems[0].GetFsId().GetMountpoint() == "" {
		return "", errors.New("the runtime names no image filesystem")
	}
	return r.ImageFilesystems[0].FsId.Mountpoint, nil
}

// ImageUsers returns the containers, running or not, by the IDs of their images, and by the IDs or
// names of image volumes that containers mount, of the pods for which withVolumes returns true. A
// container is named namespace/pod/container.
func (i *Images) ImageUsers(ctx context.Context, withVolumes func(pod.UID) bool) (map[string][]string, error) {
	r, err := i.runtime.ListContainers(ctx, &runtimeapi.ListContainersRequest{})
	if err != nil {
		return nil, err
	}
	users := map[string][]string{}
	for _, ct := range r.Containers {
		id, user := imageID(ct), strings.Join([]string{ct.Labels[PodNamespaceLabel], ct.Labels[PodNameLabel], ct.Labels[ContainerNameLabel]}, "/")
		users[id] = append(users[id], user)
		if !withVolumes(pod.UID(ct.Labels[PodUIDLabel])) {
			continue
		}
		st, err := i.runtime.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: ct.Id})
		if errors.Is(err, ErrNotFound) {
			continue // removed since
		}
		if err != nil {
			return nil, err
		}
		for _, m := range st.GetStatus().GetMounts() {
			if name := m.GetImage().GetImage(); name != "" {
				users[name] = append(users[name], user)
			}
		}
	}
	return users, nil
}

// imageID is the ID of a listed container's image.
func imageID(ct *runtimeapi.Container) string {
	// In lists the reference is the ID too; older runtimes only have that field.
	if ct.ImageId == "" {
		return ct.ImageRef
	}
	return ct.ImageId
}
