package embedded

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"strings"
)

// maxLog is the size in bytes above which containerd's log is rotated; one older file is retained.
const maxLog = 16 << 20

// rotateLog copies the log to NAME.1 and truncates it if it is larger than max. It is not renamed,
// because containerd keeps writing to its inherited file (opened for appending), and cannot be
// given another while no agent is running.
func rotateLog(name string, max int64) (err error) {
	in, err := os.OpenFile(name, os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, in.Close()) }()
	fi, err := in.Stat()
	if err != nil || fi.Size() <= max {
		return err
	}
	next := name + ".next"
	out, err := os.OpenFile(next, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	if err := errors.Join(err, out.Close()); err != nil {
		return errors.Join(err, os.Remove(next))
	}
	if err := os.Rename(next, name+".1"); err != nil {
		return err
	}
	return in.Truncate(0)
}

// logSize returns the current size of the log, the offset of subsequent messages.
func logSize(name string) int64 {
	fi, err := os.Stat(name)
	if err != nil {
		return 0
	}
	return fi.Size()
}

// lastErrors returns the last lines of severity error or worse, else the last line, that were
// logged after the offset: the reason why containerd failed to start.
func lastErrors(name string, offset int64) string {
	f, err := os.Open(name)
	if err != nil {
		return "no log: " + err.Error()
	}
	defer f.Close()
	if _, err := f.Seek(offset, io.SeekStart); err != nil {
		return err.Error()
	}
	logged, err := io.ReadAll(io.LimitReader(f, 1<<20))
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(string(bytes.TrimSpace(logged)), "\n")
	var bad []string
	for _, l := range lines {
		if strings.Contains(l, "level=error") || strings.Contains(l, "level=fatal") || strings.HasPrefix(l, "containerd:") || strings.HasPrefix(l, "panic:") {
			bad = append(bad, l)
		}
	}
	if len(bad) == 0 {
		bad = lines[len(lines)-1:]
	}
	return strings.Join(bad[max(0, len(bad)-3):], "; ")
}
