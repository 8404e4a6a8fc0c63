package logs

import (
	"bytes"
	"compress/flate"
	"compress/gzip"
	"errors"
	"io"
	"io/fs"
	"os"
)

// piece is an open file of a log: the live one, or a part.
type piece struct {
	*os.File
	stamp  Stamp // zero unless it is known to be a part
	packed bool
	source io.Reader // the decompressed content
}

// openLive opens the live file.
func openLive(path string) (*piece, error) {
	f, err := Open(path)
	if err != nil {
		return nil, err
	}
	return &piece{File: f, source: f}, nil
}

// openPart opens a part, compressed or not; fs.ErrNotExist means that it was removed.
func openPart(path string, s Stamp) (*piece, error) {
	f, err := Open(partPath(path, Part{Stamp: s}))
	if err == nil {
		return &piece{File: f, stamp: s, source: f}, nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if f, err = Open(partPath(path, Part{s, true})); err != nil {
		return nil, err
	}
	return &piece{File: f, stamp: s, packed: true, source: &unpacker{file: f}}, nil
}

// unpacker reads a compressed part. A damaged one ends at the damage.
type unpacker struct {
	file io.Reader
	z    *gzip.Reader // nil before the first Read
}

func (u *unpacker) Read(p []byte) (n int, err error) {
	if u.z == nil {
		u.z, err = gzip.NewReader(u.file)
	}
	if err == nil {
		n, err = u.z.Read(p)
	}
	var corrupt flate.CorruptInputError
	if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, gzip.ErrHeader) || errors.Is(err, gzip.ErrChecksum) || errors.As(err, &corrupt) {
		u.z, err = nil, io.EOF
		u.file = bytes.NewReader(nil)
	}
	return n, err
}

// begin seeks to an offset of the decompressed content.
func (p *piece) begin(offset int64) error {
	if _, err := p.Seek(0, io.SeekStart); err != nil {
		return err
	}
	if !p.packed {
		_, err := p.Seek(offset, io.SeekStart)
		return err
	}
	p.source = &unpacker{file: p.File}
	_, err := io.CopyN(io.Discard, p.source, offset)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return err
}
