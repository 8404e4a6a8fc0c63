package agent

import (
	"context"
	"errors"
	"fmt"
)

func readOnlyError(root string) error {
	return fmt.Errorf("root directory %s: the file system is read-only; have it checked (the kernel's log may say why it is so) and mount it "+
		"read-write, or choose another --root-dir; running pods go on, and \"berth stop --all\" ends them", root)
}

// drainReadOnly terminates the pods of an earlier agent on a read-only root directory. The embedded
// runtime persists each step of a container's termination and fails if it cannot, so it is stopped
// first, and the containers without it.
func (a *Agent) drainReadOnly(ctx context.Context) error {
	release, err := a.claim()
	if err != nil {
		return err
	}
	defer release()
	a.deps.cfg.Log.Warn("the file system of the root directory is read-only: containers are killed without a grace period; "+
		"volumes that are mounted stay so, and what is kept of the pods there, until an agent starts that can write", "rootDir", a.deps.cfg.RootDir)
	if err := a.runtime.embedded.EndAll(ctx); err != nil {
		return err
	}
	return errors.Join(a.noteEnded(), unshareRoot(&a.deps))
}
