package store

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"maps"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"berth/internal/boltfile"
)

// version is one version of an object, without its value.
type version struct {
	revision uint64
	sum      uint32 // of the value
	removed  bool
}

func versionOf(revision uint64, value []byte) version {
	return version{revision: revision, sum: crc32.Checksum(value, castagnoli)}
}

// examined is what is readable of a store that is not open.
type examined struct {
	path   string
	check  func(Key, []byte) error
	exists bool
	// cause is why the file is unusable, "" if it is usable.
	cause string
	// whole is set if all pages of the tree were read.
	whole    bool
	revision uint64 // 0 if it cannot be read
	items    map[string]version
	bad      map[string]string // objects that were found but are unusable, and why
	copied   map[string]version
	copy     copyInfo
}

// examine reads a store and its copy. An error is not caused by the file's content and may be
// transient.
func examine(cfg Config) (*examined, error) {
	e := &examined{path: cfg.Path, check: cfg.Check, items: map[string]version{}, bad: map[string]string{}, copied: map[string]version{}}
	if err := e.readFile(e.add, nil); err != nil {
		return nil, err
	}
	var err error
	e.copy, err = readCopy(cfg.Path+copySuffix, func(r record) {
		switch r.kind {
		case recordObject, recordWrite:
			e.copied[r.key] = versionOf(r.revision, r.value)
		case recordRemove:
			e.copied[r.key] = version{revision: r.revision, removed: true}
		}
	})
	if passing(err) {
		return nil, err
	}
	if err != nil { // an unreadable copy is an incomplete one
		e.copy.complete = false
	}
	return e, nil
}

// passing reports whether an error is independent of the file's content.
func passing(err error) bool {
	for _, other := range []error{unix.EACCES, unix.EPERM, unix.EMFILE, unix.ENFILE, unix.ENOMEM, unix.EINTR} {
		if errors.Is(err, other) {
			return true
		}
	}
	return false
}

// add records an object of the file.
func (e *examined) add(k string, stored []byte) {
	item, err := e.item(k, stored)
	if err != nil {
		e.bad[k] = err.Error()
		return
	}
	e.items[k] = versionOf(item.Revision, item.Value)
}

// item returns an object of the file, or why it is unusable.
func (e *examined) item(k string, stored []byte) (Item, error) {
	item, err := decodeItem(Key{}, stored)
	switch {
	case err != nil:
		return Item{}, fmt.Errorf("it has %d bytes, which is less than a revision has", len(stored))
	case item.Revision == 0 || item.Revision > e.revision && e.revision > 0:
		return Item{}, fmt.Errorf("revision %d is not one of this store", item.Revision)
	}
	return item, e.usable(k, item.Value)
}

// usable returns why an object is unusable.
func (e *examined) usable(k string, value []byte) error {
	key, err := decodeKey(k)
	if err == nil {
		_, err = key.encode()
	}
	if err == nil && e.check != nil {
		err = e.check(key, value)
	}
	return err
}

// readFile calls visit with the objects of the tree and, unless it is nil, scan with those of all
// pages. It sets exists, cause, whole and revision.
func (e *examined) readFile(visit, scan func(k string, stored []byte)) error {
	fi, err := os.Lstat(e.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	e.exists = true
	if fi.IsDir() {
		e.cause = "it is a folder"
		return nil
	}
	f, err := os.OpenFile(e.path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if passing(err) {
		return err
	}
	if err != nil {
		e.cause = reason(err)
		return nil
	}
	defer f.Close()
	if fi, err = f.Stat(); err != nil {
		return err
	}
	switch {
	case !fi.Mode().IsRegular():
		e.cause = "it is not a regular file"
		return nil
	case fi.Size() == 0:
		e.cause = "it is empty"
		return nil
	}
	b, err := boltfile.Open(f, fi.Size())
	if err != nil {
		e.cause = reason(err)
		if scan != nil {
			boltfile.LeavesWithoutMeta(f, fi.Size(), os.Getpagesize(), func(n boltfile.Entry) { scan(string(n.Key), n.Value) })
		}
		return nil
	}
	problems := b.Walk(func(n boltfile.Entry) {
		switch {
		case len(n.Bucket) != 1 || n.IsBucket:
		case n.Bucket[0] == string(metaBucket) && string(n.Key) == string(revisionKey) && len(n.Value) == 8:
			e.revision = binary.BigEndian.Uint64(n.Value) // precedes all objects
		case n.Bucket[0] == string(objectsBucket):
			visit(string(n.Key), n.Value)
		}
	})
	e.whole = len(problems) == 0
	if !e.whole {
		e.cause = problems[0].Error()
	}
	if scan != nil {
		b.Leaves(func(n boltfile.Entry) { scan(string(n.Key), n.Value) })
	}
	return nil
}

// reason strips the path from an error.
func reason(err error) string {
	if p, ok := errors.AsType[*fs.PathError](err); ok {
		return p.Err.Error()
	}
	return err.Error()
}

// computeCause returns why the store must be recovered, "" if it is intact.
func computeCause(e *examined, s state) string {
	before := e.copy.exists || s.Generation > 0
	first := slices.Sorted(maps.Keys(e.bad))
	switch {
	case !e.exists && before:
		return "it is gone"
	case !e.exists, e.cause == "it is empty" && !before:
		return "" // the first start
	case e.cause != "":
		return e.cause
	case len(first) > 0:
		return fmt.Sprintf("%d objects cannot be decoded, the first is %s: %s", len(first), first[0], e.bad[first[0]])
	case !e.copy.complete || e.copy.last < e.revision:
		return ""
	case e.copy.last > e.revision:
		return fmt.Sprintf("it lacks the last %d changes, which its copy has", e.copy.last-e.revision)
	}
	differ := func(k string) string { return fmt.Sprintf("%s differs from its copy", k) }
	for _, k := range slices.Sorted(maps.Keys(e.copied)) {
		if v, ok := e.items[k]; ok == e.copied[k].removed || ok && v != e.copied[k] {
			return differ(k)
		}
	}
	for k := range e.items {
		if _, ok := e.copied[k]; !ok {
			return differ(k)
		}
	}
	return ""
}
