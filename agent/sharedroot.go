package agent

import (
	"path/filepath"

	"berth/internal/storage/mounts"
)

// sharedMark, in the run directory, records that the root directory was bind-mounted on itself.
const sharedMark = "root.shared"

// shareRoot makes mounts propagate between volumes and host, as mountPropagation requires, even if
// systemd has not made the host's mounts shared. If it fails, pods without mountPropagation still
// run.
func shareRoot(g *dependencies) {
	if g.out.Mounter != nil {
		return
	}
	if err := mounts.Share(g.cfg.RootDir, filepath.Join(g.cfg.RunDir, sharedMark)); err != nil {
		g.cfg.Log.Warn("the root directory is in no shared mount: containers with mountPropagation do not start; "+
			"it is tried again when an agent starts after all pods were stopped (berth stop --all)", "error", err)
	}
}

// unshareRoot undoes shareRoot, by any agent, after all pods have terminated.
func unshareRoot(g *dependencies) error {
	if g.out.Mounter != nil {
		return nil
	}
	return mounts.Unshare(g.cfg.RootDir, filepath.Join(g.cfg.RunDir, sharedMark))
}
