package logs

import (
	"context"
	"errors"
	"io"
	"io/fs"
)

const (
	// tailWindow is the size of the end of a file that is first scanned for the beginning of the
	// tail. The window grows eightfold until it contains the beginning.
	tailWindow = 64 << 10
	// tailApart bounds the search for the first part of a line behind output of the other stream: a
	// stream with a single line would require a scan of the whole log.
	tailApart = 256 << 10
)

// Tail returns the last lines of the log at path on both streams, and of these at most the last
// limit bytes. A log with an empty path does not exist.
func Tail(ctx context.Context, path string, lines int64, limit int) (string, error) {
	if path == "" {
		return "", fs.ErrNotExist
	}
	last := lastBytes{limit: limit}
	if err := Read(ctx, path, Options{TailLines: &lines}, nil, Streams{Out: &last, Err: &last}); err != nil {
		return "", err
	}
	return string(last.bytes), nil
}

// lastBytes is a writer that retains the last bytes written to it.
type lastBytes struct {
	limit int
	bytes []byte
}

func (l *lastBytes) Write(p []byte) (int, error) {
	l.bytes = append(l.bytes, p[max(0, len(p)-l.limit):]...)
	if n := len(l.bytes) - l.limit; n > 0 {
		l.bytes = append(l.bytes[:0], l.bytes[n:]...)
	}
	return len(p), nil
}

// position is a place in a log: an offset in one of its files, which are numbered from the oldest.
type position struct {
	file   int
	offset int64
}

func (p position) before(o position) bool {
	return p.file < o.file || p.file == o.file && p.offset < o.offset
}

// tail finds the beginning of the last lines of a log. It scans files from the newest to older
// ones. A long line is several entries, with entries of the other stream between them, so each
// stream has its own beginning. Lines are ordered by their last entry; an incomplete last line
// counts.
//
// Differs from the kubelet: it counts entries, so the last one of a long line is its last 16 KiB.
type tail struct {
	only    Stream // AllStreams: lines of both count
	missing int64  // number of lines that are not found yet
	end     position
	streams map[Stream]streamTail
}

// streamTail is the tail of one stream, as far as it is known.
type streamTail struct {
	seen     bool     // an entry was found, of the tail or not
	selected bool     // an entry of the tail was found
	open     bool     // the first line of the tail may begin in an older file
	begin    position // of the first selected entry
}

// complete reports whether older files contain nothing of the tail.
func (t *tail) complete() bool {
	return t.missing == 0 && !t.streams[Stdout].open && !t.streams[Stderr].open
}

// selects reports whether the stream's entry at the position belongs to the tail or was written
// after it. A nil tail selects all.
func (t *tail) selects(s Stream, at position) bool {
	if t == nil {
		return true
	}
	if st := t.streams[s]; st.selected {
		return !at.before(st.begin)
	}
	return !at.before(t.end)
}

// begin returns where reading begins: at the first entry that is selected.
func (t *tail) begin() position {
	first := t.end
	for _, s := range t.streams {
		if s.selected && s.begin.before(first) {
			first = s.begin
		}
	}
	return first
}

// scan adds a file to the tail, the one before those that were added. size is its length; it is not
// used for a compressed file, which is read from its beginning.
func (t *tail) scan(p *piece, file int, size int64, buf []byte) error {
	for window := int64(tailWindow); ; window *= 8 {
		w := tailScan{tail: t, piece: p, file: file, from: max(0, size-window), to: size, buf: buf}
		if p.packed {
			w.from, w.to = 0, -1
		}
		if enough, err := w.run(); err != nil || enough {
			return err
		}
	}
}

// tailScan adds one window of a file to a tail.
type tailScan struct {
	tail     *tail
	piece    *piece
	file     int
	from, to int64 // a negative to is the end of the file, and becomes its offset
	buf      []byte
}

// run returns false, and leaves the tail unchanged, if the window is too small.
func (w *tailScan) run() (enough bool, err error) {
	lines, unended, err := w.count()
	if err != nil {
		return false, err
	}
	drop := lines - w.tail.missing
	if drop < 0 && w.from > 0 {
		return false, nil
	}
	drop = max(0, drop)
	first, dropped, err := w.firsts(drop, unended)
	if err != nil {
		return false, err
	}
	missing := max(0, w.tail.missing-lines)
	streams := map[Stream]streamTail{}
	for _, stream := range []Stream{Stdout, Stderr} {
		s := w.tail.streams[stream]
		if offset, ok := first[stream]; ok {
			s = streamTail{seen: true, selected: true, open: true, begin: position{w.file, offset}}
		}
		if dropped[stream] {
			s.seen, s.open = true, false
		}
		if s.open && missing == 0 {
			unread := w.to
			if s.begin.file == w.file {
				unread = s.begin.offset
			}
			if unread -= w.from; unread >= tailApart {
				s.open = false
			} else if w.from > 0 {
				return false, nil
			}
		}
		streams[stream] = s
	}
	w.tail.missing, w.tail.streams = missing, streams
	return true, nil
}

// count returns the number of lines that end in the window, and the offsets of streams' last
// entries that are parts of a line: so far, they end a line as well.
func (w *tailScan) count() (lines int64, unended map[Stream]int64, err error) {
	unended = map[Stream]int64{}
	err = w.each(func(e entry, offset int64) {
		switch {
		case !e.partial:
			lines++
			delete(unended, e.stream)
		case !w.tail.streams[e.stream].seen:
			unended[e.stream] = offset
		}
	})
	return lines + int64(len(unended)), unended, err
}

// firsts returns the offset of each stream's first entry after the first drop lines, and the
// streams of these lines. A stream whose beginning is known from a newer file is left out.
func (w *tailScan) firsts(drop int64, unended map[Stream]int64) (first map[Stream]int64, dropped map[Stream]bool, err error) {
	first, dropped = map[Stream]int64{}, map[Stream]bool{}
	err = w.each(func(e entry, offset int64) {
		last, isLast := unended[e.stream]
		ends := !e.partial || isLast && last == offset
		if ends && drop > 0 {
			drop--
			delete(first, e.stream)
			dropped[e.stream] = true
			return
		}
		s := w.tail.streams[e.stream]
		if _, ok := first[e.stream]; !ok && (s.open || !s.seen) {
			first[e.stream] = offset
		}
	})
	return first, dropped, err
}

// each calls f for each entry of the window with its offset.
func (w *tailScan) each(f func(entry, int64)) error {
	l := lines{buf: w.buf}
	// The window begins after a newline.
	if err := l.enter(w.piece, max(0, w.from-1)); err != nil {
		return err
	}
	inside := w.from > 0
	for {
		offset := l.position()
		if w.to >= 0 && offset >= w.to {
			return nil
		}
		text, ended, err := l.next()
		if errors.Is(err, io.EOF) {
			if w.to < 0 {
				w.to = l.offset
			}
			if text = l.rest(); len(text) == 0 || inside {
				return nil
			}
		} else if err != nil {
			return err
		}
		if !inside {
			if e, invalid := parse(text); invalid == nil && (w.tail.only == AllStreams || w.tail.only == e.stream) {
				f(e, offset)
			}
		}
		if err != nil {
			return nil
		}
		inside = !ended
	}
}
