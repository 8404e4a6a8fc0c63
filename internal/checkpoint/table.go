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

// fewest is the minimum number of changes that are appended before a table is rewritten.
const fewest = 100

// Changes returns the keys whose entries may have changed since the last call. *pod.Inbox
// implements it.
type Changes[K ~string] interface {
	Wake() <-chan struct{}
	Take() []K
}

// TableConfig is the configuration of a WarmTable.
type TableConfig[K ~string, V any] struct {
	// Path is the path of the file; "" persists nothing. Its directory must exist when Run starts.
	Path string
	// Version is the version of the format. A file of another one is unreadable.
	Version int
	// What names the content in the log and in errors: "verdicts of probes".
	What string
	// Epoch identifies the lifetime of the content, such as a boot: the content of another one is
	// ignored. Nil: the content has no such limit.
	Epoch func() string
	// Changes gets a key before a reader can see that its entry has changed, and not before Get
	// returns the change.
	Changes Changes[K]
	// All returns all entries to persist, Get the entry of one key. They are called from one
	// goroutine.
	All func() map[K]V
	Get func(K) (V, bool)
	Log *slog.Logger
}

// WarmTable is one file of many entries, in which a change costs as much as the entry, not the
// table. It is a document like a WarmFile's, followed by changes, each a line of JSON; when they
// outnumber the entries, the file is rewritten. Each agent's first write, and the one after a
// failure, also rewrites it: only the last line can be incomplete.
type WarmTable[K ~string, V any] struct {
	TableConfig[K, V]
	// Writer writes the file.
	Writer *Writer

	// Used only by Run's goroutine:
	saved    map[K]struct{} // the keys in the file; nil: the next write rewrites it
	appended int            // changed keys since the last rewrite
}

// change is the content of a line: new or changed entries, and removed keys.
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

// Load returns the entries persisted by an earlier agent, nil if there is no file. An unreadable
// file is set aside, and the error reports it: the agent continues without it.
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

// decode returns the document of the file with its changes applied.
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
		case errors.Is(err, io.ErrUnexpectedEOF): // the agent was killed during a write
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

func (t *WarmTable[K, V]) write() error {
	// The keys are taken before their entries are read: later changes add them again.
	keys := t.Changes.Take()
	if t.Path == "" {
		return nil
	}
	if t.saved != nil && t.appended+len(keys) <= max(len(t.saved), fewest) {
		err := t.append(keys)
		if !errors.Is(err, fs.ErrNotExist) { // otherwise another process removed it
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

// append appends a line with the keys' entries to the file, which must exist.
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
