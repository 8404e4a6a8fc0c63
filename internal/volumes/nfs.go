package volumes

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"

	"berth/internal/crispec"
)

// setupNFS mounts a directory of a server. Who owns what is the server's business, so an fsGroup is not applied.
func (m *Manager) setupNFS(ctx context.Context, podDir, name string, src *v1.NFSVolumeSource, readOnly bool, options []string) outcome {
	readOnly = readOnly || src.ReadOnly
	options = slices.Clone(options)
	if readOnly {
		options = append(options, "ro")
	}
	slices.Sort(options)
	server := src.Server
	if strings.HasPrefix(server, "-") { // mount(8) would take it for an option
		return outcome{err: fmt.Errorf("NFS server %q: must be the name or address of a machine", server)}
	}
	if ip := net.ParseIP(server); ip != nil && ip.To4() == nil {
		server = "[" + server + "]"
	}
	dir := filepath.Join(podDir, "volumes", nfsPlugin, name)
	fresh, err := m.ensureMount(ctx, dir, mountSource{source: server + ":" + src.Path, fsType: "nfs", options: slices.Compact(options)})
	if err != nil {
		return outcome{err: err}
	}
	return outcome{mounted: crispec.Volume{HostPath: dir, ReadOnly: readOnly}, fresh: fresh}
}

// isRemote reports whether filesystems of the type have a server, which may never answer.
func isRemote(fsType string) bool { return strings.HasPrefix(fsType, "nfs") }

// remote mounts and unmounts what has a server.
type remote interface {
	// MountRemote gives up when ctx is done.
	MountRemote(ctx context.Context, source, target, fsType string, options []string) error
	// UnmountRemote ends what waits for a server that does not answer.
	UnmountRemote(target string) error
}

func (m *Manager) unmount(path, fsType string) error {
	if r, ok := m.mounter.(remote); ok && isRemote(fsType) {
		return r.UnmountRemote(path)
	}
	return m.mounter.Unmount(path)
}
