package nodelogs

import (
	"bufio"
	"context"
	"errors"
	"io"
	"os"
	"regexp"
)

// lineBuffer bounds the buffered part of a file. Only the beginning of a longer line is matched.
const lineBuffer = 64 << 10

// copyLines writes the lines of the file, at its current size, that the query selects. With
// TailLines the file is read twice: once to count.
func copyLines(ctx context.Context, w io.Writer, f *os.File, q Query) error {
	var pattern *regexp.Regexp
	if q.Pattern != "" {
		var err error
		if pattern, err = regexp.Compile(q.Pattern); err != nil {
			return &QueryError{err}
		}
	}
	st, err := f.Stat()
	if err != nil {
		return err
	}
	skip := 0
	if q.TailLines != nil {
		count := 0
		err := eachLine(ctx, f, st.Size(), pattern, func(_ []byte, begins bool) error {
			if begins {
				count++
			}
			return nil
		})
		if err != nil {
			return err
		}
		skip = max(0, count-*q.TailLines)
	}
	return eachLine(ctx, f, st.Size(), pattern, func(piece []byte, begins bool) error {
		if begins {
			skip--
		}
		if skip >= 0 {
			return nil
		}
		_, err := w.Write(piece)
		return err
	})
}

// eachLine calls visit with the matching lines, including line ends; a line that exceeds the buffer
// comes in several pieces, with begins set for the first.
func eachLine(ctx context.Context, f *os.File, size int64, pattern *regexp.Regexp, visit func(piece []byte, begins bool) error) error {
	r := bufio.NewReaderSize(io.NewSectionReader(f, 0, size), lineBuffer)
	begins, wanted := true, false
	for {
		piece, err := r.ReadSlice('\n')
		if len(piece) > 0 {
			if begins {
				wanted = pattern == nil || pattern.Match(trimEnd(piece))
			}
			if wanted {
				if err := visit(piece, begins); err != nil {
					return err
				}
			}
			begins = !errors.Is(err, bufio.ErrBufferFull)
		}
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil && !errors.Is(err, bufio.ErrBufferFull):
			return err
		case ctx.Err() != nil:
			return context.Cause(ctx)
		}
	}
}

func trimEnd(line []byte) []byte {
	if n := len(line); n > 0 && line[n-1] == '\n' {
		return line[:n-1]
	}
	return line
}
