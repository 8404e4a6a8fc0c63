package logs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// closeDelay is how long the runtime may still write buffered output to a rotated file after it
	// created the next one, if the kernel cannot report that it was closed.
	closeDelay = 100 * time.Millisecond
	// closePoll is the polling interval for the runtime's close of the file, and closeTimeout the
	// maximum wait for it.
	closePoll, closeTimeout = 10 * time.Millisecond, 2 * time.Second
	// clockSlack is how much a file's time may precede that of its last line: the kernel's clock
	// for files is coarse.
	clockSlack = time.Second
)

// Streams are the writers for the lines of a log. A nil writer discards its stream; both may be the
// same.
type Streams struct{ Out, Err io.Writer }

// Running reports whether the container that writes the log is still running.
type Running func(ctx context.Context) (bool, error)

// Read prints the log at path, including its rotated parts. Without Follow it returns at the end of
// the file. With it, it continues with later output, across rotations, until the container has
// exited and all its output is printed, until LimitBytes are printed, or until ctx is done, whose
// cause is then the error. running may be nil; then the container counts as exited unless
// Options.Exited is set.
//
// Differs from the kubelet: it reads the newest file only, so that after a rotation there is almost
// no output.
//
// Parts that are removed before they are read, because the container writes faster than the caller
// reads, are skipped, and so are lines of unknown format. At most a buffer of 128 KiB of the file
// is in memory, whatever the length of its lines; a longer line is printed in pieces if it is of
// CRI's format, and skipped if it is JSON.
func Read(ctx context.Context, path string, o Options, running Running, to Streams) error {
	r := &reader{path: path, options: o, out: newOutput(o, to.Out, to.Err)}
	buf := buffers.Get().(*[bufferSize]byte)
	defer buffers.Put(buf)
	err := r.read(ctx, running, buf[:])
	switch {
	case errors.Is(err, errLimit):
		return nil
	case err != nil:
		return fmt.Errorf("read log %s: %w", path, err)
	}
	return nil
}

// buffers are the buffers of finished readers: each container's log is read when it exits.
var buffers = sync.Pool{New: func() any { return new([bufferSize]byte) }}

// reader is one call of Read.
type reader struct {
	path    string
	options Options
	out     *output
	lines   lines
	long    longLine
	tail    *tail // nil: all entries are printed
	file    int   // number of the current file, while there is a tail
	// last is the newest part that precedes the current piece, or is it.
	last Stamp
}

// longLine is the state inside a line that exceeds the buffer.
type longLine struct {
	inside bool
	skip   bool // the line is not printed
	entry  entry
}

func (r *reader) read(ctx context.Context, running Running, buf []byte) error {
	if r.out.remaining == 0 {
		return nil
	}
	older, newest, err := r.open()
	if err != nil {
		return err
	}
	r.lines.buf = buf
	defer func() { r.lines.piece.Close() }() // of the piece that is current then
	r.lines.piece = newest
	var offset int64
	if n := r.options.TailLines; n != nil {
		if offset, err = r.findTail(older, *n); err != nil {
			return err
		}
	}
	for ; r.file < len(older); r.file++ {
		if err := r.readPart(ctx, older[r.file], offset, older[len(older)-1]); err != nil {
			return err
		}
		offset = 0
	}
	r.long = longLine{}
	if err := r.lines.enter(newest, offset); err != nil {
		return err
	}
	if r.options.Follow {
		err = r.follow(ctx, running)
	} else {
		err = r.drain(ctx)
	}
	if err != nil {
		return err
	}
	return r.finish()
}

// open opens the newest file, and returns the parts before it. During a rotation the newest file is
// the newest part.
func (r *reader) open() (older []Stamp, newest *piece, err error) {
	const tries = 10
	for range tries {
		newest, err = openLive(r.path)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, nil, err
		}
		if older, _ = stamps(r.path); newest == nil && len(older) > 0 {
			i := len(older) - 1
			if newest, err = openPart(r.path, older[i]); errors.Is(err, fs.ErrNotExist) {
				continue // the rotation was undone
			}
			older = older[:i]
		}
		break
	}
	if err != nil {
		return nil, nil, err
	}
	// It may have been rotated since it was opened.
	st, err := newest.Stat()
	if err != nil {
		return nil, nil, errors.Join(err, newest.Close())
	}
	if s, ok := findPart(r.path, older, st); ok {
		i := slices.Index(older, s)
		older, newest.stamp = older[:i], s
	}
	r.last = newest.stamp
	if n := len(older); n > 0 && r.last == (Stamp{}) {
		r.last = older[n-1]
	}
	return older, newest, nil
}

