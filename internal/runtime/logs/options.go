package logs

import (
	"errors"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
)

// Stream is one of a container's two outputs, as log lines name it.
type Stream string

// The streams. AllStreams selects both.
const (
	AllStreams Stream = ""
	Stdout     Stream = "stdout"
	Stderr     Stream = "stderr"
)

// Options say which part of a log is read, and how it is printed. The zero value is all of it, as
// it was printed.
type Options struct {
	// Follow goes on at the end of the log until the container has ended.
	Follow bool
	// TailLines prints the last lines of the container's output only, each of them whole; nil
	// prints all lines that are left of the log. It is applied before Since and LimitBytes.
	TailLines *int64
	// Since leaves out lines that were written before; zero: none.
	Since time.Time
	// LimitBytes ends the output after so many bytes; nil: never.
	LimitBytes *int64
	// Timestamps begins each line with its time, with nine fractional digits.
	Timestamps bool
	// Stream leaves out the other stream.
	Stream Stream
	// Exited is closed when the container has ended and its log is complete. With it, following
	// needs no clock; without it, Running is asked every second.
	Exited <-chan struct{}
	// Watches are shared with other followers; nil: the file is looked at every second instead.
	Watches *Watches
}

// OptionsFrom translates the options of the API (GET …/pods/{name}/log), which it also validates.
// now is what SinceSeconds counts from.
func OptionsFrom(o *v1.PodLogOptions, now time.Time) (Options, error) {
	out := Options{Follow: o.Follow, Timestamps: o.Timestamps, TailLines: o.TailLines, LimitBytes: o.LimitBytes}
	var errs []error
	if o.TailLines != nil && *o.TailLines < 0 {
		errs = append(errs, fmt.Errorf("tailLines: %d: must not be negative", *o.TailLines))
	}
	if o.LimitBytes != nil && *o.LimitBytes < 1 {
		errs = append(errs, fmt.Errorf("limitBytes: %d: must be greater than 0", *o.LimitBytes))
	}
	if o.SinceSeconds != nil {
		if *o.SinceSeconds < 1 {
			errs = append(errs, fmt.Errorf("sinceSeconds: %d: must be greater than 0", *o.SinceSeconds))
		}
		out.Since = now.Add(-time.Duration(*o.SinceSeconds) * time.Second)
	}
	if o.SinceTime != nil && o.SinceTime.After(out.Since) {
		out.Since = o.SinceTime.Time
	}
	if o.SinceSeconds != nil && o.SinceTime != nil {
		errs = append(errs, errors.New("sinceTime: must not be given together with sinceSeconds"))
	}
	if o.Stream != nil {
		switch *o.Stream {
		case v1.LogStreamAll:
		case v1.LogStreamStdout:
			out.Stream = Stdout
		case v1.LogStreamStderr:
			out.Stream = Stderr
		default:
			errs = append(errs, fmt.Errorf("stream: %q: must be %q, %q or %q", *o.Stream, v1.LogStreamAll, v1.LogStreamStdout, v1.LogStreamStderr))
		}
		if o.TailLines != nil && out.Stream != AllStreams {
			errs = append(errs, fmt.Errorf("tailLines: must not be given together with stream %q", *o.Stream))
		}
	}
	return out, errors.Join(errs...)
}
