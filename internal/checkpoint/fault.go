package checkpoint

import (
	"errors"
	"os"
	"strings"
	"sync"
)

// Fault stands in for a disk that fails. Of size bytes that are about to be written it returns how
// many are, and the error of the rest. Size 0 is a step that needs no space, such as a removal.
type Fault func(size int) (written int, err error)

// faults are those of files, and of what is below folders. The paths tell apart the tests of one
// process, which run side by side.
var faults sync.Map

// Inject makes writes of the file, or below the folder, fail until the returned function is called.
// It is for package checkpointtest alone.
func Inject(path string, f Fault) (mend func()) {
	faults.Store(path, f)
	return func() { faults.Delete(path) }
}

// allow returns how many of the bytes may be written to the file, and the error of the rest.
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

// appendTo adds to the end of the file, which must be there.
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

// Allow returns the error of the disk that stands in for that of the file, for owners that write
// files themselves; nil without one.
func Allow(path string, size int) error {
	_, err := allow(path, size)
	return err
}
