package tuning

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"berth/internal/host/cgroups"
)

// Host is this machine.
type Host struct {
	// Proc is where procfs is mounted.
	Proc string
}

// ReadSysctl reads a kernel setting.
func (h Host) ReadSysctl(name string) (int, error) {
	b, err := os.ReadFile(h.sysctl(name))
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(b)))
}

// WriteSysctl writes a kernel setting.
func (h Host) WriteSysctl(name string, value int) error {
	return write(h.sysctl(name), value)
}

func (h Host) sysctl(name string) string {
	return filepath.Join(h.Proc, "sys", strings.ReplaceAll(name, ".", "/"))
}

// SetOOMScore sets the oom_score_adj of this process.
func (h Host) SetOOMScore(score int) error {
	return write(filepath.Join(h.Proc, "self", "oom_score_adj"), score)
}

// write writes a number to an existing file.
func write(file string, value int) error {
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_TRUNC, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(strconv.Itoa(value))
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	return err
}

// RaiseOpenFiles raises RLIMIT_NOFILE of this process; later child processes inherit it.
func (Host) RaiseOpenFiles(n uint64) error {
	var now unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &now); err != nil {
		return fmt.Errorf("read RLIMIT_NOFILE: %w", err)
	}
	next, changed := raised(now, n)
	if !changed {
		return nil
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &next); err != nil {
		return fmt.Errorf("raise RLIMIT_NOFILE from %d to %d (LimitNOFILE of the agent's unit does; fs.nr_open is the most): %w", now.Max, n, err)
	}
	return nil
}

// raised returns the limit that permits n open files, and whether it must be set. Go has raised the
// soft limit to one less than the hard one, and child processes inherit the original limit. To
// preserve this, a sufficient limit is not set again.
func raised(now unix.Rlimit, n uint64) (unix.Rlimit, bool) {
	if now.Cur >= n || now.Cur == n-1 {
		return now, false
	}
	return unix.Rlimit{Cur: n, Max: max(now.Max, n)}, true
}

// Group creates a cgroup of the machine.
func (h Host) Group(cgroup string) (Group, error) { return cgroups.OpenDaemons("/", cgroup) }
