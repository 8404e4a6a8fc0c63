package volumes

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"

	mount "k8s.io/mount-utils"
	utilexec "k8s.io/utils/exec"

	"berth/internal/host/safepath"
	"berth/internal/pod"
)

// host is the access of all kinds to this machine: the root directory, mounts, commands, and
// events.
type host struct {
	root     string
	files    safepath.Root // the root directory, as well
	mounter  mount.Interface
	exec     utilexec.Interface
	log      *slog.Logger
	recorder Recorder
	waits    openWaits
	metrics  *metrics
}

func (h *host) podDir(uid pod.UID) (string, error) {
	if !safepath.IsElement(string(uid)) {
		return "", fmt.Errorf("pod UID %q is not a file name", uid)
	}
	return filepath.Join(h.root, "pods", string(uid)), nil
}

func (h *host) isOfPod(path string) bool {
	return strings.HasPrefix(path, filepath.Join(h.root, "pods")+"/")
}

// isMounted reports whether there is a mount at the path. It reads only the mount table: the mount
// may be unreadable, its server may never answer, and a bind mount looks like its directory.
func (h *host) isMounted(path string) (bool, error) {
	real, err := h.files.Real(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	points, err := h.mounter.List()
	if err != nil {
		return false, fmt.Errorf("read mount table: %w", err)
	}
	return slices.ContainsFunc(points, func(mp mount.MountPoint) bool { return unescapeMount.Replace(mp.Path) == real }), nil
}

// unescapeMount decodes the escapes of /proc/mounts (fstab(5)).
var unescapeMount = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)

type mountSource struct {
	source, fsType string
	options        []string
	format         bool // a disk without a filesystem is formatted
}

// ensureMount mounts the source at dir, unless there is a mount, and reports whether it did. A
// mount that fails, or is canceled with ctx, leaves nothing behind.
func (h *host) ensureMount(ctx context.Context, dir string, s mountSource) (fresh bool, err error) {
	// A mount is never opened: its server may not answer.
	if err := h.files.Ensure(filepath.Dir(dir), 0o750, 0o750); err != nil {
		return false, err
	}
	mounted, err := h.isMounted(dir)
	if err != nil || mounted {
		return false, err
	}
	if err := h.files.Ensure(dir, 0o750, 0o750); err != nil {
		return false, err
	}
	if err = h.mount(ctx, dir, s); err == nil {
		return true, nil
	}
	if half, e := h.isMounted(dir); e == nil && half {
		err = errors.Join(err, h.unmount(dir, s.fsType))
	}
	err = errors.Join(err, h.files.RemoveEmpty(dir))
	return false, fmt.Errorf("mount %s: %w", s.source, err)
}

func (h *host) mount(ctx context.Context, dir string, s mountSource) error {
	if s.format {
		return mount.NewSafeFormatAndMount(h.mounter, h.exec).FormatAndMount(s.source, dir, s.fsType, s.options)
	}
	if r, ok := h.mounter.(remote); ok && isRemote(s.fsType) {
		return r.MountRemote(ctx, s.source, dir, s.fsType, s.options)
	}
	return h.mounter.MountSensitiveWithoutSystemd(s.source, dir, s.fsType, s.options, nil)
}

// isRemote reports whether the filesystem type has a server, which may never answer.
func isRemote(fsType string) bool { return strings.HasPrefix(fsType, "nfs") }

// remote mounts and unmounts remote filesystems.
type remote interface {
	// MountRemote returns an error when ctx is done.
	MountRemote(ctx context.Context, source, target, fsType string, options []string) error
	// UnmountRemote aborts operations that wait for an unresponsive server.
	UnmountRemote(target string) error
}

func (h *host) unmount(path, fsType string) error {
	if r, ok := h.mounter.(remote); ok && isRemote(fsType) {
		return r.UnmountRemote(path)
	}
	return h.mounter.Unmount(path)
}

// pluginName returns the name of the volume plugin with the directory.
func pluginName(folder string) string { return strings.ReplaceAll(folder, "~", "/") }

func csiPluginName(driver string) string { return pluginName(csiPlugin) + ":" + driver }

func ignoreMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
