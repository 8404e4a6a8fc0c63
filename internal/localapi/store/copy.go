package store

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	bolt "go.etcd.io/bbolt"

	"berth/internal/checkpoint"
)

// The copy is a second file with all objects, in another format: a base, which is all objects at
// one revision, and every change since. Changes are appended after they are committed and before
// they are acknowledged, without fsync: only a power loss can leave the copy behind. A new base
// replaces it when the changes are larger than the base.

// copySuffix is appended to the store's file name.
const copySuffix = ".copy"

const copyHead = "berth: copy of the objects of the local API, form 1\n"

// minChanges is the minimum size of the changes, in bytes, before a new base is written.
const minChanges = 4 << 20

// Types of records.
const (
	recordBase   = 'b' // begins a base: revision, and the number of its objects as value
	recordObject = 'o' // an object of the base
	recordWrite  = 'w' // a change to an object
	recordRemove = 'r' // the removal of an object
)

// record is one record of a copy: a magic number, length and CRC-32C of the content, and the
// content: kind, revision, key length, key, value.
type record struct {
	kind     byte
	revision uint64
	key      string
	value    []byte
}

var (
	recordMagic = []byte("\xb3obj")
	castagnoli  = crc32.MakeTable(crc32.Castagnoli)
)

const (
	recordHead    = 12 // magic, length, sum
	contentHead   = 11 // kind, revision, length of the key
	maxRecordSize = recordHead + contentHead + maxKey + MaxValue
)

func (r record) appendTo(b []byte) []byte {
	at := len(b)
	b = append(b, recordMagic...)
	b = binary.BigEndian.AppendUint32(b, uint32(contentHead+len(r.key)+len(r.value)))
	b = binary.BigEndian.AppendUint32(b, 0)
	b = append(b, r.kind)
	b = binary.BigEndian.AppendUint64(b, r.revision)
	b = binary.BigEndian.AppendUint16(b, uint16(len(r.key)))
	b = append(append(b, r.key...), r.value...)
	binary.BigEndian.PutUint32(b[at+8:], crc32.Checksum(b[at+recordHead:], castagnoli))
	return b
}

// copyInfo describes what a copy covers.
type copyInfo struct {
	// complete is set if the copy has all objects as of revision last. It is false if records are
	// missing, or if there is no copy.
	complete bool
	last     uint64
	size     int64
	exists   bool
}

// readCopy calls visit with each readable record. Values are valid only during the call.
func readCopy(path string, visit func(record)) (copyInfo, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return copyInfo{}, nil
	}
	if err != nil {
		return copyInfo{exists: true}, err
	}
	defer f.Close()
	c := copyReader{in: bufio.NewReaderSize(f, 2*maxRecordSize), info: copyInfo{exists: true, complete: true}}
	if err := c.read(visit); err != nil {
		return copyInfo{exists: true, last: c.info.last}, err
	}
	return c.info, nil
}

type copyReader struct {
	in      *bufio.Reader
	info    copyInfo
	based   bool
	objects uint64 // of the base; not read yet
}

func (c *copyReader) read(visit func(record)) error {
	head, err := c.in.Peek(len(copyHead))
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if string(head) == copyHead {
		c.discard(len(copyHead))
	}
	for {
		r, size, err := c.next()
		switch {
		case errors.Is(err, io.EOF):
			c.info.complete = c.info.complete && c.based && c.objects == 0
			return nil
		case err != nil:
			return err
		case size == 0: // no valid record at this offset
			c.info.complete = false
			c.discard(1)
			continue
		}
		c.follow(r)
		visit(r)
		c.discard(size)
	}
}

func (c *copyReader) discard(n int) {
	n, _ = c.in.Discard(n) // was peeked before
	c.info.size += int64(n)
}

// next returns the record at the current offset, and its size; 0 if there is no valid one. The
// error is io.EOF at the end.
func (c *copyReader) next() (record, int, error) {
	head, err := c.in.Peek(recordHead)
	if len(head) == 0 || err != nil && !errors.Is(err, io.EOF) {
		return record{}, 0, err
	}
	if len(head) < recordHead || !bytes.HasPrefix(head, recordMagic) {
		return record{}, 0, nil
	}
	size := int(binary.BigEndian.Uint32(head[4:]))
	if size < contentHead || size > maxRecordSize-recordHead {
		return record{}, 0, nil
	}
	sum := binary.BigEndian.Uint32(head[8:])
	all, err := c.in.Peek(recordHead + size)
	if err != nil {
		if errors.Is(err, io.EOF) {
			return record{}, 0, nil
		}
		return record{}, 0, err
	}
	content := all[recordHead:]
	keySize := int(binary.BigEndian.Uint16(content[9:]))
	if crc32.Checksum(content, castagnoli) != sum || contentHead+keySize > len(content) {
		return record{}, 0, nil
	}
	return record{
		kind: content[0], revision: binary.BigEndian.Uint64(content[1:]), key: string(content[contentHead : contentHead+keySize]),
		value: content[contentHead+keySize:],
	}, recordHead + size, nil
}

