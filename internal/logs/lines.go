package logs

import (
	"bytes"
	"errors"
	"io"
	"os"
)

// bufferSize bounds what is held of a log file. It is above the longest line that containerd (16 KiB) and Docker (16 KiB, each
// byte up to six as JSON) write.
const bufferSize = 128 << 10

// lines reads a file piece by piece. What was read of a line without its end stays for the next call, so that a file can grow
// between calls.
type lines struct {
	file       *os.File
	offset     int64 // of the next byte to read from file
	buf        []byte
	start, end int // what of buf was read and not handed out
}

// next returns the next piece of the file, valid until the next call: a line without its line end (ended), or, when the buffer
// cannot hold the line, a part of it. io.EOF means that there is no whole line yet.
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
		n, err := l.file.ReadAt(l.buf[l.end:], l.offset)
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

// rest returns what was read of a line that has no end.
func (l *lines) rest() []byte {
	piece := l.buf[l.start:l.end]
	l.start, l.end = 0, 0
	return piece
}

// seek goes on at offset in the file, forgetting what was read.
func (l *lines) seek(offset int64) { l.offset, l.start, l.end = offset, 0, 0 }

// tailOffset returns where the last n lines of the file begin. It reads backwards in blocks of len(buf), no further than needed.
// An end without a line end counts as a line.
func tailOffset(file io.ReaderAt, size, n int64, buf []byte) (int64, error) {
	if n <= 0 {
		return size, nil
	}
	end := size
	for end > 0 {
		begin := max(0, end-int64(len(buf)))
		block := buf[:end-begin]
		if _, err := file.ReadAt(block, begin); err != nil && !errors.Is(err, io.EOF) {
			return 0, err
		}
		for i := len(block); i > 0; {
			i = bytes.LastIndexByte(block[:i], '\n')
			if i < 0 {
				break
			}
			at := begin + int64(i) + 1 // a line begins here, and one ends before
			if at == size {
				continue
			}
			if n--; n == 0 {
				return at, nil
			}
		}
		end = begin
	}
	return 0, nil
}
