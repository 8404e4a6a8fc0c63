package logs

import (
	"context"
	"errors"
	"fmt"
	"io"
)

// Running asks whether the container that writes the log still runs.
type Running func(ctx context.Context) (bool, error)

// Read prints the log at path. Without Follow it ends at the end of the file. With it, it goes on with what is written later, over
// rotations, until the container has ended and all it wrote is printed, until LimitBytes are printed, or until ctx ends, whose
// cause is then the error. running may be nil; then the container counts as ended unless Options.Exited says otherwise.
//
// Lines that no known runtime writes are left out. Of the file no more than a buffer of 128 KiB is held, whatever the length of
// its lines; a longer line is printed in pieces if it is of CRI's format, and left out if it is JSON. A nil writer discards its
// stream; both may be one.
func Read(ctx context.Context, path string, o Options, running Running, stdout, stderr io.Writer) error {
	r := &reader{path: path, options: o, out: newOutput(o, stdout, stderr)}
	err := r.read(ctx, running, make([]byte, bufferSize))
	switch {
	case errors.Is(err, errLimit):
		return nil
	case err != nil:
		return fmt.Errorf("read log %s: %w", path, err)
	}
	return nil
}

// reader is one call of Read.
type reader struct {
	path    string
	options Options
	out     *output
	lines   lines
	long    longLine
}

// longLine is the state inside a line that the buffer cannot hold.
type longLine struct {
	inside bool
	skip   bool // the line is not printed
	entry  entry
}

func (r *reader) read(ctx context.Context, running Running, buf []byte) error {
	if r.out.left == 0 {
		return nil
	}
	file, err := Open(r.path)
	if err != nil {
		return err
	}
	r.lines = lines{file: file, buf: buf}
	defer func() { r.lines.file.Close() }()
	if r.options.TailLines != nil {
		st, err := file.Stat()
		if err != nil {
			return err
		}
		offset, err := tailOffset(file, st.Size(), *r.options.TailLines, buf)
		if err != nil {
			return err
		}
		r.lines.seek(offset)
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

// drain prints the file up to its present end, and what it holds of a line without an end stays in the buffer.
func (r *reader) drain(ctx context.Context) error {
	for {
		piece, ended, err := r.lines.next()
		if errors.Is(err, io.EOF) {
			return r.out.flush()
		}
		if err == nil {
			err = r.piece(piece, ended)
		}
		if err == nil && ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		if err != nil {
			return err
		}
	}
}

// finish prints the line at the end of the file that has no line end: its writer is gone.
func (r *reader) finish() error {
	if rest := r.lines.rest(); len(rest) > 0 || r.long.inside {
		if err := r.piece(rest, true); err != nil {
			return err
		}
	}
	return r.out.flush()
}

// piece prints a line, or a part of one that is too long for the buffer.
func (r *reader) piece(piece []byte, ended bool) error {
	if r.long.inside {
		r.long.inside = !ended
		if r.long.skip {
			return nil
		}
		e := r.long.entry
		e.text = piece
		e.partial = e.partial || !ended
		return r.out.print(e)
	}
	e, err := parse(piece)
	selected := err == nil && r.out.wants(e)
	if !ended {
		// The beginning of a JSON object is no JSON.
		r.long = longLine{inside: true, skip: !selected, entry: entry{time: e.time, stream: e.stream, partial: e.partial}}
		e.partial = true
	}
	if !selected {
		return nil
	}
	return r.out.print(e)
}
