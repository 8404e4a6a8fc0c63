package critest

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// imageService is the gRPC service of the image store.
type imageService struct {
	runtimeapi.UnimplementedImageServiceServer
	images *Images
	done   <-chan struct{} // closed when the runtime is closed
}

// Image describes an image in the store or in a registry.
type Image struct {
	Name     string // as written by users; required
	Size     uint64 // bytes; 0 means 1 MiB
	UID      *int64 // numeric user of the image; nil if it has none or a user name
	Username string // user name of the image
	Pinned   bool
}

// RegistryImage is an image in a registry.
type RegistryImage struct {
	Image
	// Latency is the duration of a pull.
	Latency time.Duration
	// Err makes pulls fail after Latency, for instance with [ErrRegistryUnavailable].
	Err error
	// Authorize checks the credentials of a pull, nil if the client sent none; a nil Authorize
	// allows every pull.
	Authorize func(*runtimeapi.AuthConfig) error
}

// ErrRegistryUnavailable is the error of runtimes that distinguish an unreachable registry from
// other errors.
var ErrRegistryUnavailable = status.Error(codes.Unknown, "RegistryUnavailable: pull from host failed")

// ErrSignatureValidation is the error of runtimes that reject an image for its signature.
var ErrSignatureValidation = status.Error(codes.Unknown, "SignatureValidationFailed: no valid signature")

type image struct {
	id      string   // sha256:…
	tags    []string // normalized names
	digests []string // normalized repository@sha256:…
	Image
}

// ref returns the image's reference in containers: the digest in its repository, or the ID if it
// has none.
func (i *image) ref() string {
	if len(i.digests) > 0 {
		return i.digests[0]
	}
	return i.id
}

func (i *image) message() *runtimeapi.Image {
	m := &runtimeapi.Image{
		Id:          i.id,
		RepoTags:    slices.Clone(i.tags),
		RepoDigests: slices.Clone(i.digests),
		Size:        i.Size,
		Username:    i.Username,
		Pinned:      i.Pinned,
	}
	if i.UID != nil {
		m.Uid = &runtimeapi.Int64Value{Value: *i.UID}
	}
	return m
}

// normalizeImage returns the full name of an image as containerd stores it: with registry and tag.
func normalizeImage(name string) string {
	first, _, nested := strings.Cut(name, "/")
	switch {
	case !nested:
		name = "docker.io/library/" + name
	case !strings.ContainsAny(first, ".:") && first != "localhost":
		name = "docker.io/" + name
	}
	if !strings.Contains(name, "@") && !strings.Contains(name[strings.LastIndex(name, "/"):], ":") {
		name += ":latest"
	}
	return name
}

func repository(normalized string) string {
	name, _, _ := strings.Cut(normalized, "@")
	if i := strings.LastIndex(name, ":"); i > strings.LastIndex(name, "/") {
		name = name[:i]
	}
	return name
}

func digest(text string) string {
	sum := sha256.Sum256([]byte(text))
	return "sha256:" + hex.EncodeToString(sum[:])
}

// Images are the images of a runtime, and of the registry that it pulls from.
type Images struct {
	mu       *sync.Mutex              // the runtime's
	byID     map[string]*image        // guarded by mu
	registry map[string]RegistryImage // guarded by mu
}

// Add adds an image to the store and returns its ID, as loading it from a file does: the image
// has no repository digest. The ID depends on the name only.
func (im *Images) Add(i Image) (id string) {
	im.mu.Lock()
	defer im.mu.Unlock()
	return im.add(i).id
}

// add adds an image without digests. The caller holds the lock.
func (im *Images) add(i Image) *image {
	name := normalizeImage(i.Name)
	if i.Size == 0 {
		i.Size = 1 << 20
	}
	added := &image{id: digest("config of " + name), Image: i}
	if strings.Contains(name, "@") {
		added.digests = []string{name}
	} else {
		added.tags = []string{name}
	}
	im.byID[added.id] = added
	return added
}

// addPulled adds an image with its registry digest. The caller holds the lock.
func (im *Images) addPulled(i Image) *image {
	added := im.add(i)
	if len(added.digests) == 0 {
		name := added.tags[0]
		added.digests = []string{repository(name) + "@" + digest("manifest of "+name)}
	}
	return added
}

