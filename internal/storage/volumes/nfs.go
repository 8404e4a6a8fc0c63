package volumes

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"

	"berth/internal/runtime/crispec"
	"berth/internal/storage/mounts"
)

const nfsPlugin = "kubernetes.io~nfs"

// nfs are directories of NFS servers.
type nfs struct{ host *host }

// setup mounts a directory of a server. File ownership is up to the server, so an fsGroup is not
// applied.
func (k nfs) setup(ctx context.Context, v *volume) (outcome, error) {
	src, options := v.spec.NFS, []string(nil)
	if v.bound != nil {
		src, options = v.bound.Spec.NFS, slices.Clone(mountOptions(v.bound.PersistentVolume))
	}
	readOnly := v.isReadOnly() || src.ReadOnly
	if readOnly {
		options = append(options, "ro")
	}
	slices.Sort(options)
	server := src.Server
	if strings.HasPrefix(server, "-") { // mount(8) would parse it as an option
		return outcome{}, fmt.Errorf("NFS server %q: must be the name or address of a machine", server)
	}
	if ip := net.ParseIP(server); ip != nil && ip.To4() == nil {
		server = "[" + server + "]"
	}
	source := server + ":" + src.Path
	if _, ok := k.host.mounter.(remote); ok {
		defer k.host.waits.begin(v, "the NFS server "+src.Server, "the mount of "+source, mounts.MountLimit)()
	}
	fresh, err := k.host.ensureMount(ctx, v.dir(), mountSource{source: source, fsType: "nfs", options: slices.Compact(options)})
	return outcome{mounted: crispec.Volume{HostPath: v.dir(), ReadOnly: readOnly}, fresh: fresh}, err
}

func (k nfs) use(_ context.Context, v *volume) (Use, error) { return k.host.useFileSystem(v.dir()) }
