package csi

import (
	"context"
	"fmt"
	"net"
	"strings"
	"time"

	csiapi "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"berth/internal/pod"
)

// callTimeout is the timeout of one call of a driver.
const callTimeout = 2 * time.Minute

// Driver is one registered driver. Each call opens a connection, and so reaches the process that
// listens at that time.
type Driver struct {
	Name     string
	endpoint string
	dial     func(ctx context.Context, endpoint string) (net.Conn, error)
	metrics  *metrics
	waits    *waits
	uid      pod.UID // calls are made for this pod; "" for none
}

// For returns the driver for calls on behalf of a pod, which Waits reports.
func (d *Driver) For(uid pod.UID) *Driver {
	out := *d
	out.uid = uid
	return &out
}

// Capabilities are the capabilities of a driver's node service.
type Capabilities map[csiapi.NodeServiceCapability_RPC_Type]bool

// Info is the result of NodeGetInfo.
type Info struct {
	NodeID string
	// MaxVolumes is the number of the driver's volumes that the node accepts; 0 means no limit.
	MaxVolumes int64
	Topology   map[string]string
}

// Info calls NodeGetInfo.
func (d *Driver) Info(ctx context.Context) (Info, error) {
	var out Info
	err := d.call(ctx, csiapi.Node_NodeGetInfo_FullMethodName, "", func(ctx context.Context, c csiapi.NodeClient) error {
		r, err := c.NodeGetInfo(ctx, &csiapi.NodeGetInfoRequest{})
		out = Info{NodeID: r.GetNodeId(), MaxVolumes: r.GetMaxVolumesPerNode(), Topology: r.GetAccessibleTopology().GetSegments()}
		return err
	})
	return out, err
}

// Capabilities calls NodeGetCapabilities. Capabilities may change with the driver's version, so
// call it before each decision.
func (d *Driver) Capabilities(ctx context.Context) (Capabilities, error) {
	out := Capabilities{}
	err := d.call(ctx, csiapi.Node_NodeGetCapabilities_FullMethodName, "", func(ctx context.Context, c csiapi.NodeClient) error {
		r, err := c.NodeGetCapabilities(ctx, &csiapi.NodeGetCapabilitiesRequest{})
		for _, capability := range r.GetCapabilities() {
			if rpc := capability.GetRpc(); rpc != nil {
				out[rpc.GetType()] = true
			}
		}
		return err
	})
	return out, err
}

// Stage calls NodeStageVolume.
func (d *Driver) Stage(ctx context.Context, r *csiapi.NodeStageVolumeRequest) error {
	if err := complete(r.GetVolumeId(), "staging target", r.GetStagingTargetPath()); err != nil {
		return err
	}
	return d.call(ctx, csiapi.Node_NodeStageVolume_FullMethodName, r.GetVolumeId(), func(ctx context.Context, c csiapi.NodeClient) error {
		_, err := c.NodeStageVolume(ctx, r)
		return err
	})
}

// Publish calls NodePublishVolume.
func (d *Driver) Publish(ctx context.Context, r *csiapi.NodePublishVolumeRequest) error {
	if err := complete(r.GetVolumeId(), "target", r.GetTargetPath()); err != nil {
		return err
	}
	return d.call(ctx, csiapi.Node_NodePublishVolume_FullMethodName, r.GetVolumeId(), func(ctx context.Context, c csiapi.NodeClient) error {
		_, err := c.NodePublishVolume(ctx, r)
		return err
	})
}

// Unpublish calls NodeUnpublishVolume, which undoes Publish.
func (d *Driver) Unpublish(ctx context.Context, id, target string) error {
	if err := complete(id, "target", target); err != nil {
		return err
	}
	return d.call(ctx, csiapi.Node_NodeUnpublishVolume_FullMethodName, id, func(ctx context.Context, c csiapi.NodeClient) error {
		_, err := c.NodeUnpublishVolume(ctx, &csiapi.NodeUnpublishVolumeRequest{VolumeId: id, TargetPath: target})
		return err
	})
}

// Unstage calls NodeUnstageVolume, which undoes Stage.
func (d *Driver) Unstage(ctx context.Context, id, staging string) error {
	if err := complete(id, "staging target", staging); err != nil {
		return err
	}
	return d.call(ctx, csiapi.Node_NodeUnstageVolume_FullMethodName, id, func(ctx context.Context, c csiapi.NodeClient) error {
		_, err := c.NodeUnstageVolume(ctx, &csiapi.NodeUnstageVolumeRequest{VolumeId: id, StagingTargetPath: staging})
		return err
	})
}

// Expand calls NodeExpandVolume, which expands the volume's filesystem to the volume's size.
func (d *Driver) Expand(ctx context.Context, r *csiapi.NodeExpandVolumeRequest) error {
	if err := complete(r.GetVolumeId(), "volume", r.GetVolumePath()); err != nil {
		return err
	}
	return d.call(ctx, csiapi.Node_NodeExpandVolume_FullMethodName, r.GetVolumeId(), func(ctx context.Context, c csiapi.NodeClient) error {
		_, err := c.NodeExpandVolume(ctx, r)
		return err
	})
}

// Stats is the result of NodeGetVolumeStats.
type Stats struct {
	Usage []*csiapi.VolumeUsage
	// Condition is the health of the volume; nil: not reported by the driver.
	Condition *csiapi.VolumeCondition
}

// Stats calls NodeGetVolumeStats for the volume's usage and health.
func (d *Driver) Stats(ctx context.Context, id, path string) (Stats, error) {
	if err := complete(id, "volume", path); err != nil {
		return Stats{}, err
	}
	var out Stats
	err := d.call(ctx, csiapi.Node_NodeGetVolumeStats_FullMethodName, id, func(ctx context.Context, c csiapi.NodeClient) error {
		r, err := c.NodeGetVolumeStats(ctx, &csiapi.NodeGetVolumeStatsRequest{VolumeId: id, VolumePath: path})
		out = Stats{r.GetUsage(), r.GetVolumeCondition()}
		return err
	})
	return out, err
}

// complete rejects a request without a volume or a path.
func complete(id, what, path string) error {
	switch {
	case id == "":
		return status.Error(codes.InvalidArgument, "missing volume id")
	case path == "":
		return status.Errorf(codes.InvalidArgument, "missing %s path", what)
	}
	return nil
}

// call makes one call; volume is "" if it is not about a volume.
func (d *Driver) call(ctx context.Context, method, volume string, do func(context.Context, csiapi.NodeClient) error) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	conn, err := grpc.NewClient("passthrough:///localhost", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return d.dial(ctx, strings.TrimPrefix(d.endpoint, "unix://"))
		}))
	if err != nil {
		return fmt.Errorf("driver %s: %w", d.Name, err)
	}
	defer conn.Close()
	if d.uid != "" {
		defer d.waits.begin(d.uid, d.Name, method, volume)()
	}
	began := time.Now()
	err = do(ctx, csiapi.NewNodeClient(conn))
	d.metrics.called(d.Name, method, time.Since(began), err)
	if err != nil {
		return fmt.Errorf("driver %s: %w", d.Name, err)
	}
	return nil
}

// IsUncertain reports whether a failed call may have taken effect nevertheless, so that it has to
// be undone.
func IsUncertain(err error) bool {
	s, ok := status.FromError(err)
	if !ok {
		return true
	}
	switch s.Code() {
	case codes.Canceled, codes.DeadlineExceeded, codes.Unavailable, codes.ResourceExhausted, codes.Aborted:
		return true
	}
	return false
}
