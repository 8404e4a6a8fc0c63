package embedded

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	imagesapi "github.com/containerd/containerd/api/services/images/v1"
	streamingapi "github.com/containerd/containerd/api/services/streaming/v1"
	transferapi "github.com/containerd/containerd/api/services/transfer/v1"
	"github.com/containerd/containerd/api/types"
	transfertypes "github.com/containerd/containerd/api/types/transfer"
	"github.com/distribution/reference"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/anypb"

	"berth/internal/host/preflight"
)

// Images accesses the images of a running embedded runtime through containerd's own API, which
// reports pull progress and imports archives; CRI does neither. When a method returns, CRI lists
// the new images.
type Images struct {
	paths       paths
	conn        *grpc.ClientConn
	snapshotter string
}

// OpenImages returns Images for an agent's directories. It connects lazily.
func OpenImages(rootDir, runDir string) (*Images, error) {
	p := newPaths(rootDir, runDir)
	conn, err := dial(p.socket)
	if err != nil {
		return nil, fmt.Errorf("embedded runtime: %w", err)
	}
	i := &Images{paths: p, conn: conn, snapshotter: "overlayfs"}
	if preflight.TryOverlay(p.store.dir) != nil {
		i.snapshotter = "native"
	}
	return i, nil
}

// Close closes the connection.
func (i *Images) Close() error { return i.conn.Close() }

// Progress is the progress of one part of a pull or an import.
type Progress struct {
	// Event is containerd's name of the event: "waiting", "downloading", "complete", "extracting",
	// "saved".
	Event string
	// Name is the name of the part, or for "saved" of the image.
	Name string
	// Done and Total are in bytes; a Total of 0 is unknown.
	Done, Total int64
	// Digest is the digest of the content, if there is one.
	Digest string
}

// Credential is a registry credential: user and password, or a token only.
type Credential struct {
	Username, Password, Token string
}

// Pull pulls the image of a full reference ("docker.io/library/nginx:1"), anonymously if credential
// is nil. progress is called from one goroutine, and not after Pull has returned.
func (i *Images) Pull(ctx context.Context, image reference.Named, credential *Credential, progress func(Progress)) error {
	platform := &types.Platform{OS: "linux", Architecture: runtime.GOARCH}
	destination, err := packed(&transfertypes.ImageStore{
		Name: image.String(), Platforms: []*types.Platform{platform},
		Unpacks: []*transfertypes.UnpackConfiguration{{Platform: platform, Snapshotter: i.snapshotter}},
		// CRI derives the image's digest from the name by digest.
		ExtraReferences: []*transfertypes.ImageReference{{Name: image.Name(), IsPrefix: true, AddDigest: true}},
	})
	if err != nil {
		return err
	}
	err = leased(ctx, i.conn, func(ctx context.Context) error {
		resolver := &transfertypes.RegistryResolver{HostDir: registriesFor(i.paths.registries, reference.Domain(image))}
		// Streams terminate with the transfer.
		ctx, cancel := context.WithCancel(inPods(ctx))
		defer cancel()
		if credential != nil {
			resolver.AuthStream = rand.Text()
			stream, err := openStream(ctx, i.conn, resolver.AuthStream)
			if err != nil {
				return err
			}
			go answerAuth(stream, credential)
		}
		source, err := packed(&transfertypes.OCIRegistry{Reference: image.String(), Resolver: resolver})
		if err != nil {
			return err
		}
		return i.transfer(ctx, source, destination, progress)
	})
	if err == nil {
		err = awaitEntered(ctx, i.conn, image.String(), "")
	}
	if err != nil {
		return fmt.Errorf("pull %s: %w", image, err)
	}
	return nil
}

// unnamed is the repository of imported images that have only a tag in their archive.
const unnamed = "localhost/imported"

// Imported is an imported image.
type Imported struct {
	Name string
	// Digest is its manifest's digest, by which it can be referenced as well; "" for Docker
	// archives without OCI layout, which have no registry manifests.
	Digest string
}

// Import imports the images of an OCI or Docker archive under their names in the archive, and
// returns them. Images of OCI archives also get a name by digest, as if pulled. An archive with an
// image for other platforms only is rejected. progress is as for Pull.
func (i *Images) Import(ctx context.Context, archive io.Reader, progress func(Progress)) ([]Imported, error) {
	imported, err := i.importArchive(ctx, archive, progress)
	if err != nil {
		return nil, fmt.Errorf("import: %w", err)
	}
	return imported, nil
}

func (i *Images) importArchive(ctx context.Context, archive io.Reader, progress func(Progress)) ([]Imported, error) {
	platform := &types.Platform{OS: "linux", Architecture: runtime.GOARCH}
	destination, err := packed(&transfertypes.ImageStore{
		Platforms:       []*types.Platform{platform},
		Unpacks:         []*transfertypes.UnpackConfiguration{{Platform: platform, Snapshotter: i.snapshotter}},
		ExtraReferences: []*transfertypes.ImageReference{{Name: unnamed, IsPrefix: true, AllowOverwrite: true}},
	})
	if err != nil {
		return nil, err
	}
	content, err := openArchive(archive)
	if err != nil {
		return nil, err
	}
	defer content.close()
	var imported []Imported
	var names []string
	err = leasedImport(ctx, i.conn, func(ctx context.Context) error {
		imported, err = i.receive(ctx, content, destination, progress)
		if err == nil {
			// containerd stops at the end of the archive, and its contents are known only after the
			// trailing padding was read.
			_, err = io.Copy(io.Discard, content)
		}
		if err == nil && len(imported) == 0 {
			err = errors.New("no image of the archive has a name (save it by its name and tag, not by its id)")
		}
		if err != nil {
			return err
		}
		for k := range imported {
			names = append(names, imported[k].Name)
			if !content.contents.layout {
				imported[k].Digest = "" // of a manifest that containerd generated
			} else if by, err := i.nameByDigest(ctx, imported[k]); err != nil {
				return err
			} else if by != "" {
				names = append(names, by)
			}
		}
		return nil
	})
	for _, name := range names {
		if err == nil {
			err = awaitEntered(ctx, i.conn, name, "")
		}
	}
	return imported, err
}

