package drain

import (
	"context"
	"errors"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"

	"berth/internal/checkpoint"
)

// Runtime is a container runtime that is stopped together with the pods.
type Runtime interface {
	// Stop stops the runtime only.
	Stop(ctx context.Context) error
	// EndShims stops the remaining shims, when no container runs.
	EndShims(ctx context.Context) error
	// EndAll stops everything that remains without the runtime's help.
	EndAll(ctx context.Context) error
}

// EndRuntime stops the runtime, and its shims if no pod remains.
func (d *Drain) EndRuntime(ctx context.Context, r Runtime) error {
	err := r.Stop(ctx)
	if err == nil && len(d.left) == 0 {
		end := r.EndShims
		if d.ReadOnly() {
			end = r.EndAll // the runtime could not
		}
		err = end(ctx)
	}
	if err != nil {
		d.Add(err)
	}
	return err
}

// RemoveFiles removes the agent's own files and directories, and those that were set aside, as far
// as possible. It removes shared directories only if they are empty.
func RemoveFiles(own, shared []string) error {
	var errs []error
	for _, path := range own {
		errs = append(errs, os.RemoveAll(path), checkpoint.RemoveAll(path))
	}
	for _, path := range shared {
		if err := os.Remove(path); !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ENOTEMPTY) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