// AddToRegistry adds an image to the registry that PullImage uses. Pulls of other images fail with
// NotFound.
func (im *Images) AddToRegistry(i RegistryImage) {
	im.mu.Lock()
	defer im.mu.Unlock()
	im.registry[normalizeImage(i.Name)] = i
}

// find returns an image by ID, tag or digest, or nil. The caller holds the lock.
func (im *Images) find(name string) *image {
	if name == "" {
		return nil
	}
	if i := im.byID[name]; i != nil {
		return i
	}
	if i := im.byID["sha256:"+name]; i != nil {
		return i
	}
	full := normalizeImage(name)
	for _, i := range im.byID {
		if slices.Contains(i.tags, full) || slices.Contains(i.digests, full) {
			return i
		}
	}
	return nil
}

// Names returns the names of the images in the store, sorted.
func (im *Images) Names() []string {
	im.mu.Lock()
	defer im.mu.Unlock()
	var names []string
	for _, i := range im.byID {
		names = append(names, i.tags...)
		if len(i.tags) == 0 {
			names = append(names, i.digests...)
		}
	}
	slices.Sort(names)
	return names
}

// ListImages returns all images: like containerd it ignores the filter.
func (s *imageService) ListImages(context.Context, *runtimeapi.ListImagesRequest) (*runtimeapi.ListImagesResponse, error) {
	s.images.mu.Lock()
	defer s.images.mu.Unlock()
	resp := &runtimeapi.ListImagesResponse{}
	for _, id := range slices.Sorted(maps.Keys(s.images.byID)) {
		resp.Images = append(resp.Images, s.images.byID[id].message())
	}
	return resp, nil
}

func (s *imageService) ImageStatus(_ context.Context, req *runtimeapi.ImageStatusRequest) (*runtimeapi.ImageStatusResponse, error) {
	s.images.mu.Lock()
	defer s.images.mu.Unlock()
	i := s.images.find(req.GetImage().GetImage())
	if i == nil {
		return &runtimeapi.ImageStatusResponse{}, nil
	}
	resp := &runtimeapi.ImageStatusResponse{Image: i.message()}
	if req.Verbose {
		resp.Info = map[string]string{"info": "{}"}
	}
	return resp, nil
}

func (s *imageService) PullImage(ctx context.Context, req *runtimeapi.PullImageRequest) (*runtimeapi.PullImageResponse, error) {
	full := normalizeImage(req.GetImage().GetImage())
	s.images.mu.Lock()
	remote, ok := s.images.registry[full]
	s.images.mu.Unlock()
	if !ok {
		return nil, status.Errorf(codes.NotFound, "failed to pull and unpack image %q: failed to resolve image: %s: not found", full, full)
	}
	if remote.Latency > 0 {
		timer := time.NewTimer(remote.Latency)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-s.done:
			return nil, errShutdown
		case <-ctx.Done():
			return nil, status.FromContextError(ctx.Err()).Err()
		}
	}
	if remote.Err != nil {
		return nil, remote.Err
	}
	if remote.Authorize != nil {
		if err := remote.Authorize(proto.CloneOf(req.Auth)); err != nil {
			return nil, err
		}
	}
	s.images.mu.Lock()
	defer s.images.mu.Unlock()
	return &runtimeapi.PullImageResponse{ImageRef: s.images.addPulled(remote.Image).id}, nil
}

func (s *imageService) RemoveImage(_ context.Context, req *runtimeapi.RemoveImageRequest) (*runtimeapi.RemoveImageResponse, error) {
	s.images.mu.Lock()
	defer s.images.mu.Unlock()
	if i := s.images.find(req.GetImage().GetImage()); i != nil {
		delete(s.images.byID, i.id)
	}
	return &runtimeapi.RemoveImageResponse{}, nil
}

func (s *imageService) ImageFsInfo(context.Context, *runtimeapi.ImageFsInfoRequest) (*runtimeapi.ImageFsInfoResponse, error) {
	s.images.mu.Lock()
	defer s.images.mu.Unlock()
	usage := diskUsage(time.Now().UnixNano())
	for _, i := range s.images.byID {
		usage.UsedBytes.Value += i.Size
	}
	return &runtimeapi.ImageFsInfoResponse{
		ImageFilesystems:     []*runtimeapi.FilesystemUsage{usage},
		ContainerFilesystems: []*runtimeapi.FilesystemUsage{proto.CloneOf(usage)},
	}, nil
}
