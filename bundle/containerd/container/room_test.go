package container

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
)

func failed(err error) error {
	return fmt.Errorf("checkpoint: %w", &os.PathError{Op: "write", Path: "status", Err: err})
}

func TestIsKnown(t *testing.T) {
	path := filepath.Join(t.TempDir(), "status")
	for _, c := range []struct {
		finishedAt int64
		err        error
		want       bool
	}{
		{1, failed(unix.ENOSPC), true},
		{1, failed(unix.EDQUOT), true},
		{1, failed(unix.EROFS), false},
		{1, errors.New("no space left on device"), false},
		{0, failed(unix.ENOSPC), false}, // it may be started with another try
	} {
		synctest.Test(t, func(t *testing.T) {
			var writes atomic.Int32
			if got := isKnown(path, c.finishedAt, c.err, func() error { writes.Add(1); return nil }); got != c.want {
				t.Errorf("finished at %d, %v: %v", c.finishedAt, c.err, got)
			}
			time.Sleep(time.Hour)
			if got := writes.Load() == 1; got != c.want {
				t.Errorf("finished at %d, %v: written %d times", c.finishedAt, c.err, writes.Load())
			}
		})
	}
}

// A status is written as soon as there is room, and no more is tried afterwards, nor once its
// folder is gone.
func TestWrittenWhenThereIsRoom(t *testing.T) {
	for _, last := range []error{nil, failed(unix.ENOENT)} {
		synctest.Test(t, func(t *testing.T) {
			var tries atomic.Int32
			path := filepath.Join(t.TempDir(), "status")
			var write func() error
			write = func() error { // as UpdateSync does
				err := failed(unix.ENOSPC)
				n := tries.Add(1)
				if n == 4 {
					err = last
				} else if err := os.WriteFile(fmt.Sprintf("%s/.tmp-status%d", filepath.Dir(path), n), nil, 0o600); err != nil {
					t.Error(err)
				}
				if err != nil && !isKnown(path, 1, err, write) {
					return err
				}
				return nil
			}
			if err := write(); err != nil {
				t.Fatal(err)
			}
			time.Sleep(3*roomPause - 1)
			if tries.Load() != 3 {
				t.Errorf("%d tries while there is no room", tries.Load())
			}
			time.Sleep(time.Hour)
			if left, err := os.ReadDir(filepath.Dir(path)); err != nil || len(left) > 0 {
				t.Errorf("%v are left, %v", left, err)
			}
			if tries.Load() != 4 {
				t.Errorf("%d tries, the last of which ends with %v", tries.Load(), last)
			}
		})
	}
}
