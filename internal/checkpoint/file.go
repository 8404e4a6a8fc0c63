package checkpoint

import (
	"encoding/json"
	"fmt"
	"log/slog"
)

// FileConfig is the configuration of a WarmFile.
type FileConfig[T any] struct {
	// Path is the path of the file; "" persists nothing. Its directory must exist when Run starts.
	Path string
	// Version is the version of the content's format. A file of another one is unreadable.
	Version int
	// What names the content in the log and in errors: "verdicts of probes".
	What string
	// Content returns the content to write. It is called from one goroutine.
	Content func() T
	Log     *slog.Logger
}

// WarmFile is one document on disk, JSON with a version, which is written as a whole. Changed is
// safe for concurrent use; Load is for the owner.
type WarmFile[T any] struct {
	FileConfig[T]
	// Writer writes the file.
	Writer  *Writer
	changed chan struct{} // capacity 1
}

// document is the file format.
type document[T any] struct {
	Version int `json:"version"`
	// Epoch is the epoch of a WarmTable.
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

// Load returns the content persisted by an earlier agent, zero if there is no file. An unreadable
// file is set aside, and the error reports it: the agent continues without it.
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

// Changed signals that the content has changed. It does not block.
func (f *WarmFile[T]) Changed() {
	select {
	case f.changed <- struct{}{}:
	default:
	}
}

func (f *WarmFile[T]) write() error {
	return writeDocument(f.Path, document[T]{Version: f.Version, Content: f.Content()})
}

// writeDocument writes d to the file; if path is "", it does nothing.
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
