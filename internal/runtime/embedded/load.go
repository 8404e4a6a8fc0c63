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
	"time"

	leasesapi "github.com/containerd/containerd/api/services/leases/v1"
	streamingapi "github.com/containerd/containerd/api/services/streaming/v1"
	transferapi "github.com/containerd/containerd/api/services/transfer/v1"
	"github.com/containerd/containerd/api/types"
	transfertypes "github.com/containerd/containerd/api/types/transfer"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

// loadTimeout bounds the import of the bundle's images, which takes minutes on slow or busy hosts.
const loadTimeout = 5 * time.Minute

// loadImages imports missing images of an unpacked bundle, and returns when CRI lists them.
func loadImages(ctx context.Context, socket, bundle, snapshotter string) error {
	ctx, cancel := context.WithTimeout(ctx, loadTimeout)
	defer cancel()
	m, err := readManifest(bundle)
	if err != nil {
		return err
	}
	conn, err := dial(socket)
	if err != nil {
		return err
	}
	defer conn.Close()
	for _, image := range m.Images {
		present, err := imagePresent(ctx, conn, image)
		if err != nil {
			return err
		}
		if !present {
			// containerd syncs its database, but not the layers: after a power failure it would
			// have an image with empty files, and no pod would start.
			err = leasedImport(ctx, conn, func(ctx context.Context) error {
				return importArchive(ctx, conn, filepath.Join(bundle, image.File), image, snapshotter)
			})
			if err == nil {
				err = syncFilesystem(bundle)
			}
		}
		if err == nil {
			err = awaitEntered(ctx, conn, image.Name, image.Digest)
		}
		if err != nil {
			return fmt.Errorf("load image %s: %w", image.Name, err)
		}
	}
	return nil
}

// awaitEntered waits until CRI, which is notified by an event, lists an imported image. It must not
// set CRI's labels: CRI takes an image with all of them for one that it added.
func awaitEntered(ctx context.Context, conn *grpc.ClientConn, name, digest string) error {
	retry := time.NewTicker(5 * time.Millisecond)
	defer retry.Stop()
	for {
		present, err := imageEntered(ctx, conn, name, digest)
		if present || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("imported, but CRI did not take it up: %w", ctx.Err())
		case <-retry.C:
		}
	}
}

// leased calls f with a lease. Without one, containerd's garbage collection, which runs soon after
// its start, may delete a stream between its announcement and the transfer.
func leased(ctx context.Context, conn grpc.ClientConnInterface, f func(ctx context.Context) error) error {
	return lease{conn: conn}.hold(ctx, f)
}

// leasedImport is leased for the import of an archive. containerd retains the received content of
// an interrupted import, and a later import of files with the same names would continue it,
// whatever their content: it is deleted with the lease, or here if the importing process was
// killed.
func leasedImport(ctx context.Context, conn grpc.ClientConnInterface, f func(ctx context.Context) error) error {
	leases := leasesapi.NewLeasesClient(conn)
	all, err := leases.List(inPods(ctx), &leasesapi.ListRequest{})
	if err != nil {
		return fmt.Errorf("list leases: %w", err)
	}
	for _, l := range all.GetLeases() {
		if of := l.GetLabels()[leaseImporter]; of == "" || runsStill(of) {
			continue
		}
		_, err := leases.Delete(inPods(ctx), &leasesapi.DeleteRequest{ID: l.GetID(), Sync: true})
		if err != nil && status.Code(err) != codes.NotFound {
			return fmt.Errorf("remove what is left of an import: %w", err)
		}
	}
	self, err := startTime("/proc", os.Getpid())
	if err != nil {
		return err
	}
	return lease{conn: conn, importer: fmt.Sprintf("%d %d", os.Getpid(), self)}.hold(ctx, f)
}

// runsStill reports whether an importer's process is running.
func runsStill(importer string) bool {
	var pid int
	var began uint64
	if _, err := fmt.Sscan(importer, &pid, &began); err != nil {
		return false
	}
	start, err := startTime("/proc", pid)
	return err == nil && start == began
}

type lease struct {
	conn     grpc.ClientConnInterface
	importer string // PID and start time of the process that imports an archive; else ""
}

func (l lease) hold(ctx context.Context, f func(ctx context.Context) error) error {
	leases := leasesapi.NewLeasesClient(l.conn)
	labels := map[string]string{
		leaseExpiry: time.Now().Add(leaseTime).UTC().Format(time.RFC3339), // in case this process exits before it releases the lease
	}
	if l.importer != "" {
		labels[leaseImporter] = l.importer
	}
	made, err := leases.Create(inPods(ctx), &leasesapi.CreateRequest{Labels: labels})
	if err != nil {
		return fmt.Errorf("make a lease: %w", err)
	}
	err = f(metadata.AppendToOutgoingContext(ctx, leaseHeader, made.Lease.ID))
	back := &leasesapi.DeleteRequest{ID: made.Lease.ID, Sync: err != nil && l.importer != ""}
	if _, isExited := leases.Delete(inPods(context.WithoutCancel(ctx)), back); isExited != nil {
		err = errors.Join(err, fmt.Errorf("give the lease back: %w", isExited))
	}
	return err
}

