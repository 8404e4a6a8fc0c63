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

	streamingapi "github.com/containerd/containerd/api/services/streaming/v1"
	transferapi "github.com/containerd/containerd/api/services/transfer/v1"
	"github.com/containerd/containerd/api/types"
	transfertypes "github.com/containerd/containerd/api/types/transfer"
	"github.com/distribution/reference"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/anypb"
)

// Images are the images of an embedded runtime that runs, through containerd's own API: it tells
// how far a pull is and takes archives, both of which CRI does not. What it brings is shown by CRI
// when a method returns.
type Images struct {
	paths       paths
	conn        *grpc.ClientConn
	snapshotter string
}

// OpenImages connects to the runtime of an agent's directories at the first call.
func OpenImages(rootDir, runDir string) (*Images, error) {
	p := paths{root: rootDir, run: runDir}
	conn, err := dial(p.socket())
	if err != nil {
		return nil, fmt.Errorf("embedded runtime: %w", err)
	}
	i := &Images{paths: p, conn: conn, snapshotter: "overlayfs"}
	if tryOverlay(p.home()) != nil {
		i.snapshotter = "native"
	}
	return i, nil
}

// Close ends the connection.
func (i *Images) Close() error { return i.conn.Close() }

// Progress is how far one part of a pull or an import is.
type Progress struct {
	// Event is containerd's word for what happens: "waiting", "downloading", "complete",
	// "extracting", "saved".
	Event string
	// Name is the part's, or for "saved" the image's.
	Name string
	// Done and Total are in bytes; Total 0 is not known.
	Done, Total int64
	// Digest is that of the content, when there is one.
	Digest string
}

// Credential is what a registry is shown: user and password, or a token alone.
type Credential struct {
	Username, Password, Token string
}

// Pull pulls the image of a full reference ("docker.io/library/nginx:1"), anonymously when
// credential is nil. progress is called from one goroutine, and not after Pull has returned.
func (i *Images) Pull(ctx context.Context, image reference.Named, credential *Credential, progress func(Progress)) error {
	platform := &types.Platform{OS: "linux", Architecture: runtime.GOARCH}
	destination, err := packed(&transfertypes.ImageStore{
		Name: image.String(), Platforms: []*types.Platform{platform},
		Unpacks: []*transfertypes.UnpackConfiguration{{Platform: platform, Snapshotter: i.snapshotter}},
		// The name by digest is what CRI tells the image's digest from.
		ExtraReferences: []*transfertypes.ImageReference{{Name: image.Name(), IsPrefix: true, AddDigest: true}},
	})
	if err != nil {
		return err
	}
	err = leased(ctx, i.conn, func(ctx context.Context) error {
		resolver := &transfertypes.RegistryResolver{HostDir: i.paths.registriesFor(reference.Domain(image))}
		// Streams end with the transfer.
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

// unnamed is the repository of imported images that their archive names by a tag alone.
const unnamed = "localhost/imported"

// Import imports the images of an OCI or docker archive under the names that they have in it, and
// returns those. progress is as for Pull.
func (i *Images) Import(ctx context.Context, archive io.Reader, progress func(Progress)) ([]string, error) {
	platform := &types.Platform{OS: "linux", Architecture: runtime.GOARCH}
	destination, err := packed(&transfertypes.ImageStore{
		Platforms:       []*types.Platform{platform},
		Unpacks:         []*transfertypes.UnpackConfiguration{{Platform: platform, Snapshotter: i.snapshotter}},
		ExtraReferences: []*transfertypes.ImageReference{{Name: unnamed, IsPrefix: true, AllowOverwrite: true}},
	})
	if err != nil {
		return nil, err
	}
	var names []string
	err = leased(ctx, i.conn, func(ctx context.Context) error {
		ctx, cancel := context.WithCancel(inPods(ctx))
		defer cancel()
		name := rand.Text()
		source, err := packed(&transfertypes.ImageImportStream{Stream: name})
		if err != nil {
			return err
		}
		stream, err := openStream(ctx, i.conn, name)
		if err != nil {
			return err
		}
		sent := make(chan error, 1)
		go func() { sent <- sendStream(stream, archive) }()
		err = i.transfer(ctx, source, destination, func(p Progress) {
			if p.Event == "saved" {
				names = append(names, p.Name)
			}
			progress(p)
		})
		// containerd may have read all that it needs before all was sent.
		cancel()
		if serr := <-sent; err != nil && status.Code(serr) != codes.Canceled {
			err = errors.Join(err, serr)
		}
		return err
	})
	for _, name := range names {
		if err == nil {
			err = awaitEntered(ctx, i.conn, name, "")
		}
	}
	if err != nil {
		return nil, fmt.Errorf("import: %w", err)
	}
	return names, nil
}

// transfer runs a transfer and hands over its progress.
func (i *Images) transfer(ctx context.Context, source, destination *anypb.Any, progress func(Progress)) error {
	name := rand.Text()
	stream, err := openStream(ctx, i.conn, name)
	if err != nil {
		return err
	}
	told := make(chan struct{})
	go func() {
		defer close(told)
		for {
			got, err := stream.Recv()
			if err != nil {
				return // the end of the transfer is what its call returns
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
	select { // containerd closes the stream behind the last message
	case <-told:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	return nil
}

// answerAuth answers each question for a credential until the stream ends.
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
		said, err := packed(answer)
		if err != nil || stream.Send(said) != nil {
			return
		}
	}
}

// registryFolders are those that containerd's configuration names, in this order.
func (p paths) registryFolders() []string {
	return []string{p.registries(), "/etc/containerd/certs.d", "/etc/docker/certs.d"}
}

// registriesFor returns the folder that says how the registry is reached. A transfer takes one
// alone.
func (p paths) registriesFor(registry string) string {
	for _, dir := range p.registryFolders() {
		for _, name := range []string{registry, strings.Replace(registry, ":", "_", 1) + "_", "_default"} {
			if fi, err := os.Stat(filepath.Join(dir, name)); err == nil && fi.IsDir() {
				return dir
			}
		}
	}
	return p.registries()
}
