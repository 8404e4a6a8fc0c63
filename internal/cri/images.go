package cri

import (
	"context"
	"strings"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// ListImages returns the images that the runtime has.
func (c *Client) ListImages(ctx context.Context) ([]*runtimeapi.Image, error) {
	r, err := c.images.ListImages(ctx, &runtimeapi.ListImagesRequest{})
	if err != nil {
		return nil, err
	}
	return r.Images, nil
}

// ImageFsInfo returns the file systems of images and of containers.
func (c *Client) ImageFsInfo(ctx context.Context) (*runtimeapi.ImageFsInfoResponse, error) {
	return c.images.ImageFsInfo(ctx, &runtimeapi.ImageFsInfoRequest{})
}

// InspectImage returns the image and what the runtime tells of it besides, JSON by name; a nil image when it is not present.
func (c *Client) InspectImage(ctx context.Context, name string) (*runtimeapi.Image, map[string]string, error) {
	r, err := c.images.ImageStatus(ctx, &runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: name}, Verbose: true})
	if err != nil {
		return nil, nil, err
	}
	return r.Image, r.Info, nil
}

// RemoveImage removes the image with all its names. Idempotent.
func (c *Client) RemoveImage(ctx context.Context, name string) error {
	_, err := c.images.RemoveImage(ctx, &runtimeapi.RemoveImageRequest{Image: &runtimeapi.ImageSpec{Image: name}})
	return ignoreNotFound(err)
}

// ImageUsers returns the containers, running or not, by the id of the image that they were made from, as namespace/pod/container.
func (c *Client) ImageUsers(ctx context.Context) (map[string][]string, error) {
	r, err := c.runtime.ListContainers(ctx, &runtimeapi.ListContainersRequest{})
	if err != nil {
		return nil, err
	}
	users := map[string][]string{}
	for _, ct := range r.Containers {
		// In lists the reference is the id too; runtimes older than the field have only that.
		id := ct.ImageId
		if id == "" {
			id = ct.ImageRef
		}
		users[id] = append(users[id], strings.Join([]string{ct.Labels[PodNamespaceLabel], ct.Labels[PodNameLabel], ct.Labels[ContainerNameLabel]}, "/"))
	}
	return users, nil
}
