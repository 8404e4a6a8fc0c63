package embedded

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// startTime returns the start time of a process, in clock ticks since boot (proc_pid_stat(5), field
// 22). Together with the boot ID it identifies a process, unlike the PID alone.
func startTime(proc string, pid int) (uint64, error) {
	stat, err := os.ReadFile(filepath.Join(proc, strconv.Itoa(pid), "stat"))
	if err != nil {
		return 0, err
	}
	// The command name may contain blanks and parentheses; the fields after its last parenthesis do
	// not.
	i := strings.LastIndexByte(string(stat), ')')
	fields := strings.Fields(string(stat[i+1:]))
	if i < 0 || len(fields) < 20 {
		return 0, fmt.Errorf("process %d: cannot read its stat file", pid)
	}
	return strconv.ParseUint(fields[19], 10, 64)
}

func bootID() (string, error) {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(id)), err
}

// real returns a directory without symbolic links, as the kernel names it.
func real(dir string) string {
	if r, err := filepath.EvalSymlinks(dir); err == nil {
		return r
	}
	return dir
}

// executable returns the file that a process runs; a deleted one keeps its former path.
func executable(proc string, pid int) (string, error) {
	exe, err := os.Readlink(filepath.Join(proc, strconv.Itoa(pid), "exe"))
	return strings.TrimSuffix(exe, " (deleted)"), err
}

func pids(proc string) ([]int, error) {
	entries, err := os.ReadDir(proc)
	if err != nil {
		return nil, err
	}
	var out []int
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil {
			out = append(out, pid)
		}
	}
	return out, nil
}

// foldersInUse returns the names of the directories directly below dir in which a process has its
// executable, its working directory or a mapped file. Processes that must not be read are not ours
// and skipped. Other read errors, except that the process has exited, are returned: retaining a
// directory too many is safe.
func foldersInUse(dir, proc string) (map[string]bool, error) {
	all, err := pids(proc)
	if err != nil {
		return nil, err
	}
	used, prefix := map[string]bool{}, real(dir)+"/"
	note := func(path string) {
		if rest, ok := strings.CutPrefix(path, prefix); ok {
			name, _, _ := strings.Cut(rest, "/")
			used[name] = true
		}
	}
	for _, pid := range all {
		base := filepath.Join(proc, strconv.Itoa(pid))
		for _, name := range []string{"exe", "cwd"} {
			path, err := os.Readlink(filepath.Join(base, name))
			if err != nil && !isExited(err) && !errors.Is(err, fs.ErrPermission) {
				return nil, err
			}
			note(path)
		}
		if err := mappedFiles(filepath.Join(base, "maps"), note); err != nil && !isExited(err) && !errors.Is(err, fs.ErrPermission) {
			return nil, err
		}
	}
	return used, nil
}

// isExited reports whether a process has exited while it was inspected; kernel threads and zombies
// have no executable either.
func isExited(err error) bool { return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) }

func mappedFiles(maps string, note func(path string)) error {
	f, err := os.Open(maps)
	if err != nil {
		return err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		if i := strings.IndexByte(lines.Text(), '/'); i >= 0 {
			note(lines.Text()[i:])
		}
	}
	return lines.Err()
}
