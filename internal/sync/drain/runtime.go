package drain

import (
	"context"
	"errors"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"

	"berth/internal/checkpoint"
)

// Runtime is a container runtime that ends together with the pods.
type Runtime interface {
	// Stop ends the runtime alone.
	Stop(ctx context.Context) error
	// EndShims ends the shims that are left after it, when nothing runs.
	EndShims(ctx context.Context) error
	// EndAll ends what is left without the runtime's help.
	EndAll(ctx context.Context) error
}

// EndRuntime ends the runtime, and the shims that no container needs any more.
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

// RemoveFiles removes files and folders of an agent, and what was set aside of them, as far as it
// can. It removes shared folders, in which others may have something, when they are empty.
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
