package tuning

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"berth/internal/host/cgroups"
)

// Host is this machine.
type Host struct {
	// Proc is where procfs is mounted.
	Proc string
}

// ReadSysctl reads a setting of the kernel.
func (h Host) ReadSysctl(name string) (int, error) {
	b, err := os.ReadFile(h.sysctl(name))
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(b)))
}

// WriteSysctl changes a setting of the kernel.
func (h Host) WriteSysctl(name string, value int) error {
	return write(h.sysctl(name), value)
}

func (h Host) sysctl(name string) string {
	return filepath.Join(h.Proc, "sys", strings.ReplaceAll(name, ".", "/"))
}

// SetOOMScore sets that of this process.
func (h Host) SetOOMScore(score int) error {
	return write(filepath.Join(h.Proc, "self", "oom_score_adj"), score)
}

// write writes a number to a file that is there.
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

// RaiseOpenFiles raises RLIMIT_NOFILE of this process.
func (Host) RaiseOpenFiles(n uint64) error {
	var now unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &now); err != nil {
		return fmt.Errorf("read RLIMIT_NOFILE: %w", err)
	}
	next, changed := raised(now, n)
	if !changed {
		return nil
	}
	err := setOpenFiles(next)
	if err == nil {
		return nil
	}
	if now.Cur < now.Max {
		if err := setOpenFiles(unix.Rlimit{Cur: min(n, now.Max), Max: now.Max}); err == nil {
			now.Cur = min(n, now.Max)
		}
	}
	return fmt.Errorf("raise RLIMIT_NOFILE from %d to %d (LimitNOFILE of the agent's unit does; fs.nr_open is the most): %w", now.Cur, n, err)
}

// raised returns the limit with which n files can be opened, and whether it is another one.
func raised(now unix.Rlimit, n uint64) (unix.Rlimit, bool) {
	next := unix.Rlimit{Cur: max(now.Cur, n), Max: max(now.Max, n)}
	return next, next != now
}

// setOpenFiles sets the limit of this process alone: by syscall.Setrlimit, Go would give it to the
// processes that it starts, too, and so to the runtime inside and to containers, of which some
// close each file that they might have open.
func setOpenFiles(l unix.Rlimit) error {
	_, _, errno := unix.RawSyscall6(unix.SYS_PRLIMIT64, 0, unix.RLIMIT_NOFILE, uintptr(unsafe.Pointer(&l)), 0, 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// Group makes a cgroup of the machine.
func (h Host) Group(cgroup string) (Group, error) { return cgroups.OpenDaemons("/", cgroup) }
