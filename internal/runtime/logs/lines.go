package logs

import (
	"bytes"
	"io"
)

// bufferSize bounds what is held of a log file. It is above the longest line that containerd (16
// KiB) and Docker (16 KiB, each byte up to six as JSON) write.
const bufferSize = 128 << 10

// lines reads a file line by line. What was read of a line without its end stays for the next call,
// so that a file can grow between calls.
type lines struct {
	*piece
	offset     int64 // of the next byte to read from the piece
	buf        []byte
	start, end int // what of buf was read and not handed out
}

// next returns the next piece of the file, valid until the next call: a line without its line end
// (ended), or, when the buffer cannot hold the line, a part of it. io.EOF means that there is no
// whole line yet.
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
		n, err := l.source.Read(l.buf[l.end:])
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

// rest returns what was read of a line that has no end.
func (l *lines) rest() []byte {
	piece := l.buf[l.start:l.end]
	l.start, l.end = 0, 0
	return piece
}

// enter goes on at offset in the piece, forgetting what was read.
func (l *lines) enter(p *piece, offset int64) error {
	l.piece, l.offset, l.start, l.end = p, offset, 0, 0
	return p.begin(offset)
}
