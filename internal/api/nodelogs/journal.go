package nodelogs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os/exec"
	"strconv"
	"strings"
	"time"
)

const (
	// maxMessage bounds the error output of journalctl.
	maxMessage = 4 << 10
	// exitTime is how long journalctl may take to exit after it was stopped.
	exitTime = 5 * time.Second
)

// QueryError is returned for a query that this node's logs do not support; the client must change
// it.
type QueryError struct{ err error }

func (e *QueryError) Error() string { return e.err.Error() }

// Unwrap returns the cause.
func (e *QueryError) Unwrap() error { return e.err }

// Write writes the log that the query selects: the lines of a file; for services the journal in
// chronological order, then the files of services that the journal does not have. The error wraps
// fs.ErrNotExist if there is no such log, and is a *QueryError if the log does not support the
// query; nothing is written then.
func (l *Logs) Write(ctx context.Context, q Query, w io.Writer) error {
	if q.File != "" {
		f, st, err := l.Open(q.File)
		if err != nil {
			return err
		}
		defer f.Close()
		if st.IsDir() {
			return fmt.Errorf("log %q: a folder: %w", q.File, fs.ErrNotExist)
		}
		return copyLines(ctx, w, f, q)
	}
	var inJournal, inFiles []string
	for _, s := range q.Services {
		found, err := l.journalHas(ctx, s)
		if err != nil {
			return err
		}
		if found {
			inJournal = append(inJournal, s)
			continue
		}
		f, err := l.openService(s)
		if err != nil {
			return fmt.Errorf("service %q: not in the journal, and %w", s, err)
		}
		if err := f.Close(); err != nil {
			return err
		}
		if !q.Since.IsZero() || !q.Until.IsZero() || q.Boot != nil {
			return &QueryError{fmt.Errorf("service %q: it logs to a file, whose lines have no time that could be compared: ask without sinceTime, untilTime and boot", s)}
		}
		inFiles = append(inFiles, s)
	}
	if len(inJournal) > 0 {
		if err := l.journalctl(ctx, w, computeArguments(q, inJournal)...); err != nil {
			return err
		}
	}
	for _, s := range inFiles {
		f, err := l.openService(s)
		if err != nil {
			return err
		}
		err = copyLines(ctx, w, f, q)
		if err := errors.Join(err, f.Close()); err != nil {
			return err
		}
	}
	return nil
}

// computeArguments returns the arguments of journalctl (journalctl(1)). Each value is in the same
// argument as its option, so that it cannot be taken for an option.
func computeArguments(q Query, services []string) []string {
	args := []string{"--quiet", "--no-pager", "--utc", "--output=short-iso-precise"}
	for _, s := range services {
		args = append(args, "--unit="+s)
	}
	if !q.Since.IsZero() {
		args = append(args, "--since="+journalTime(q.Since))
	}
	if !q.Until.IsZero() {
		args = append(args, "--until="+journalTime(q.Until))
	}
	if q.Boot != nil {
		args = append(args, "--boot="+strconv.Itoa(*q.Boot))
	}
	if q.Pattern != "" {
		args = append(args, "--case-sensitive=yes", "--grep="+q.Pattern)
	}
	if q.TailLines != nil {
		args = append(args, "--lines="+strconv.Itoa(*q.TailLines))
	}
	return args
}

// journalTime formats a time for systemd.time(7), with an unambiguous time zone.
func journalTime(t time.Time) string {
	return fmt.Sprintf("%s UTC", t.UTC().Format("2006-01-02 15:04:05.000000"))
}

// journalHas reports whether the journal has entries of the service. A node without journalctl has
// no journal.
func (l *Logs) journalHas(ctx context.Context, service string) (bool, error) {
	if _, err := exec.LookPath(l.Journalctl); err != nil {
		return false, nil
	}
	var some bytes.Buffer
	err := l.journalctl(ctx, &capped{&some, 1}, computeArguments(Query{TailLines: new(1)}, []string{service})...)
	return some.Len() > 0, err
}

// journalctl runs the program with w as its output, until it exits or ctx is done.
func (l *Logs) journalctl(ctx context.Context, w io.Writer, args ...string) error {
	var complaint bytes.Buffer
	cmd := exec.CommandContext(ctx, l.Journalctl, args...)
	cmd.Env = []string{"LC_ALL=C.UTF-8", "SYSTEMD_COLORS=0", "SYSTEMD_URLIFY=0"}
	cmd.Stdout, cmd.Stderr, cmd.WaitDelay = w, &capped{&complaint, maxMessage}, exitTime
	err := cmd.Run()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err == nil {
		return nil
	}
	message := strings.TrimSpace(complaint.String())
	// If nothing matches a pattern, journalctl exits with 1, like grep.
	if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.ExitCode() == 1 && message == "" {
		return nil
	}
	err = fmt.Errorf("journalctl: %w: %s", err, message)
	for _, m := range clientsMistakes {
		if strings.HasPrefix(message, m) {
			return &QueryError{err}
		}
	}
	return err
}

// clientsMistakes are prefixes of journalctl's errors about invalid queries.
var clientsMistakes = []string{"Bad pattern", "Data from the specified boot"}

// capped stores the first bytes and drops the rest.
type capped struct {
	to   *bytes.Buffer
	left int
}

func (c *capped) Write(b []byte) (int, error) {
	part := b[:min(len(b), c.left)]
	c.left -= len(part)
	c.to.Write(part)
	return len(b), nil
}
