package checkpoint

import (
	"os"
	"strings"
	"sync"
)

// Fault stands in for a disk that fails. Of size bytes that are about to be written it returns how
// many are, and the error of the rest. Size 0 is a step that needs no space, such as a removal.
type Fault func(size int) (written int, err error)

// faults are those of the folders below which they count. Folders tell apart the tests of one
// process, which run side by side.
var faults struct {
	sync.RWMutex
	of map[string]Fault
}

// Inject makes writes below the folder fail until the returned function is called. It is for
// package checkpointtest alone.
func Inject(folder string, f Fault) (mend func()) {
	faults.Lock()
	defer faults.Unlock()
	if faults.of == nil {
		faults.of = map[string]Fault{}
	}
	faults.of[folder] = f
	return func() {
		faults.Lock()
		defer faults.Unlock()
		delete(faults.of, folder)
	}
}

// allow returns how many of the bytes may be written to the file, and the error of the rest.
func allow(path string, size int) (int, error) {
	faults.RLock()
	defer faults.RUnlock()
	for folder, f := range faults.of {
		if strings.HasPrefix(path, folder+"/") {
			return f(size)
		}
	}
	return size, nil
}

// write writes to f, which is or will be the file at path.
func write(f *os.File, path string, content []byte) error {
	n, fault := allow(path, len(content))
	if _, err := f.Write(content[:n]); err != nil {
		return err
	}
	return fault
}

// appendTo adds to the end of the file, which must be there.
func appendTo(path string, content []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
	if err == nil {
		if err = write(f, path, content); err != nil {
			_ = f.Close() // what was written before is in the file
		} else {
			err = f.Close()
		}
	}
	if err != nil {
		return failed("write", path, err)
	}
	return nil
}