// receive streams an archive to containerd.
func (i *Images) receive(ctx context.Context, archive *archiveReader, destination *anypb.Any, progress func(Progress)) ([]Imported, error) {
	ctx, cancel := context.WithCancelCause(inPods(ctx))
	defer cancel(nil)
	name := rand.Text()
	source, err := packed(&transfertypes.ImageImportStream{Stream: name})
	if err != nil {
		return nil, err
	}
	stream, err := openStream(ctx, i.conn, name)
	if err != nil {
		return nil, err
	}
	sent := make(chan error, 1)
	go func() {
		err := sendStream(stream, archive)
		if archive.err != nil && !errors.Is(archive.err, io.EOF) {
			cancel(archive.err) // otherwise containerd waits for the rest
		}
		sent <- err
	}()
	var imported []Imported
	err = i.transfer(ctx, source, destination, func(p Progress) {
		if p.Event == "saved" {
			imported = append(imported, Imported{Name: p.Name, Digest: p.Digest})
		}
		progress(p)
	})
	// containerd may have read all that it needs before everything was sent.
	cancel(nil)
	serr := <-sent
	if archive.err != nil && !errors.Is(archive.err, io.EOF) {
		return nil, archive.err
	}
	if err != nil && status.Code(serr) != codes.Canceled {
		err = errors.Join(err, serr)
	}
	return imported, err
}

// nameByDigest gives an image the name by digest that a pull would give it, and returns it; "" if
// its name has no repository.
func (i *Images) nameByDigest(ctx context.Context, image Imported) (string, error) {
	ref, err := reference.ParseNormalizedNamed(image.Name)
	if err != nil || image.Digest == "" {
		return "", nil
	}
	name := reference.TrimNamed(ref).String() + "@" + image.Digest
	images := imagesapi.NewImagesClient(i.conn)
	got, err := images.Get(inPods(ctx), &imagesapi.GetImageRequest{Name: image.Name})
	if err == nil {
		_, err = images.Create(inPods(ctx), &imagesapi.CreateImageRequest{Image: &imagesapi.Image{Name: name, Target: got.Image.GetTarget()}})
	}
	if err != nil && status.Code(err) != codes.AlreadyExists {
		return "", fmt.Errorf("name image %s: %s", name, status.Convert(err).Message())
	}
	return name, nil
}

// transfer runs a transfer and reports its progress.
func (i *Images) transfer(ctx context.Context, source, destination *anypb.Any, progress func(Progress)) error {
	name := rand.Text()
	stream, err := openStream(ctx, i.conn, name)
	if err != nil {
		return err
	}
	received := make(chan struct{})
	go func() {
		defer close(received)
		for {
			got, err := stream.Recv()
			if err != nil {
				return // Transfer returns the result
			}
			var p transfertypes.Progress
			if unpackedInto(got, &p) == nil {
				progress(Progress{Event: p.Event, Name: p.Name, Done: p.Progress, Total: p.Total, Digest: p.GetDesc().GetDigest()})
			}
		}
	}()
	_, err = transferapi.NewTransferClient(i.conn).Transfer(ctx, &transferapi.TransferRequest{
		Source: source, Destination: destination, Options: &transferapi.TransferOptions{ProgressStream: name},
	})
	if err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return errors.New(status.Convert(err).Message())
	}
	select { // containerd closes the stream after the last message
	case <-received:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	return nil
}

// answerAuth answers credential requests until the stream is closed.
func answerAuth(stream streamingapi.Streaming_StreamClient, c *Credential) {
	for {
		got, err := stream.Recv()
		var question transfertypes.AuthRequest
		if err != nil || unpackedInto(got, &question) != nil {
			return
		}
		answer := &transfertypes.AuthResponse{AuthType: transfertypes.AuthType_CREDENTIALS, Username: c.Username, Secret: c.Password}
		if c.Token != "" {
			answer = &transfertypes.AuthResponse{AuthType: transfertypes.AuthType_REFRESH, Secret: c.Token}
		}
		message, err := packed(answer)
		if err != nil || stream.Send(message) != nil {
			return
		}
	}
}

// registriesFor returns the first directory with the registry's configuration. A transfer accepts
// only one.
func registriesFor(dirs []string, registry string) string {
	for _, dir := range dirs {
		for _, name := range []string{registry, strings.Replace(registry, ":", "_", 1) + "_", "_default"} {
			if fi, err := os.Stat(filepath.Join(dir, name)); err == nil && fi.IsDir() {
				return dir
			}
		}
	}
	return dirs[0]
}
