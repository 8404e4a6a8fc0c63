// Package checkpointtest simulates disk failures for tests of checkpoints: a read-only disk, and a
// full one.
//
// Owns: nothing.
// Reads: nothing.
// Never: fails operations outside of the path that a test names; fails reads.
package checkpointtest

import (
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"berth/internal/checkpoint"
)

// ReadOnly makes every write and removal of the file, or below the directory, fail, until mend is
// called or the test ends.
func ReadOnly(t testing.TB, path string) (mend func()) {
	return inject(t, path, func(int) (int, error) { return 0, unix.EROFS })
}

// Full makes writes of the file, or below the directory, fail after free more bytes, until mend is
// called or the test ends. A write is executed as far as it fits. Removals succeed, but release no
// space.
func Full(t testing.TB, path string, free int64) (mend func()) {
	var left atomic.Int64
	left.Store(free)
	return inject(t, path, func(size int) (int, error) {
		after := left.Add(-int64(size))
		if after >= 0 {
			return size, nil
		}
		left.Store(0)
		return max(0, size+int(after)), unix.ENOSPC
	})
}

// Each runs the test once for each kind of failure. fail applies it to the disk below a directory.
func Each(t *testing.T, test func(t *testing.T, fail func(folder string) (mend func()))) {
	t.Run("read-only", func(t *testing.T) {
		test(t, func(folder string) func() { return ReadOnly(t, folder) })
	})
	t.Run("full", func(t *testing.T) {
		test(t, func(folder string) func() { return Full(t, folder, 20) })
	})
}

func inject(t testing.TB, path string, f checkpoint.Fault) (mend func()) {
	mend = checkpoint.Inject(path, f)
	t.Cleanup(mend)
	return mend
}
