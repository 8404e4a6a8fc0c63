package logs

import (
	"bytes"
	"io"
)

// bufferSize limits the memory for a log file. It exceeds the longest line that containerd (16 KiB)
// and Docker (16 KiB, each byte up to six as JSON) write.
const bufferSize = 128 << 10

// lines reads a file line by line. An incomplete line is buffered for the next call, so that a file
// can grow between calls.
type lines struct {
	piece      *piece
	offset     int64 // of the next byte to read from the piece
	buf        []byte
	start, end int // the part of buf that was read and not returned yet
}

// next returns the next piece of the file, valid until the next call: a line without its newline
// (ended), or a part of a line that exceeds the buffer. io.EOF means that there is no complete line
// yet.
func (l *lines) next() (piece []byte, ended bool, err error) {
	seen := 0
	for {
		unseen := l.buf[l.start+seen : l.end]
		if i := bytes.IndexByte(unseen, '\n'); i >= 0 {
			piece = l.buf[l.start : l.start+seen+i]
			l.start += seen + i + 1
			return piece, true, nil
		}
		seen = l.end - l.start
		if seen == len(l.buf) {
			l.start, l.end = 0, 0
			return l.buf[:seen], false, nil
		}
		if l.start > 0 {
			copy(l.buf, l.buf[l.start:l.end])
			l.start, l.end = 0, seen
		}
		n, err := l.piece.source.Read(l.buf[l.end:])
		l.offset += int64(n)
		l.end += n
		if n == 0 {
			if err == nil {
				err = io.ErrNoProgress
			}
			return nil, false, err
		}
	}
}

// position returns the offset of the next piece.
func (l *lines) position() int64 { return l.offset - int64(l.end-l.start) }

// rest returns the buffered part of an incomplete line.
func (l *lines) rest() []byte {
	piece := l.buf[l.start:l.end]
	l.start, l.end = 0, 0
	return piece
}

// enter continues at offset in the piece, and discards the buffer.
func (l *lines) enter(p *piece, offset int64) error {
	l.piece, l.offset, l.start, l.end = p, offset, 0, 0
	return p.begin(offset)
}
