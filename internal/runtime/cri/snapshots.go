package cri

import (
	"context"
	"errors"
	"strings"

	snapshotsapi "github.com/containerd/containerd/api/services/snapshots/v1"
	"github.com/containerd/containerd/api/types"

	"berth/internal/pod"
)

// Snapshots locates the files of containers through containerd's snapshots service.
type Snapshots struct{ service snapshotsapi.SnapshotsClient }

// UpperDir returns the writable layer of a container: the upper directory of its overlay. It is ""
// for a container that has none, and for a runtime without a snapshots service.
func (s *Snapshots) UpperDir(ctx context.Context, id pod.ContainerID) (string, error) {
	r, err := s.service.Mounts(inNamespace(ctx), &snapshotsapi.MountsRequest{Snapshotter: "overlayfs", Key: string(id)})
	if errors.Is(err, ErrUnimplemented) {
		err = nil
	}
	return upperDir(r.GetMounts()), ignoreNotFound(err)
}

// upperDir returns the upper directory of the first overlay mount.
func upperDir(mounts []*types.Mount) string {
	for _, m := range mounts {
		for _, o := range m.GetOptions() {
			if dir, ok := strings.CutPrefix(o, "upperdir="); ok && m.GetType() == "overlay" {
				return dir
			}
		}
	}
	return ""
}
