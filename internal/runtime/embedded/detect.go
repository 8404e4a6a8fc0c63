package embedded

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"berth/internal/host/cgroups"
	"berth/internal/host/preflight"
)

// maxShimSocketDir is containerd's limit for the directory of shim sockets, whose names are 64
// bytes of hash.
const maxShimSocketDir = 42

// pluginPrograms is the directory of network plugins' programs (default of containerd and CRI-O).
const pluginPrograms = "/opt/cni/bin"

// detectFacts inspects the host without lasting changes.
func detectFacts(cfg Config) (facts, error) {
	p := newPaths(cfg.Root, cfg.RunDir)
	f := facts{SELinux: cfg.SELinux, RestrictOOM: !preflight.HasCapability(unix.CAP_SYS_RESOURCE)}
	before, err := os.ReadFile(p.config)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return f, err
	}
	f.Snapshotter = chooseSnapshotter(string(before), preflight.TryOverlay(p.store.dir))
	if cfg.SELinux {
		if err := preflight.CheckContainerLabels(); err != nil {
			return f, fmt.Errorf("containers cannot be labelled: SELinux: %w", err)
		}
		if f.Snapshotter != "overlayfs" { // other snapshotters cannot be labelled by a mount option
			return f, fmt.Errorf("containers cannot be labelled: no overlay can be mounted in %s", p.store.dir)
		}
	}
	switch cfg.CgroupDriver {
	case driverSystemd:
		f.Systemd = true
	case "":
		version, _ := cgroups.Detect()
		f.Systemd = version == 2 && systemdRuns()
	}
	if cfg.NetworkPlugins != "" {
		f.Plugins = pluginPrograms
	}
	if len(p.shimSockets) <= maxShimSocketDir {
		f.ShimSockets = p.shimSockets
	}
	return f, nil
}

// systemdRuns reports whether systemd is the host's init (sd_booted(3)).
func systemdRuns() bool {
	fi, err := os.Lstat("/run/systemd/system")
	return err == nil && fi.IsDir()
}

// chooseSnapshotter selects the snapshotter by the result of the overlay trial and the previous
// configuration, "" if there was none. An inconclusive trial, as on a disk that is full or
// read-only, does not change the selection, since another snapshotter would restart containerd and
// remove the layers of running containers.
func chooseSnapshotter(before string, trial error) string {
	const overlay, native = "overlayfs", "native"
	refused := errors.As(trial, &preflight.RejectedError{})
	if refused || trial != nil && strings.Contains(before, "snapshotter = '"+native+"'") {
		return native
	}
	return overlay
}
