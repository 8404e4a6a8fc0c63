package embedded

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	contentapi "github.com/containerd/containerd/api/services/content/v1"
	imagesapi "github.com/containerd/containerd/api/services/images/v1"
	"github.com/containerd/containerd/api/types"
	transfertypes "github.com/containerd/containerd/api/types/transfer"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"berth/internal/checkpoint"
	"berth/internal/health"
)

// A reset containerd has no images. Their content is moved aside before the reset, and imported
// under the names of the image list afterwards: images that were imported by hand, or cannot be
// pulled any more, survive the loss of a database. Content is verified against its digest.

// Recovery is the result of recovering a damaged containerd store.
type Recovery struct {
	Version int       `json:"version"`
	Time    time.Time `json:"time"`
	// Reason names the damaged file.
	Reason string `json:"reason"`
	// Restored counts restored image names.
	Restored int `json:"restored"`
	// Lost are images that must be pulled or imported again.
	Lost []LostImage `json:"lost,omitempty"`
	// Waiting are images with intact content that containerd has not accepted yet.
	Waiting []LostImage `json:"waiting,omitempty"`
}

type LostImage struct {
	Name string `json:"name"`
	Why  string `json:"why"`
}

const recoveryVersion = 1

// String returns a summary of restored and lost images.
func (r Recovery) String() string {
	s := fmt.Sprintf("%s; %d images are restored", r.Reason, r.Restored)
	for _, l := range r.Lost {
		s += fmt.Sprintf("; image %s is lost (%s)", l.Name, l.Why)
	}
	for _, l := range r.Waiting {
		s += fmt.Sprintf("; image %s is not restored yet (%s)", l.Name, l.Why)
	}
	return s
}

// salvaged lists the images to be restored, in a file beside the content.
type salvaged struct {
	Version int           `json:"version"`
	Reason  string        `json:"reason"`
	Images  []listedImage `json:"images"`
}

// imageStore restores the images of a damaged containerd store.
type imageStore struct {
	paths  paths
	log    *slog.Logger
	notify func(Recovery) // may be nil

	mu       sync.Mutex
	recovery *Recovery // guarded by mu; the last one, nil if there was none
}

// salvage moves image content aside. Content of an interrupted restoration is retained.
func (r *imageStore) salvage(why error) error {
	p := r.paths
	if err := os.MkdirAll(p.store.salvage, 0o700); err != nil {
		return err
	}
	images, err := readImageList(p.imageList)
	if err != nil {
		r.log.Warn("The names of images are lost", "err", err)
	}
	before, err := readSalvaged(p)
	if err != nil {
		r.log.Warn("The names of images are lost", "err", err)
	}
	for _, old := range before.Images {
		if !slices.ContainsFunc(images, func(i listedImage) bool { return i.Name == old.Name }) {
			images = append(images, old)
		}
	}
	// Names first: content without them is useless.
	if err := writeJSON(p.store.salvagedImages, salvaged{Version: imageListVersion, Reason: why.Error(), Images: images}); err != nil {
		return err
	}
	var errs []error
	errs = append(errs, eachEntry(string(p.store.blobs), func(path string) {
		if fi, err := os.Lstat(path); err == nil && fi.Mode().IsRegular() {
			errs = append(errs, os.Rename(path, filepath.Join(p.store.salvage, filepath.Base(path))))
		}
	}))
	if err := errors.Join(errs...); err != nil {
		r.log.Warn("The content of images is lost", "err", err)
	}
	return nil
}

func readSalvaged(p paths) (s salvaged, err error) {
	err = checkpoint.Read(p.store.salvagedImages, "names of images", func(b []byte) error { return json.Unmarshal(b, &s) })
	return s, err
}

// restoreTimeout bounds the restoration of one image.
const restoreTimeout = 30 * time.Minute

