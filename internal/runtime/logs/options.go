package logs

import (
	"errors"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
)

// Stream is one of a container's output streams, as named in log lines.
type Stream string

// The streams. AllStreams selects both.
const (
	AllStreams Stream = ""
	Stdout     Stream = "stdout"
	Stderr     Stream = "stderr"
)

// Options select a part of a log, and its output format. The zero value prints all of it unchanged.
type Options struct {
	// Follow continues at the end of the log until the container has exited.
	Follow bool
	// TailLines prints only the last lines of the container's output, each complete; nil prints all
	// lines that remain of the log. It is applied before Since and LimitBytes.
	TailLines *int64
	// Since skips lines that were written before; zero: none.
	Since time.Time
	// LimitBytes limits the output in bytes; nil: no limit.
	LimitBytes *int64
	// Timestamps prefixes each line with its time, with nine fractional digits.
	Timestamps bool
	// Stream selects one stream.
	Stream Stream
	// Exited is closed when the container has exited and its log is complete. Without it, Running
	// is called every second.
	Exited <-chan struct{}
	// Watches are shared with other followers; nil: the file is polled every second.
	Watches *Watches
}

// OptionsFrom converts and validates the options of the API (GET …/pods/{name}/log). SinceSeconds
// counts from now.
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
