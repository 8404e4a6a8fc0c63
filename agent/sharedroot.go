package agent

import (
	"path/filepath"

	"berth/internal/storage/mounts"
)

// sharedMark, in the run directory, says that the root directory was mounted on itself.
const sharedMark = "root.shared"

// shareRoot has mounts in volumes get to the host and follow it, as pods ask by mountPropagation,
// also where no systemd has made the host's mounts shared. Without it, pods that do not ask run all
// the same.
func (a *Agent) shareRoot() {
	if a.out.Mounter != nil {
		return
	}
	if err := mounts.Share(a.cfg.RootDir, filepath.Join(a.cfg.RunDir, sharedMark)); err != nil {
		a.cfg.Log.Warn("the root directory is in no shared mount: containers with mountPropagation do not start; "+
			"it is tried again when an agent starts after all pods were stopped (berth stop --all)", "error", err)
	}
}

// unshareRoot undoes shareRoot, by whatever agent, when all pods have ended.
func (a *Agent) unshareRoot() error {
	if a.out.Mounter != nil {
		return nil
	}
	return mounts.Unshare(a.cfg.RootDir, filepath.Join(a.cfg.RunDir, sharedMark))
}
