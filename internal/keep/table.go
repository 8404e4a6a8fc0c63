package keep

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"os"
)

// fewest is how many changes are appended at least before a table is written whole.
const fewest = 100

// Changes names the keys of which what is to be kept may have changed since it was last asked. *pod.Inbox is one.
type Changes[K ~string] interface {
	Wake() <-chan struct{}
	Take() []K
}

// TableConfig is what a Table is made from.
type TableConfig[K ~string, V any] struct {
	// Path is the file's place; "" keeps nothing. Its folder must exist when Run begins.
	Path string
	// Version is that of the form. A file of another one cannot be read.
	Version int
	// What names the content in the log and in errors: "verdicts of probes".
	What string
	// Epoch names what the content does not outlive: a file of another one says nothing. Nil is for content that outlives everything.
	Epoch func() string
	// Changes are told of a key before anybody can learn that what is kept under it has changed, and not before Get would say so.
	Changes Changes[K]
	// All returns what is to be kept, Get what of it is under one key. They are called from one goroutine.
	All func() map[K]V
	Get func(K) (V, bool)
	Log *slog.Logger
}

// Table is one file of many entries, of which a change costs what the entry costs and not what the table does. It is a document as a File's,
// followed by the changes to it, each a line of JSON; when they are more than the entries, the file is written whole. It is written whole too
// by each agent's first write, and after one that failed: what is not a whole line can only be the last.
type Table[K ~string, V any] struct {
	TableConfig[K, V]
	behind

	// of the goroutine of Run:
	kept     map[K]struct{} // the keys in the file; nil: the next write is a whole one
	appended int            // changes of keys since the last whole write
}

// change is what a line says: entries that are new or others now, and keys that have none any more.
type change[K ~string, V any] struct {
	Set  map[K]V `json:"set,omitempty"`
	Gone []K     `json:"gone,omitempty"`
}

// NewTable returns a Table. It does no I/O.
func NewTable[K ~string, V any](cfg TableConfig[K, V]) *Table[K, V] {
	if cfg.Epoch == nil {
		cfg.Epoch = func() string { return "" }
	}
	t := &Table[K, V]{TableConfig: cfg}
	t.behind = behind{what: cfg.What, log: cfg.Log, wake: cfg.Changes.Wake(), wanted: make(chan chan struct{}), write: t.write}
	return t
}

// Load returns what an earlier agent kept, nothing if there is no file. A file that cannot be read is set aside, and is the error, which
// says so: the agent goes on without it.
func (t *Table[K, V]) Load() (map[K]V, error) {
	if t.Path == "" {
		return nil, nil
	}
	b, err := os.ReadFile(t.Path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var content map[K]V
	if err == nil {
		content, err = t.decode(b)
	}
	if err != nil {
		return nil, setAside(t.Path, t.What, err)
	}
	return content, nil
}

// decode returns the document of the file with its changes.
func (t *Table[K, V]) decode(b []byte) (map[K]V, error) {
	in := json.NewDecoder(bytes.NewReader(b))
	var d document[map[K]V]
	if err := in.Decode(&d); err != nil {
		return nil, err
	}
	switch {
	case d.Version != t.Version:
		return nil, fmt.Errorf("version: %d is not known, %d is", d.Version, t.Version)
	case d.Epoch != t.Epoch():
		return nil, nil
	}
	for {
		var c change[K, V]
		err := in.Decode(&c)
		switch {
		case err == io.EOF, errors.Is(err, io.ErrUnexpectedEOF): // the last line was cut off by the end of its agent
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
func (t *Table[K, V]) write() error {
	keys := t.Changes.Take() // before what is under them is read: what changes meanwhile is told again
	if t.Path == "" {
		return nil
	}
	if t.kept != nil && t.appended+len(keys) <= max(len(t.kept), fewest) {
		err := t.append(keys)
		if !errors.Is(err, fs.ErrNotExist) { // else somebody removed it
			return err
		}
	}
	return t.writeWhole()
}

func (t *Table[K, V]) writeWhole() error {
	t.kept, t.appended = nil, 0
	all := t.All()
	if err := replace(t.Path, document[map[K]V]{Version: t.Version, Epoch: t.Epoch(), Content: all}); err != nil {
		return err
	}
	t.kept = make(map[K]struct{}, len(all))
	for k := range all {
		t.kept[k] = struct{}{}
	}
	return nil
}

// append adds a line about the keys to the file, which must be there.
func (t *Table[K, V]) append(keys []K) (err error) {
	c := change[K, V]{Set: map[K]V{}}
	for _, k := range keys {
		v, ok := t.Get(k)
		_, known := t.kept[k]
		switch {
		case ok:
			c.Set[k], t.kept[k] = v, struct{}{}
		case known:
			c.Gone = append(c.Gone, k)
			delete(t.kept, k)
		}
	}
	if len(c.Set)+len(c.Gone) == 0 {
		return nil
	}
	t.appended += len(c.Set) + len(c.Gone)
	defer func() {
		if err != nil {
			t.kept = nil
		}
	}()
	line, err := json.Marshal(c)
	if err != nil {
		return fmt.Errorf("%s: %w", t.Path, err)
	}
	f, err := os.OpenFile(t.Path, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return err
	}
	_, err = f.Write(append(line, '\n'))
	return errors.Join(err, f.Close())
}
