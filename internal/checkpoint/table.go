package checkpoint

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
)

// fewest is how many changes are appended at least before a table is written whole.
const fewest = 100

// Changes names the keys of which what is to be kept may have changed since it was last asked.
// *pod.Inbox is one.
type Changes[K ~string] interface {
	Wake() <-chan struct{}
	Take() []K
}

// TableConfig is what a WarmTable is made from.
type TableConfig[K ~string, V any] struct {
	// Path is the file's place; "" keeps nothing. Its folder must exist when Run begins.
	Path string
	// Version is that of the form. A file of another one cannot be read.
	Version int
	// What names the content in the log and in errors: "verdicts of probes".
	What string
	// Epoch names what the content does not outlive: a file of another one says nothing. Nil is for
	// content that outlives everything.
	Epoch func() string
	// Changes get a key before anybody can learn that what is kept under it has changed, and not
	// before Get would say so.
	Changes Changes[K]
	// All returns what is to be kept, Get what of it is under one key. They are called from one
	// goroutine.
	All func() map[K]V
	Get func(K) (V, bool)
	Log *slog.Logger
}

// WarmTable is one file of many entries, of which a change costs what the entry costs and not what
// the table does. It is a document as a WarmFile's, followed by the changes to it, each a line of
// JSON; when they are more than the entries, the file is written whole. It is written whole too by
// each agent's first write, and after one that failed: what is not a whole line can only be the
// last.
type WarmTable[K ~string, V any] struct {
	TableConfig[K, V]
	*Writer

	// of the goroutine of Run:
	saved    map[K]struct{} // the keys in the file; nil: the next write is a whole one
	appended int            // changes of keys since the last whole write
}

// change is what a line says: entries that are new or others now, and keys that have none any more.
type change[K ~string, V any] struct {
	Set  map[K]V `json:"set,omitempty"`
	Gone []K     `json:"gone,omitempty"`
}

// NewTable returns a WarmTable. It does no I/O.
func NewTable[K ~string, V any](cfg TableConfig[K, V]) *WarmTable[K, V] {
	if cfg.Epoch == nil {
		cfg.Epoch = func() string { return "" }
	}
	t := &WarmTable[K, V]{TableConfig: cfg}
	t.Writer = NewWriter(WriterConfig{
		What: cfg.What, Log: cfg.Log, Wake: cfg.Changes.Wake(), Write: t.write,
	})
	return t
}

// Load returns what an earlier agent kept, nothing if there is no file. A file that cannot be read
// is set aside, and is the error, which says so: the agent goes on without it.
func (t *WarmTable[K, V]) Load() (content map[K]V, err error) {
	if t.Path == "" {
		return nil, nil
	}
	err = Read(t.Path, t.What, func(b []byte) (err error) {
		content, err = t.decode(b)
		return err
	})
	return content, err
}

// decode returns the document of the file with its changes.
func (t *WarmTable[K, V]) decode(b []byte) (map[K]V, error) {
	in := json.NewDecoder(bytes.NewReader(b))
	var d document[map[K]V]
	if err := in.Decode(&d); err != nil {
		return nil, err
	}
	switch {
	case d.Version != t.Version:
		return nil, UnknownVersion(d.Version, t.Version)
	case d.Epoch != t.Epoch():
		return nil, nil
	}
	for {
		var c change[K, V]
		err := in.Decode(&c)
		switch {
		case errors.Is(err, io.ErrUnexpectedEOF): // its agent ended in the last line
			t.Log.Info("the last record was not written to its end and is left out", "path", t.Path)
			return d.Content, nil
		case err == io.EOF:
			return d.Content, nil
		case err != nil:
			return nil, err
		}
		if d.Content == nil {
			d.Content = map[K]V{}
		}
		maps.Copy(d.Content, c.Set)
		for _, k := range c.Gone {
			delete(d.Content, k)
		}
	}
}

// write brings the file up to date.
func (t *WarmTable[K, V]) write() error {
	// They are taken before what is under them is read: what changes meanwhile comes again.
	keys := t.Changes.Take()
	if t.Path == "" {
		return nil
	}
	if t.saved != nil && t.appended+len(keys) <= max(len(t.saved), fewest) {
		err := t.append(keys)
		if !errors.Is(err, fs.ErrNotExist) { // else somebody removed it
			return err
		}
	}
	return t.writeWhole()
}

func (t *WarmTable[K, V]) writeWhole() error {
	t.saved, t.appended = nil, 0
	all := t.All()
	d := document[map[K]V]{Version: t.Version, Epoch: t.Epoch(), Content: all}
	if err := writeDocument(t.Path, d); err != nil {
		return err
	}
	t.saved = make(map[K]struct{}, len(all))
	for k := range all {
		t.saved[k] = struct{}{}
	}
	return nil
}

// append adds a line about the keys to the file, which must be there.
func (t *WarmTable[K, V]) append(keys []K) (err error) {
	c := change[K, V]{Set: map[K]V{}}
	for _, k := range keys {
		v, ok := t.Get(k)
		_, known := t.saved[k]
		switch {
		case ok:
			c.Set[k], t.saved[k] = v, struct{}{}
		case known:
			c.Gone = append(c.Gone, k)
			delete(t.saved, k)
		}
	}
	if len(c.Set)+len(c.Gone) == 0 {
		return nil
	}
	t.appended += len(c.Set) + len(c.Gone)
	defer func() {
		if err != nil {
			t.saved = nil
		}
	}()
	line, err := json.Marshal(c)
	if err != nil {
		return fmt.Errorf("write %s: %w", t.Path, err)
	}
	return appendTo(t.Path, append(line, '\n'))
}
