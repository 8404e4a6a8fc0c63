package embedded

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	imagesapi "github.com/containerd/containerd/api/services/images/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// dial returns a connection to containerd, which is established lazily.
func dial(socket string) (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:///containerd",
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", socket)
		}),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 5 * time.Millisecond, Multiplier: 1.5, MaxDelay: 100 * time.Millisecond},
			MinConnectTimeout: time.Second,
		}))
}

// podNamespace is the containerd namespace of CRI's objects.
const podNamespace = "k8s.io"

// inPods sets that namespace for the calls of a context.
func inPods(ctx context.Context) context.Context {
	return metadata.AppendToOutgoingContext(ctx, "containerd-namespace", podNamespace)
}

// awaitReady returns when containerd serves CRI: its socket exists before its state is recovered.
func awaitReady(ctx context.Context, conn *grpc.ClientConn) error {
	retry := time.NewTicker(10 * time.Millisecond)
	defer retry.Stop()
	for {
		// No field of Version is needed, so its messages are encoded and decoded as empty ones.
		err := conn.Invoke(ctx, "/runtime.v1.RuntimeService/Version", &emptypb.Empty{}, &emptypb.Empty{}, grpc.WaitForReady(true))
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case status.Code(err) != codes.Unavailable:
			return fmt.Errorf("ask containerd for CRI: %w", err)
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-retry.C:
		}
	}
}

// managedLabel is set by containerd's CRI service on images that it has added under their ID.
const managedLabel = "io.cri-containerd.image"

// imagePresent reports whether CRI has the image with exactly this digest.
func imagePresent(ctx context.Context, conn *grpc.ClientConn, want bundledImage) (bool, error) {
	return imageEntered(ctx, conn, want.Name, want.Digest)
}

// imageEntered reports whether containerd has the image of this name and digest, "" for any, and
// CRI lists it.
func imageEntered(ctx context.Context, conn *grpc.ClientConn, name, digest string) (bool, error) {
	got, err := imagesapi.NewImagesClient(conn).Get(inPods(ctx), &imagesapi.GetImageRequest{Name: name})
	if status.Code(err) == codes.NotFound {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("image %s: %w", name, err)
	}
	if digest != "" && got.Image.GetTarget().GetDigest() != digest || got.Image.GetLabels()[managedLabel] == "" {
		return false, nil
	}
	// CRI sets the label first and lists the image a moment later: a pod that starts in between
	// would pull it.
	var response runtimeapi.ImageStatusResponse
	ask := &runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: name}}
	if err := conn.Invoke(ctx, "/runtime.v1.ImageService/ImageStatus", ask, &response); err != nil {
		return false, fmt.Errorf("image %s: %w", name, err)
	}
	return response.Image != nil, nil
}

// errExited is the cause for cancelling the wait for a process that exited.
var errExited = errors.New("containerd ended")
