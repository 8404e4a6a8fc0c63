package checkpoint

import (
	"errors"
	"os"
	"strings"
	"sync"
)

// Fault simulates a failing disk. Of size bytes to be written it returns how many are, and the
// error for the rest. Size 0 is a step that needs no space, such as a removal.
type Fault func(size int) (written int, err error)

// faults maps files and directories to faults. Paths isolate the parallel tests of one process.
var faults sync.Map

// Inject makes writes of the file, or below the directory, fail until the returned function is
// called. Only package checkpointtest uses it.
func Inject(path string, f Fault) (mend func()) {
	faults.Store(path, f)
	return func() { faults.Delete(path) }
}

// allow returns how many of the bytes may be written to the file, and the error for the rest.
func allow(path string, size int) (written int, err error) {
	written = size
	faults.Range(func(faulty, f any) bool {
		if rest, is := strings.CutPrefix(path, faulty.(string)); is && (rest == "" || rest[0] == '/') {
			written, err = f.(Fault)(size)
		}
		return err == nil
	})
	return written, err
}

// write writes to f, which is or will be the file at path.
func write(f *os.File, path string, content []byte) error {
	n, fault := allow(path, len(content))
	_, err := f.Write(content[:n])
	return errors.Join(err, fault)
}

// appendTo appends to the file, which must exist.
func appendTo(path string, content []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
	if err == nil {
		err = errors.Join(write(f, path, content), f.Close())
	}
	if err != nil {
		return failed("write", path, err)
	}
	return nil
}

// Allow returns the injected error for the file, for owners that write files themselves; nil
// without one.
func Allow(path string, size int) error {
	_, err := allow(path, size)
	return err
}
