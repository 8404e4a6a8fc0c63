// Package boltfile reads files of bbolt without mapping them into memory. What a damaged file
// points to is checked before it is followed, so that no content of a file can crash the reader,
// as it can crash bbolt.
//
// Owns: nothing.
// Reads: the file that it is given.
// Never: writes to it, or panics because of what is in it.
package boltfile

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"math"
)

// Sizes and flags of bbolt's file format, version 2.
const (
	pageHeaderSize = 16
	metaSize       = 64
	elementSize    = 16 // of a leaf or branch page
	bucketSize     = 16

	magic   = 0xED0CDAED
	version = 2

	branchPage   = 0x01
	leafPage     = 0x02
	freelistPage = 0x10
	bucketEntry  = 0x01

	noFreelist = math.MaxUint64
	// maxDepth bounds the nesting of pages and of buckets. A tree of this depth holds more pages
	// than a disk does.
	maxDepth = 64
)

// Problem is one inconsistency of a file.
type Problem struct {
	Page uint64 // 0: it is of the whole file
	What string
}

func (p Problem) Error() string {
	if p.Page == 0 {
		return p.What
	}
	return fmt.Sprintf("page %d %s", p.Page, p.What)
}

// Entry is one key of a bucket. Key and Value are valid during the call of the visitor.
type Entry struct {
	// Bucket is the path of the bucket that has the key.
	Bucket []string
	Key    []byte
	Value  []byte // nil for a nested bucket
	// IsBucket says that the key is that of a nested bucket. Its keys follow, unless they cannot
	// be read.
	IsBucket bool
	Sequence uint64 // of a nested bucket
}

// File is an open file.
type File struct {
	r        io.ReaderAt
	size     int64
	pageSize int64
	meta     meta
	problems []Problem
}

type meta struct {
	Magic, Version, PageSize, Flags uint32
	Root, Sequence, Freelist        uint64
	Pages, TxID                     uint64 // Pages: the first page that was never in use
	Checksum                        uint64 // FNV-1a of all before it
}

// ErrNoMeta is the error of a file without a valid meta page: nothing says where its tree begins.
var ErrNoMeta = errors.New("neither of the two meta pages is valid")

// Open reads the meta pages of a file of so many bytes.
func Open(r io.ReaderAt, size int64) (*File, error) {
	f := &File{r: r, size: size}
	var failed error
	// The second meta page follows the first, whose page size may be damaged.
	for _, at := range []int64{0, 1 << 9, 1 << 10, 1 << 11, 1 << 12, 1 << 13, 1 << 14, 1 << 15, 1 << 16} {
		m, err := readMeta(r, at+pageHeaderSize)
		failed = cmp.Or(failed, err)
		if m.valid() && (at == 0 || at == int64(m.PageSize)) && m.TxID >= f.meta.TxID {
			f.meta, f.pageSize = m, int64(m.PageSize)
		}
	}
	if f.pageSize == 0 {
		return nil, cmp.Or(failed, ErrNoMeta)
	}
	return f, nil
}

func (m *meta) valid() bool {
	return m.Magic == magic && m.Version == version && m.PageSize >= 512 && m.PageSize <= 1<<16 && m.PageSize&(m.PageSize-1) == 0
}

// readMeta reads a meta page's content; all zero if there is none or its checksum is wrong.
func readMeta(r io.ReaderAt, at int64) (meta, error) {
	raw := make([]byte, metaSize)
	if _, err := r.ReadAt(raw, at); errors.Is(err, io.EOF) {
		return meta{}, nil
	} else if err != nil {
		return meta{}, err
	}
	var m meta
	if _, err := binary.Decode(raw, binary.NativeEndian, &m); err != nil {
		return meta{}, err
	}
	sum := fnv.New64a()
	sum.Write(raw[:metaSize-8])
	if m.Checksum != sum.Sum64() {
		return meta{}, nil
	}
	return m, nil
}

// page is a page with its overflow.
type page struct {
	id    uint64
	flags uint16
	count int
	data  []byte // with the header
}

