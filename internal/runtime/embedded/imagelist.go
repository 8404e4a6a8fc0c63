package embedded

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"time"

	eventsapi "github.com/containerd/containerd/api/services/events/v1"
	imagesapi "github.com/containerd/containerd/api/services/images/v1"
	"golang.org/x/sync/semaphore"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	"berth/internal/checkpoint"
)

// containerd stores image names only in its database. The image list, outside of containerd's
// directory, stores them too, so that images survive the loss of the database while their content
// is intact.

// listedImage is one image name and its target.
type listedImage struct {
	Name   string          `json:"name"`
	Target imageDescriptor `json:"target"`
}

// imageDescriptor is a content descriptor of the OCI image specification.
type imageDescriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Size        int64             `json:"size"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

// imageList is the content of the image list file.
type imageList struct {
	Version int           `json:"version"`
	Images  []listedImage `json:"images"` // by name
}

const imageListVersion = 1

// readImageList returns the images of a list. A missing file lists none; an unreadable one is set
// aside, which the error reports.
func readImageList(file string) ([]listedImage, error) {
	var l imageList
	err := checkpoint.Read(file, "names of images", func(b []byte) error {
		if err := json.Unmarshal(b, &l); err != nil {
			return err
		}
		if l.Version != imageListVersion {
			return checkpoint.UnknownVersion(l.Version, imageListVersion)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return l.Images, nil
}

// writeImageList replaces the list if it differs.
func writeImageList(file string, images []listedImage) error {
	return writeJSON(file, imageList{Version: imageListVersion, Images: images})
}

// listImages returns containerd's images by name, without the names by ID that CRI adds.
func listImages(ctx context.Context, conn grpc.ClientConnInterface) ([]listedImage, error) {
	got, err := imagesapi.NewImagesClient(conn).List(inPods(ctx), &imagesapi.ListImagesRequest{}, grpc.MaxCallRecvMsgSize(maxAnswer))
	if err != nil {
		return nil, errors.New("list images: " + status.Convert(err).Message())
	}
	var images []listedImage
	for _, image := range got.GetImages() {
		if t := image.GetTarget(); !strings.HasPrefix(image.GetName(), "sha256:") {
			images = append(images, listedImage{image.GetName(), imageDescriptor{t.GetMediaType(), t.GetDigest(), t.GetSize(), t.GetAnnotations()}})
		}
	}
	slices.SortFunc(images, func(a, b listedImage) int { return strings.Compare(a.Name, b.Name) })
	return images, nil
}

const (
	// listDelay is the delay between an image change and the update of the list: a pull makes
	// several changes.
	listDelay = time.Second
	// listRetry is the delay before a broken subscription is renewed.
	listRetry = time.Second
)

// follow updates the image list when containerd reports changes. The semaphore excludes starts of
// containerd.
func (r *imageStore) follow(ctx context.Context, starts *semaphore.Weighted) {
	last := ""
	for ctx.Err() == nil {
		err := r.followOnce(ctx, starts)
		if ctx.Err() == nil && err != nil && err.Error() != last { // once per cause
			last = err.Error()
			r.log.Debug("The list of images is not updated; it is tried again", "err", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(listRetry):
		}
	}
}

// followOnce follows until the subscription fails, such as when containerd exits.
func (r *imageStore) followOnce(ctx context.Context, starts *semaphore.Weighted) error {
	conn, err := dial(r.paths.socket)
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stream, err := eventsapi.NewEventsClient(conn).Subscribe(ctx, &eventsapi.SubscribeRequest{
		Filters: []string{`namespace==` + podNamespace + `,topic~="^/images/"`},
	}, grpc.WaitForReady(true))
	if err != nil {
		return err
	}
	changed := make(chan struct{}, 1)
	changed <- struct{}{} // changes before the subscription
	ended := make(chan struct{})
	defer func() { cancel(nil); <-ended }()
	go func() {
		defer close(ended)
		for {
			if _, err := stream.Recv(); err != nil {
				cancel(err)
				return
			}
			select {
			case changed <- struct{}{}:
			default:
			}
		}
	}()
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-changed:
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(listDelay):
		}
		select {
		case <-changed: // before the list is read
		default:
		}
		if err := r.update(ctx, conn, starts); err != nil {
			return err
		}
	}
}

// update writes the current image list. It excludes a concurrent start of containerd, which may
// replace the database.
func (r *imageStore) update(ctx context.Context, conn grpc.ClientConnInterface, starts *semaphore.Weighted) error {
	if err := starts.Acquire(ctx, 1); err != nil {
		return err
	}
	defer starts.Release(1)
	images, err := listImages(ctx, conn)
	if err != nil {
		return err
	}
	return writeImageList(r.paths.imageList, images)
}
