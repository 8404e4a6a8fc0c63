package node

import (
	"cmp"
	"context"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// maxImageNames bounds the names of one image in the status.
const maxImageNames = 5

// ContainerImages returns the runtime's images in the form of the Node's status, unbounded. Digests
// come before tags.
func ContainerImages(images []*runtimeapi.Image) []v1.ContainerImage {
	out := make([]v1.ContainerImage, 0, len(images))
	for _, i := range images {
		out = append(out, v1.ContainerImage{Names: slices.Concat(i.RepoDigests, i.RepoTags), SizeBytes: int64(i.Size)})
	}
	return out
}

// imagesFor is for how long a list of images is used: to make one costs the runtime more than
// everything else that the status is made from.
const imagesFor = 30 * time.Second

// imageCache keeps the last list of images. It belongs to one goroutine.
type imageCache struct {
	images []v1.ContainerImage
	at     time.Time
}

// list returns the images, and asks for them if the last list is old.
func (s *imageCache) list(ctx context.Context, ask func(context.Context) ([]v1.ContainerImage, error)) ([]v1.ContainerImage, error) {
	if s.images != nil && time.Since(s.at) < imagesFor {
		return s.images, nil
	}
	images, err := ask(ctx)
	if err != nil {
		return nil, err
	}
	s.images, s.at = images, time.Now()
	return images, nil
}

// rankImages returns the largest images, at most limit of them (negative: all), each with at most
// maxImageNames names. Images of one size are in the order of their names, so that the status does
// not change with the order of a list.
func rankImages(images []v1.ContainerImage, limit int) []v1.ContainerImage {
	out := slices.Clone(images)
	slices.SortFunc(out, func(a, b v1.ContainerImage) int {
		return cmp.Or(cmp.Compare(b.SizeBytes, a.SizeBytes), slices.Compare(a.Names, b.Names))
	})
	if limit >= 0 && len(out) > limit {
		out = out[:limit]
	}
	for i := range out {
		if len(out[i].Names) > maxImageNames {
			out[i].Names = out[i].Names[:maxImageNames:maxImageNames]
		}
	}
	return out
}