// restore makes containerd import the salvaged images. A failed image is not an error, unless
// containerd has exited: the next start retries rejected images.
func (r *imageStore) restore(ctx context.Context, snapshotter string) error {
	p := r.paths
	if _, err := os.Lstat(p.store.salvage); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	from, err := readSalvaged(p)
	if err != nil {
		r.log.Warn("The names of images are lost", "err", err)
	}
	conn, err := dial(p.socket)
	if err != nil {
		return err
	}
	defer conn.Close()
	i := &Images{paths: p, conn: conn, snapshotter: snapshotter}
	done := Recovery{Version: recoveryVersion, Time: time.Now(), Reason: from.Reason}
	waiting := []listedImage{}
	for _, image := range from.Images {
		began := time.Now()
		fresh, err := i.restore(ctx, contentFolder(p.store.salvage), image)
		switch {
		case err == nil:
			if fresh {
				done.Restored++
				r.log.Info("Restored an image", "image", image.Name, "took", time.Since(began).Round(time.Millisecond))
			}
		case errors.Is(err, errContent):
			r.log.Error("An image is lost: pull or import it again", "image", image.Name, "err", err)
			done.Lost = append(done.Lost, LostImage{image.Name, err.Error()})
		default:
			if ended := r.checkServing(ctx, conn); ended != nil {
				return fmt.Errorf("restore image %s: %w", image.Name, errors.Join(err, ended))
			}
			r.log.Error("An image is not restored; the next start tries it again", "image", image.Name, "content", p.store.salvage, "err", err)
			done.Waiting, waiting = append(done.Waiting, LostImage{image.Name, err.Error()}), append(waiting, image)
		}
	}
	if len(waiting) > 0 {
		err = writeJSON(p.store.salvagedImages, salvaged{Version: imageListVersion, Reason: from.Reason, Images: waiting})
	} else {
		err = os.RemoveAll(p.store.salvage)
	}
	if err != nil {
		r.log.Warn("What was salvaged of the store of containerd is not removed", "folder", p.store.salvage, "err", err)
	}
	r.recovered(done)
	return nil
}

// checkServing returns an error if containerd does not respond.
func (r *imageStore) checkServing(ctx context.Context, conn *grpc.ClientConn) error {
	ctx, cancel := context.WithTimeoutCause(ctx, adoptTimeout, errors.New("containerd does not answer"))
	defer cancel()
	return awaitReady(ctx, conn)
}

// recovered logs, persists and notifies a recovery.
func (r *imageStore) recovered(done Recovery) {
	r.log.Warn("The store of containerd was damaged, and is recovered", "recovery", done.String())
	if err := errors.Join(os.MkdirAll(r.paths.store.corrupt, 0o700), writeJSON(r.paths.store.recovery, done)); err != nil {
		r.log.Warn("The report about the store of containerd is not kept", "err", err)
	}
	r.mu.Lock()
	r.recovery = &done
	r.mu.Unlock()
	if r.notify != nil {
		r.notify(done)
	}
}

// readRecovery reads the persisted recovery report.
func (r *imageStore) readRecovery() {
	var done Recovery
	switch err := readJSON(r.paths.store.recovery, &done); {
	case err == nil && done.Version == recoveryVersion:
		r.mu.Lock()
		r.recovery = &done
		r.mu.Unlock()
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		r.log.Warn("The report about the store of containerd cannot be read", "err", err)
	}
}

// StoreHealth returns an error with the images lost in a damaged containerd store, as long as the
// report file exists; nil if there are none.
func (r *Runtime) StoreHealth() error { return r.images.health() }

// health implements Runtime.StoreHealth.
func (r *imageStore) health() error {
	r.mu.Lock()
	done := r.recovery
	r.mu.Unlock()
	if done == nil || len(done.Lost)+len(done.Waiting) == 0 {
		return nil
	}
	if _, err := os.Lstat(r.paths.store.recovery); err != nil {
		return nil //nolint:nilerr // it was removed
	}
	return health.Since(fmt.Errorf("%s (when you have pulled or imported what you need, remove %s)", done, r.paths.store.recovery), done.Time)
}

// restore imports one image, unless containerd has one of its name; fresh reports an import.
func (i *Images) restore(ctx context.Context, from contentFolder, image listedImage) (fresh bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, restoreTimeout)
	defer cancel()
	images := imagesapi.NewImagesClient(i.conn)
	_, err = images.Get(inPods(ctx), &imagesapi.GetImageRequest{Name: image.Name})
	if status.Code(err) != codes.NotFound {
		return false, err
	}
	all, problems := from.image(archiveDescriptor{Digest: image.Target.Digest, Size: image.Target.Size})
	if len(problems) > 0 {
		return false, problems[0].err
	}
	// Verify before sending: containerd retains the received content of an interrupted import, and
	// a later import continues it.
	for _, file := range all {
		if err := file.verify(); err != nil {
			return false, err
		}
	}
	platform := &types.Platform{OS: "linux", Architecture: runtime.GOARCH}
	// Without a name, so that containerd does not derive other names from that in the list.
	destination, err := packed(&transfertypes.ImageStore{
		Platforms: []*types.Platform{platform}, ManifestLimit: 1,
		Unpacks: []*transfertypes.UnpackConfiguration{{Platform: platform, Snapshotter: i.snapshotter}},
	})
	if err != nil {
		return false, err
	}
	archive, write := io.Pipe()
	go func() { _ = write.CloseWithError(writeArchive(write, image.Target, all)) }() // always nil
	defer archive.Close()
	content, err := openArchive(archive)
	if err != nil {
		return false, err
	}
	defer content.close()
	err = leased(ctx, i.conn, func(ctx context.Context) error {
		_, err := i.receive(ctx, content, destination, func(Progress) {})
		if err == nil {
			_, err = io.Copy(io.Discard, content) // the padding
		}
		if err != nil {
			return err
		}
		_, err = images.Create(inPods(ctx), &imagesapi.CreateImageRequest{Image: &imagesapi.Image{Name: image.Name, Target: &types.Descriptor{
			MediaType: image.Target.MediaType, Digest: image.Target.Digest, Size: image.Target.Size, Annotations: image.Target.Annotations,
		}}})
		if status.Code(err) == codes.AlreadyExists {
			return nil
		}
		return err
	})
	if err != nil {
		return false, err
	}
	entering, cancelEntering := context.WithTimeout(ctx, time.Minute)
	defer cancelEntering()
	return true, awaitEntered(entering, i.conn, image.Name, "")
}

