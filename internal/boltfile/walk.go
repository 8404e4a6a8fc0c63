package boltfile

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
)

type walk struct {
	file  *File
	used  map[uint64]struct{} // pages that were reached
	visit func(Entry)
}

// Walk visits the keys of all buckets, in their order, a bucket before its keys. It goes on behind
// what cannot be read, and returns the problems that it found; none means that bbolt can use the
// file.
func (f *File) Walk(visit func(Entry)) []Problem {
	f.problems = nil
	w := &walk{file: f, used: map[uint64]struct{}{}, visit: visit}
	if need := f.meta.Pages; need > uint64(f.size/f.pageSize) {
		f.problem(0, fmt.Sprintf("it has %d of its %d pages", f.size/f.pageSize, need))
	}
	w.tree(f.meta.Root, nil, nil, nil, 0)
	w.freelist()
	return f.problems
}

func (f *File) problem(page uint64, what string) {
	if len(f.problems) < maxProblems {
		f.problems = append(f.problems, Problem{page, what})
	}
}

const maxProblems = 1000

// read returns a page that the file refers to; false if it is not one.
func (w *walk) read(id uint64) (page, bool) {
	if id < 2 || id >= w.file.meta.Pages {
		w.file.problem(id, "is referred to, and does not exist")
		return page{}, false
	}
	if _, again := w.used[id]; again {
		w.file.problem(id, "is referred to twice")
		return page{}, false
	}
	p, err := w.file.pageAt(id)
	if err != nil {
		w.file.problem(id, err.Error())
		return page{}, false
	}
	for i := range uint64(len(p.data)) / uint64(w.file.pageSize) {
		if _, again := w.used[id+i]; again {
			w.file.problem(id+i, "is referred to twice")
			return page{}, false
		}
		w.used[id+i] = struct{}{}
	}
	return p, true
}

// tree visits the keys below a page, which are at least least and less than limit; nil is no bound.
func (w *walk) tree(id uint64, bucket []string, low, high []byte, depth int) {
	if depth > maxDepth {
		w.file.problem(id, "is nested too deeply")
		return
	}
	p, ok := w.read(id)
	if !ok {
		return
	}
	w.inPage(p, bucket, low, high, depth)
}

func (w *walk) inPage(p page, bucket []string, low, high []byte, depth int) {
	switch p.flags {
	case leafPage:
		w.leaf(p, bucket, low, high, depth)
	case branchPage:
		w.branch(p, bucket, low, high, depth)
	default:
		w.file.problem(p.id, fmt.Sprintf("has type %#x where keys are expected", p.flags))
	}
}

func (w *walk) leaf(p page, bucket []string, low, high []byte, depth int) {
	var before []byte
	for i := range p.count {
		e, ok := p.leafElement(i)
		if !ok {
			w.file.problem(p.id, fmt.Sprintf("has a damaged element %d", i))
			continue
		}
		if before != nil && bytes.Compare(before, e.key) >= 0 || low != nil && bytes.Compare(e.key, low) < 0 || high != nil && bytes.Compare(e.key, high) >= 0 {
			w.file.problem(p.id, fmt.Sprintf("has element %d in the wrong order", i))
			continue
		}
		before = e.key
		if !e.bucket {
			w.visit(Entry{Bucket: bucket, Key: e.key, Value: e.value})
			continue
		}
		w.nested(p, e, bucket, depth)
	}
}

// nested visits a bucket that is the value of an element.
func (w *walk) nested(p page, e element, bucket []string, depth int) {
	if len(e.value) < bucketSize || len(bucket) >= maxDepth {
		w.file.problem(p.id, fmt.Sprintf("has a damaged bucket %q", e.key))
		return
	}
	root, sequence := binary.NativeEndian.Uint64(e.value), binary.NativeEndian.Uint64(e.value[8:])
	path := append(slices.Clone(bucket), string(e.key))
	w.visit(Entry{Bucket: bucket, Key: e.key, IsBucket: true, Sequence: sequence})
	if root != 0 {
		w.tree(root, path, nil, nil, depth+1)
		return
	}
	inline := e.value[bucketSize:]
	if len(inline) < pageHeaderSize {
		w.file.problem(p.id, fmt.Sprintf("has a damaged bucket %q", e.key))
		return
	}
	q := page{id: p.id, flags: binary.NativeEndian.Uint16(inline[8:]), count: int(binary.NativeEndian.Uint16(inline[10:])), data: inline}
	if q.flags != leafPage {
		w.file.problem(p.id, fmt.Sprintf("has a damaged bucket %q", e.key))
		return
	}
	w.leaf(q, path, nil, nil, depth+1)
}

func (w *walk) branch(p page, bucket []string, low, high []byte, depth int) {
	if p.count == 0 {
		w.file.problem(p.id, "is a branch without elements")
	}
	for i := range p.count {
		id, key, ok := p.branchElement(i)
		if !ok {
			w.file.problem(p.id, fmt.Sprintf("has a damaged element %d", i))
			continue
		}
		if low != nil && bytes.Compare(key, low) < 0 || high != nil && bytes.Compare(key, high) >= 0 {
			w.file.problem(p.id, fmt.Sprintf("has element %d in the wrong order", i))
			continue
		}
		end := high
		if i+1 < p.count {
			if _, next, ok := p.branchElement(i + 1); ok {
				end = next
			}
		}
		if bytes.Equal(key, end) && end != nil {
			w.file.problem(p.id, fmt.Sprintf("has element %d in the wrong order", i))
			continue
		}
		w.tree(id, bucket, key, end, depth+1)
	}
}

// freelist checks that no page is free and in use, for bbolt would write over it.
func (w *walk) freelist() {
	id := w.file.meta.Freelist
	if id == noFreelist {
		return
	}
	p, ok := w.read(id)
	if !ok {
		return
	}
	ids := p.data[pageHeaderSize:]
	count := uint64(p.count)
	if count == math.MaxUint16 { // more than fit: the first id is their number
		count, ids = binary.NativeEndian.Uint64(ids), ids[8:]
	}
	if p.flags != freelistPage || count > uint64(len(ids)/8) {
		w.file.problem(id, "is not the list of free pages")
		return
	}
	before := uint64(0)
	for i := range count {
		free := binary.NativeEndian.Uint64(ids[i*8:])
		_, used := w.used[free]
		if free < 2 || free >= w.file.meta.Pages || free <= before || used {
			w.file.problem(id, fmt.Sprintf("lists page %d as free, which it is not", free))
		}
		before = free
	}
}