var errHeader = errors.New("has a damaged header")

func (f *File) pageAt(id uint64) (page, error) {
	if id >= uint64(f.size/f.pageSize) {
		return page{}, errors.New("is beyond the end of the file")
	}
	data := make([]byte, f.pageSize)
	at := int64(id) * f.pageSize
	if err := f.readAt(data, at); err != nil {
		return page{}, err
	}
	p := page{id: binary.NativeEndian.Uint64(data), flags: binary.NativeEndian.Uint16(data[8:]), count: int(binary.NativeEndian.Uint16(data[10:]))}
	overflow := uint64(binary.NativeEndian.Uint32(data[12:]))
	if p.id != id {
		return page{}, errHeader
	}
	if id+overflow >= uint64(f.size/f.pageSize) {
		return page{}, errors.New("extends beyond the end of the file, or has a damaged header")
	}
	if overflow > 0 {
		more := make([]byte, (int64(overflow)+1)*f.pageSize)
		copy(more, data)
		if err := f.readAt(more[f.pageSize:], at+f.pageSize); err != nil {
			return page{}, err
		}
		data = more
	}
	p.data = data
	return p, nil
}

func (f *File) readAt(b []byte, at int64) error {
	if _, err := f.r.ReadAt(b, at); errors.Is(err, io.EOF) {
		return errors.New("is beyond the end of the file")
	} else if err != nil {
		return fmt.Errorf("cannot be read: %w", err)
	}
	return nil
}

// element is one key of a leaf page.
type element struct {
	key, value []byte
	bucket     bool
}

func (p page) leafElement(i int) (element, bool) {
	at := pageHeaderSize + i*elementSize
	if at+elementSize > len(p.data) {
		return element{}, false
	}
	head := p.data[at:]
	flags, pos := binary.NativeEndian.Uint32(head), uint64(binary.NativeEndian.Uint32(head[4:]))
	keySize, valueSize := uint64(binary.NativeEndian.Uint32(head[8:])), uint64(binary.NativeEndian.Uint32(head[12:]))
	from := uint64(at) + pos
	if flags > bucketEntry || keySize == 0 || pos < elementSize || from+keySize+valueSize > uint64(len(p.data)) {
		return element{}, false
	}
	return element{
		key: p.data[from : from+keySize : from+keySize], value: p.data[from+keySize : from+keySize+valueSize : from+keySize+valueSize], bucket: flags == bucketEntry,
	}, true
}

func (p page) branchElement(i int) (id uint64, key []byte, ok bool) {
	at := pageHeaderSize + i*elementSize
	if at+elementSize > len(p.data) {
		return 0, nil, false
	}
	head := p.data[at:]
	pos, keySize := uint64(binary.NativeEndian.Uint32(head)), uint64(binary.NativeEndian.Uint32(head[4:]))
	from := uint64(at) + pos
	if pos < elementSize || from+keySize > uint64(len(p.data)) {
		return 0, nil, false
	}
	return binary.NativeEndian.Uint64(head[8:]), p.data[from : from+keySize : from+keySize], true
}

// Leaves visits the keys of all pages that look like leaf pages, whether the tree has them or not.
// A key may come more than once, with values that it had before. Entries have no path.
func (f *File) Leaves(visit func(Entry)) { visitLeaves(f, visit) }

// LeavesWithoutMeta is File.Leaves for a file without a valid meta page.
func LeavesWithoutMeta(r io.ReaderAt, size int64, pageSize int, visit func(Entry)) {
	visitLeaves(&File{r: r, size: size, pageSize: int64(pageSize)}, visit)
}

func visitLeaves(f *File, visit func(Entry)) {
	for id := uint64(2); id < uint64(f.size/f.pageSize); id++ {
		p, err := f.pageAt(id)
		if err != nil || p.flags != leafPage {
			continue
		}
		for i := range p.count {
			if e, ok := p.leafElement(i); ok && !e.bucket {
				visit(Entry{Key: e.key, Value: e.value})
			}
		}
	}
}
