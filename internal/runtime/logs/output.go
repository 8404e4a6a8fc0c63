package logs

import (
	"errors"
	"fmt"
	"io"
)

// outputBatch is the size in bytes above which buffered output is written.
const outputBatch = 32 << 10

// timeFormat has nine fractional digits, so that the lines' texts are aligned.
const timeFormat = "2006-01-02T15:04:05.000000000Z07:00"

// errLimit stops reading when LimitBytes are written.
var errLimit = errors.New("byte limit reached")

// output prints entries. It buffers output for one stream and writes it before any for the other,
// so that the order is preserved if both are one writer.
type output struct {
	options   Options
	writers   map[Stream]io.Writer
	remaining int64 // remaining bytes; negative: no limit

	stream  Stream // of buf
	buf     []byte
	midLine map[Stream]bool // the stream's last entry was partial
}

func newOutput(o Options, stdout, stderr io.Writer) *output {
	out := &output{
		options:   o,
		writers:   map[Stream]io.Writer{Stdout: stdout, Stderr: stderr},
		remaining: -1,
		midLine:   map[Stream]bool{},
	}
	if o.LimitBytes != nil {
		out.remaining = max(0, *o.LimitBytes)
	}
	return out
}

// wants reports whether the options select the entry.
func (o *output) wants(e entry) bool {
	return (o.options.Stream == AllStreams || o.options.Stream == e.stream) && !e.time.Before(o.options.Since)
}

// print adds an entry that the options select.
func (o *output) print(e entry) error {
	if o.stream != e.stream {
		if err := o.flush(); err != nil {
			return err
		}
		o.stream = e.stream
	}
	if o.options.Timestamps && !o.midLine[e.stream] {
		o.buf = e.time.AppendFormat(o.buf, timeFormat)
		o.buf = append(o.buf, ' ')
	}
	o.buf = append(o.buf, e.text...)
	if !e.partial {
		o.buf = append(o.buf, '\n')
	}
	o.midLine[e.stream] = e.partial
	if len(o.buf) >= outputBatch || (o.remaining >= 0 && int64(len(o.buf)) >= o.remaining) {
		return o.flush()
	}
	return nil
}

// flush writes the buffer, up to the limit; errLimit means that the limit is reached.
func (o *output) flush() error {
	limited := o.remaining >= 0
	if limited && int64(len(o.buf)) > o.remaining {
		o.buf = o.buf[:o.remaining]
	}
	if w := o.writers[o.stream]; w != nil && len(o.buf) > 0 {
		if _, err := w.Write(o.buf); err != nil {
			return fmt.Errorf("write log: %w", err)
		}
	}
	if limited {
		o.remaining -= int64(len(o.buf))
	}
	o.buf = o.buf[:0]
	if limited && o.remaining == 0 {
		return errLimit
	}
	return nil
}