// follow updates what is known of the completeness of the copy.
func (c *copyReader) follow(r record) {
	switch {
	case r.kind == recordBase && !c.based && len(r.value) == 8:
		c.based, c.objects = true, binary.BigEndian.Uint64(r.value)
	case r.kind == recordObject && c.based && c.objects > 0:
		c.objects--
		c.info.last = max(c.info.last, r.revision)
		return
	case c.based && c.objects == 0 && r.revision == c.info.last+1:
	default:
		c.info.complete = false
	}
	c.info.last = max(c.info.last, r.revision)
}

// copyWriter writes the copy of an open store. Guarded by Store.commit.
type copyWriter struct {
	path    string
	f       *os.File // nil: no copy that could be appended to
	base    int64    // the size of the base
	changes int64    // the size of the changes
}

func (w *copyWriter) append(changes []Change) error {
	var b []byte
	for _, c := range changes {
		k, err := c.Now.Key.encode()
		if err != nil {
			return err
		}
		r := record{kind: recordWrite, revision: c.Now.Revision, key: k, value: c.Now.Value}
		if c.Now.Value == nil {
			r.kind = recordRemove
		}
		b = r.appendTo(b)
	}
	if err := checkpoint.Allow(w.path, len(b)); err != nil {
		return err
	}
	if _, err := w.f.Write(b); err != nil {
		return err
	}
	w.changes += int64(len(b))
	return nil
}

// isLong reports whether a new base is due.
func (w *copyWriter) isLong() bool { return w.changes > max(w.base, minChanges) }

func (w *copyWriter) close() error {
	if w == nil || w.f == nil {
		return nil
	}
	err := w.f.Close()
	w.f = nil
	return err
}

// rewrite replaces the copy by a base of the objects of db.
func (w *copyWriter) rewrite(db *bolt.DB) (err error) {
	if err := w.close(); err != nil {
		return err
	}
	temp := filepath.Join(filepath.Dir(w.path), "."+filepath.Base(w.path)+".tmp")
	if err := checkpoint.Allow(w.path, 1); err != nil {
		return err
	}
	f, err := os.OpenFile(temp, os.O_CREATE|os.O_TRUNC|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.Close(), removed(temp))
		}
	}()
	out := bufio.NewWriterSize(f, 64<<10)
	if err := writeBase(out, db); err != nil {
		return err
	}
	if err := errors.Join(out.Flush(), f.Sync()); err != nil {
		return err
	}
	if fi, err := os.Lstat(w.path); err == nil && fi.IsDir() {
		if _, err := setAside(w.path); err != nil {
			return err
		}
	}
	if err := os.Rename(temp, w.path); err != nil {
		return err
	}
	at, err := f.Seek(0, io.SeekCurrent)
	w.f, w.base, w.changes = f, at, 0
	return errors.Join(err, syncFolder(filepath.Dir(w.path)))
}

func writeBase(out io.Writer, db *bolt.DB) error {
	return db.View(func(tx *bolt.Tx) error {
		revision, err := number(tx.Bucket(metaBucket), revisionKey)
		if err != nil {
			return err
		}
		objects := tx.Bucket(objectsBucket)
		if _, err := io.WriteString(out, copyHead); err != nil {
			return err
		}
		head := record{kind: recordBase, revision: revision, value: binary.BigEndian.AppendUint64(nil, uint64(objects.Stats().KeyN))}
		var b []byte
		if _, err := out.Write(head.appendTo(b)); err != nil {
			return err
		}
		return objects.ForEach(func(k, stored []byte) error {
			if len(stored) < 8 {
				return fmt.Errorf("%q has %d bytes", k, len(stored))
			}
			b = record{kind: recordObject, revision: binary.BigEndian.Uint64(stored), key: string(k), value: stored[8:]}.appendTo(b[:0])
			_, err := out.Write(b)
			return err
		})
	})
}
