// Package keep keeps what the agent would rather not find out again in small files, which are written behind its back.
//
// Owns: the form of such a file, when it is written, and what becomes of one that cannot be read.
// Reads: the file, once, at the start.
// Never: syncs to the disk. A file survives the end of the agent in whatever way; a power cut that it does not survive ends the containers that it tells of too.
package keep

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
)

// Config is what a File is made from.
type Config[T any] struct {
	// Path is the file's place; "" keeps nothing. Its folder must exist when Run begins.
	Path string
	// Version is that of the content's form. A file of another one cannot be read.
	Version int
	// What names the content in the log and in errors: "verdicts of probes".
	What string
	// Content returns what is to be written. It is called from one goroutine.
	Content func() (T, error)
	Log     *slog.Logger
}

// File is one document on disk, JSON with a version, which is written whole. Changed may be called by anybody, the rest by the owner.
type File[T any] struct {
	Config[T]
	behind
	changed chan struct{} // capacity 1
}

// New returns a File. It does no I/O.
func New[T any](cfg Config[T]) *File[T] {
	f := &File[T]{Config: cfg, changed: make(chan struct{}, 1)}
	f.behind = behind{what: cfg.What, log: cfg.Log, wake: f.changed, wanted: make(chan chan struct{}), write: f.write}
	return f
}

// Load returns what an earlier agent kept, nothing if there is no file. A file that cannot be read is set aside, and is the error, which
// says so: the agent goes on without it.
func (f *File[T]) Load() (T, error) {
	var none T
	if f.Path == "" {
		return none, nil
	}
	b, err := os.ReadFile(f.Path)
	if errors.Is(err, fs.ErrNotExist) {
		return none, nil
	}
	var d document[T]
	if err == nil {
		err = json.Unmarshal(b, &d)
	}
	if err == nil && d.Version != f.Version {
		err = fmt.Errorf("version: %d is not known, %d is", d.Version, f.Version)
	}
	if err != nil {
		return none, setAside(f.Path, f.What, err)
	}
	return d.Content, nil
}

// Changed says that the content is another one now. It does not block.
func (f *File[T]) Changed() {
	select {
	case f.changed <- struct{}{}:
	default:
	}
}

func (f *File[T]) write() error {
	if f.Path == "" {
		return nil
	}
	content, err := f.Content()
	if err != nil {
		return fmt.Errorf("%s: %w", f.Path, err)
	}
	return replace(f.Path, document[T]{Version: f.Version, Content: content})
}
