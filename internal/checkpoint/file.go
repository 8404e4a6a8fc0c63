package checkpoint

import (
	"encoding/json"
	"fmt"
	"log/slog"
)

// FileConfig is what a WarmFile is made from.
type FileConfig[T any] struct {
	// Path is the file's place; "" keeps nothing. Its folder must exist when Run begins.
	Path string
	// Version is that of the content's form. A file of another one cannot be read.
	Version int
	// What names the content in the log and in errors: "verdicts of probes".
	What string
	// Content returns what is to be written. It is called from one goroutine.
	Content func() T
	Log     *slog.Logger
}

// WarmFile is one document on disk, JSON with a version, which is written whole. Changed and Health
// are safe for concurrent use, the rest is the owner's.
type WarmFile[T any] struct {
	FileConfig[T]
	*Writer
	changed chan struct{} // capacity 1
}

// document is a file's form.
type document[T any] struct {
	Version int `json:"version"`
	// Epoch is that of a WarmTable.
	Epoch   string `json:"epoch,omitempty"`
	Content T      `json:"content"`
}

// NewFile returns a WarmFile. It does no I/O.
func NewFile[T any](cfg FileConfig[T]) *WarmFile[T] {
	f := &WarmFile[T]{FileConfig: cfg, changed: make(chan struct{}, 1)}
	f.Writer = NewWriter(WriterConfig{
		What: cfg.What, Log: cfg.Log, Wake: f.changed, Write: f.write,
	})
	return f
}

// Load returns what an earlier agent kept, nothing if there is no file. A file that cannot be read
// is set aside, and is the error, which says so: the agent goes on without it.
func (f *WarmFile[T]) Load() (T, error) {
	var d document[T]
	if f.Path == "" {
		return d.Content, nil
	}
	err := Read(f.Path, f.What, func(b []byte) error {
		if err := json.Unmarshal(b, &d); err != nil {
			return err
		}
		if d.Version != f.Version {
			return UnknownVersion(d.Version, f.Version)
		}
		return nil
	})
	if err != nil {
		d = document[T]{}
	}
	return d.Content, err
}

// Changed says that the content is another one now. It does not block.
func (f *WarmFile[T]) Changed() {
	select {
	case f.changed <- struct{}{}:
	default:
	}
}

func (f *WarmFile[T]) write() error {
	return writeDocument(f.Path, document[T]{Version: f.Version, Content: f.Content()})
}

// writeDocument makes d the file's content; with "" as path it does nothing.
func writeDocument[T any](path string, d document[T]) error {
	if path == "" {
		return nil
	}
	b, err := json.Marshal(d)
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return WriteWarm(path, 0o600, append(b, '\n'))
}
