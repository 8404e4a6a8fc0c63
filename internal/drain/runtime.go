package drain

import (
	"context"
	"errors"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"

	"berth/internal/keep"
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

// Remains are what an agent leaves on the disk.
type Remains struct {
	// Files are removed, and what was set aside of them; Folders with all that is in them.
	Files, Folders []string
	// Shared are folders in which others may have something: they are removed when they are empty.
	// "" is none.
	Shared []string
}

// Remove removes what remains, as far as it can.
func (r Remains) Remove() error {
	var errs []error
	for _, path := range r.Files {
		errs = append(errs, remove(path), remove(path+keep.CorruptSuffix))
	}
	for _, path := range r.Folders {
		errs = append(errs, os.RemoveAll(path))
	}
	for _, path := range r.Shared {
		if err := remove(path); !errors.Is(err, unix.ENOTEMPTY) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// remove removes what may not be there.
func remove(path string) error {
	if err := os.Remove(path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