// damagedImages are images with a damaged index, manifest or configuration. containerd treats the
// content as present while it is in its database, however often the image is pulled.
type damagedImages struct {
	digests []string // of the content
	targets map[string]LostImage
}

// findDamaged checks image content before containerd is started. Damaged documents are removed. A
// damaged layer is only logged: it was unpacked.
func (r *imageStore) findDamaged() damagedImages {
	images, err := readImageList(r.paths.imageList)
	if err != nil {
		r.log.Warn("Rewriting a damaged file of the runtime", "err", err)
	}
	found := damagedImages{targets: map[string]LostImage{}}
	seen := map[string]bool{}
	for _, image := range images {
		if seen[image.Target.Digest] {
			continue
		}
		seen[image.Target.Digest] = true
		_, problems := r.paths.store.blobs.image(archiveDescriptor{Digest: image.Target.Digest, Size: image.Target.Size})
		for _, p := range problems {
			if !p.blob.document {
				r.log.Warn("A layer of an image is damaged; its containers start from what was unpacked", "image", image.Name, "err", p.err)
				continue
			}
			if err := os.RemoveAll(p.blob.file); err != nil {
				r.log.Warn("Damaged content of an image is not removed", "image", image.Name, "err", err)
			}
			found.digests = append(found.digests, p.blob.digest)
			found.targets[image.Target.Digest] = LostImage{image.Name, p.err.Error()}
		}
	}
	return found
}

// removeDamaged deletes images and their damaged content from containerd, so that they can be
// pulled, imported or loaded again.
func (r *imageStore) removeDamaged(ctx context.Context, d damagedImages, bundled []bundledImage) error {
	if len(d.digests) == 0 {
		return nil
	}
	conn, err := dial(r.paths.socket)
	if err != nil {
		return err
	}
	defer conn.Close()
	images := imagesapi.NewImagesClient(conn)
	got, err := images.List(inPods(ctx), &imagesapi.ListImagesRequest{}, grpc.MaxCallRecvMsgSize(maxAnswer))
	if err != nil {
		return fmt.Errorf("list images: %w", err)
	}
	done := Recovery{Version: recoveryVersion, Time: time.Now()}
	var names []string
	for _, image := range got.GetImages() {
		lost, is := d.targets[image.GetTarget().GetDigest()]
		if !is {
			continue
		}
		names = append(names, image.GetName())
		inBundle := slices.ContainsFunc(bundled, func(b bundledImage) bool { return b.Name == image.GetName() })
		switch {
		case strings.HasPrefix(image.GetName(), "sha256:"):
		case inBundle:
			r.log.Warn("An image is loaded again, as its content is damaged", "image", image.GetName(), "err", lost.Why)
		default:
			r.log.Error("An image is removed, as its content is damaged: pull or import it again", "image", image.GetName(), "err", lost.Why)
			done.Reason = lost.Why
			done.Lost = append(done.Lost, LostImage{image.GetName(), lost.Why})
		}
	}
	for _, digest := range d.digests {
		_, err := contentapi.NewContentClient(conn).Delete(inPods(ctx), &contentapi.DeleteContentRequest{Digest: digest})
		if err != nil && status.Code(err) != codes.NotFound {
			return fmt.Errorf("remove content %s: %w", digest, err)
		}
	}
	for k, name := range names {
		// The last deletion waits for the garbage collection of unreferenced content: there may be
		// damaged layers.
		last := k == len(names)-1
		_, err := images.Delete(inPods(ctx), &imagesapi.DeleteImageRequest{Name: name, Sync: last})
		if err != nil && status.Code(err) != codes.NotFound {
			return fmt.Errorf("remove image %s: %w", name, err)
		}
	}
	if len(done.Lost) > 0 {
		r.recovered(done)
	}
	return nil
}