// findTail finds the last n lines, and sets the file and returns the offset at which reading
// begins.
func (r *reader) findTail(older []Stamp, n int64) (offset int64, err error) {
	newest := r.lines.piece
	st, err := newest.Stat()
	if err != nil {
		return 0, err
	}
	end := position{len(older), st.Size()}
	if newest.packed {
		end.offset = math.MaxInt64 // all its content is before it
	}
	r.tail = &tail{only: r.options.Stream, missing: n, end: end}
	if !r.tail.complete() {
		if err := r.tail.scan(newest, len(older), st.Size(), r.lines.buf); err != nil {
			return 0, err
		}
	}
	for i := len(older) - 1; i >= 0 && !r.tail.complete(); i-- {
		p, err := openPart(r.path, older[i])
		if errors.Is(err, fs.ErrNotExist) {
			break // it was removed, and all before it
		}
		if err != nil {
			return 0, err
		}
		st, err := p.Stat()
		if err == nil {
			err = r.tail.scan(p, i, st.Size(), r.lines.buf)
		}
		if err := errors.Join(err, p.Close()); err != nil {
			return 0, err
		}
	}
	begin := r.tail.begin()
	r.file = begin.file
	return begin.offset, nil
}

// readPart prints a part; a removed one is skipped. The runtime may still be writing to the last
// one.
func (r *reader) readPart(ctx context.Context, s Stamp, offset int64, last Stamp) error {
	p, err := openPart(r.path, s)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer p.Close()
	st, err := p.Stat()
	if err != nil {
		return err
	}
	if !r.options.Since.IsZero() && st.ModTime().Before(r.options.Since.Add(-clockSlack)) {
		return nil
	}
	newest := r.lines.piece
	defer func() { r.lines.piece = newest }()
	r.long = longLine{}
	if err := r.lines.enter(p, offset); err != nil {
		return err
	}
	if s == last {
		if err := awaitClose(ctx, p, closeDelay-sinceRename(st)); err != nil {
			return err
		}
	}
	if err := r.drain(ctx); err != nil {
		return err
	}
	return r.finish()
}

// sinceRename returns how long ago a file was renamed.
func sinceRename(file os.FileInfo) time.Duration {
	st, ok := file.Sys().(*syscall.Stat_t)
	if !ok {
		return closeDelay
	}
	return max(0, time.Since(time.Unix(st.Ctim.Unix())))
}

// awaitClose waits until the runtime has written its buffered output to a rotated file and closed
// it; if the kernel cannot report that, for the guessed time.
func awaitClose(ctx context.Context, p *piece, guessed time.Duration) error {
	if p.packed {
		return nil // a compressed part has no writer
	}
	for began := time.Now(); ; {
		written, err := hasWriter(p.File)
		wait, remaining := closePoll, closeTimeout-time.Since(began)
		if err != nil {
			remaining = guessed - time.Since(began)
			wait = remaining
		}
		if remaining <= 0 || err == nil && !written {
			return nil
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return context.Cause(ctx)
		}
	}
}

// hasWriter reports whether a process, including this one, has the file open for writing: then the
// kernel grants no read lease (F_SETLEASE of fcntl(2)). A granted lease is released at once. It
// fails if the file system has no leases, or if the file belongs to another user.
func hasWriter(f *os.File) (bool, error) {
	_, err := unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_RDLCK)
	if errors.Is(err, unix.EAGAIN) {
		return true, nil
	}
	if err == nil {
		_, err = unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_UNLCK)
	}
	return false, err
}

// drain prints the file up to its current end, and keeps an incomplete line in the buffer.
func (r *reader) drain(ctx context.Context) error {
	for {
		offset := r.lines.position()
		piece, ended, err := r.lines.next()
		if errors.Is(err, io.EOF) {
			return r.out.flush()
		}
		if err == nil {
			err = r.piece(fragment{piece, offset, ended})
		}
		if err == nil && ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		if err != nil {
			return err
		}
	}
}

// finish prints the incomplete line at the end of the file, which has no writer any more.
func (r *reader) finish() error {
	offset := r.lines.position()
	if rest := r.lines.rest(); len(rest) > 0 || r.long.inside {
		if err := r.piece(fragment{rest, offset, true}); err != nil {
			return err
		}
	}
	return r.out.flush()
}

// fragment is a line, or a part of one.
type fragment struct {
	text   []byte
	offset int64 // in the file
	ended  bool  // it ends with the line
}

// piece prints a line, or a part of one that exceeds the buffer.
func (r *reader) piece(f fragment) error {
	if r.long.inside {
		r.long.inside = !f.ended
		if r.long.skip {
			return nil
		}
		e := r.long.entry
		e.text = f.text
		e.partial = e.partial || !f.ended
		return r.out.print(e)
	}
	e, err := parse(f.text)
	selected := err == nil && r.out.wants(e) && r.tail.selects(e.stream, position{r.file, f.offset})
	if !f.ended {
		// The beginning of a JSON object does not parse, and is skipped.
		r.long = longLine{inside: true, skip: !selected, entry: entry{time: e.time, stream: e.stream, partial: e.partial}}
		e.partial = true
	}
	if !selected {
		return nil
	}
	return r.out.print(e)
}
