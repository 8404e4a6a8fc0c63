package cri

import (
	"context"
	"errors"
	"strings"

	snapshotsapi "github.com/containerd/containerd/api/services/snapshots/v1"
	"github.com/containerd/containerd/api/types"

	"berth/internal/pod"
)

// UpperDir returns the writable layer of a container: the upper directory of its overlay, from
// containerd's snapshots service. It is "" for a container that has none, and for a runtime without
// that service.
func (i *Images) UpperDir(ctx context.Context, id pod.ContainerID) (string, error) {
	r, err := i.snapshots.Mounts(inNamespace(ctx), &snapshotsapi.MountsRequest{Snapshotter: "overlayfs", Key: string(id)})
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
