package node

import (
	"cmp"
	"context"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

const maxImageNames = 5

// ContainerImages converts the runtime's images to the form of the Node's status, without limits.
// Digests come before tags.
func ContainerImages(images []*runtimeapi.Image) []v1.ContainerImage {
	out := make([]v1.ContainerImage, 0, len(images))
	for _, i := range images {
		out = append(out, v1.ContainerImage{Names: slices.Concat(i.RepoDigests, i.RepoTags), SizeBytes: int64(i.Size)})
	}
	return out
}

// imagesFor is how long a list of images is cached: listing is the most expensive part of the
// status for the runtime.
const imagesFor = 30 * time.Second

// imageCache caches the last list of images. It is not safe for concurrent use.
type imageCache struct {
	images []v1.ContainerImage
	at     time.Time
}

// list returns the cached images, or lists them again if the cache is too old.
func (s *imageCache) list(ctx context.Context, list func(context.Context) ([]v1.ContainerImage, error)) ([]v1.ContainerImage, error) {
	if s.images != nil && time.Since(s.at) < imagesFor {
		return s.images, nil
	}
	images, err := list(ctx)
	if err != nil {
		return nil, err
	}
	s.images, s.at = images, time.Now()
	return images, nil
}

// rankImages returns the largest images, at most limit of them (negative: all), each with at most
// maxImageNames names. Images of equal size are sorted by name, so that the status does not depend
// on the order of the list.
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
