package cri

import (
	"context"

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