// Labels and the header of leases (containerd documentation, "Garbage Collection").
const (
	leaseExpiry   = "containerd.io/gc.expire"
	leaseImporter = "berth.dev/importer"
	leaseHeader   = "containerd-lease"
	leaseTime     = time.Hour
)

// importArchive sends an OCI archive to containerd's transfer service, which stores and unpacks the
// image under its name.
func importArchive(ctx context.Context, conn *grpc.ClientConn, archive string, image bundledImage, snapshotter string) error {
	f, err := os.Open(archive)
	if err != nil {
		return err
	}
	defer f.Close()

	repository, _, _ := strings.Cut(image.Name, ":")
	platform := &types.Platform{OS: "linux", Architecture: runtime.GOARCH}
	stream := rand.Text()
	source, err := packed(&transfertypes.ImageImportStream{Stream: stream})
	if err != nil {
		return err
	}
	destination, err := packed(&transfertypes.ImageStore{
		ExtraReferences: []*transfertypes.ImageReference{{Name: repository, IsPrefix: true}},
		Unpacks:         []*transfertypes.UnpackConfiguration{{Platform: platform, Snapshotter: snapshotter}},
	})
	if err != nil {
		return err
	}

	ctx, cancel := context.WithCancel(inPods(ctx))
	defer cancel()
	open, err := openStream(ctx, conn, stream)
	if err != nil {
		return err
	}
	sent := make(chan error, 1)
	go func() { sent <- sendStream(open, f) }()
	_, err = transferapi.NewTransferClient(conn).Transfer(ctx, &transferapi.TransferRequest{Source: source, Destination: destination})
	// containerd may have read all that it needs, the end of the archive's index, before everything
	// was sent.
	cancel()
	if serr := <-sent; err != nil {
		return errors.Join(err, serr)
	}
	return nil
}

// openStream announces a byte stream under a name that a transfer can refer to.
func openStream(ctx context.Context, conn *grpc.ClientConn, name string) (streamingapi.Streaming_StreamClient, error) {
	stream, err := streamingapi.NewStreamingClient(conn).Stream(ctx)
	if err != nil {
		return nil, fmt.Errorf("open stream: %w", err)
	}
	start, err := packed(&streamingapi.StreamInit{ID: name})
	if err != nil {
		return nil, err
	}
	if err := stream.Send(start); err != nil {
		return nil, fmt.Errorf("open stream: %w", err)
	}
	// The response confirms that the name is registered.
	if _, err := stream.Recv(); err != nil {
		return nil, fmt.Errorf("open stream: %w", err)
	}
	return stream, nil
}

// chunk is the maximum number of bytes per message.
const chunk = 32 << 10

// sendStream sends the content under the receiver's flow control: each window update allows that
// many more bytes.
func sendStream(stream streamingapi.Streaming_StreamClient, from io.Reader) error {
	buf := make([]byte, chunk)
	window := 0
	for {
		for window <= 0 {
			got, err := stream.Recv()
			if err != nil {
				return fmt.Errorf("send archive: %w", err)
			}
			var update transfertypes.WindowUpdate
			if err := unpackedInto(got, &update); err != nil {
				return err
			}
			window += int(update.Update)
		}
		n, err := from.Read(buf[:min(window, len(buf))])
		if n > 0 {
			window -= n
			data, err := packed(&transfertypes.Data{Data: buf[:n]})
			if err != nil {
				return err
			}
			if err := stream.Send(data); err != nil {
				return fmt.Errorf("send archive: %w", err)
			}
		}
		if errors.Is(err, io.EOF) {
			return stream.CloseSend()
		}
		if err != nil {
			return err
		}
	}
}

// packed wraps a message as containerd does: with the bare type name, not a URL.
func packed(m proto.Message) (*anypb.Any, error) {
	value, err := proto.Marshal(m)
	if err != nil {
		return nil, err
	}
	return &anypb.Any{TypeUrl: string(m.ProtoReflect().Descriptor().FullName()), Value: value}, nil
}

func unpackedInto(a *anypb.Any, m proto.Message) error {
	if want := string(m.ProtoReflect().Descriptor().FullName()); a.GetTypeUrl() != want {
		return fmt.Errorf("stream: received a %s, expected a %s", a.GetTypeUrl(), want)
	}
	return proto.Unmarshal(a.GetValue(), m)
}
