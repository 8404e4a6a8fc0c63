package volumes

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

const mostHolders = 5

// heldBy adds to an error what keeps the mounts at the paths busy: processes, and loop devices
// backed by files there, which need no process.
func heldBy(err error, paths ...string) error {
	for _, holders := range []string{explainHolders("/proc", paths...), explainLoops("/sys", paths...)} {
		if holders != "" {
			err = fmt.Errorf("%w (%s)", err, holders)
		}
	}
	return err
}

// explainLoops names the loop devices that are backed by files at the paths, or returns "" if there
// are none; sys is /sys.
func explainLoops(sys string, paths ...string) string {
	files, _ := filepath.Glob(filepath.Join(sys, "block/loop*/loop/backing_file")) // valid pattern
	var found []string
	for _, file := range files {
		b, err := os.ReadFile(file)
		backing := strings.TrimSuffix(strings.TrimSpace(string(b)), " (deleted)")
		if err == nil && isAt(backing, paths) {
			found = append(found, fmt.Sprintf("/dev/%s (%s)", filepath.Base(filepath.Dir(filepath.Dir(file))), backing))
		}
	}
	if len(found) == 0 {
		return ""
	}
	return "held by loop device " + strings.Join(found, ", ")
}

// isAt reports whether the path is equal to or below one of paths.
func isAt(path string, paths []string) bool {
	return slices.ContainsFunc(paths, func(p string) bool { return path == p || strings.HasPrefix(path, p+"/") })
}

// explainHolders names the processes that keep mounts or devices at the paths busy: those whose
// root, working directory, program or open files are there. It returns "" if it finds none; proc is
// /proc.
func explainHolders(proc string, paths ...string) string {
	entries, err := os.ReadDir(proc)
	if err != nil {
		return ""
	}
	var found []string
	for _, e := range entries {
		pid := e.Name()
		if pid[0] < '0' || pid[0] > '9' {
			continue
		}
		dir := filepath.Join(proc, pid)
		links := []string{filepath.Join(dir, "cwd"), filepath.Join(dir, "root"), filepath.Join(dir, "exe")}
		open, _ := filepath.Glob(filepath.Join(dir, "fd", "*")) // an exited process holds nothing
		if slices.ContainsFunc(append(links, open...), func(l string) bool { return linksInto(l, paths) }) {
			name, _ := os.ReadFile(filepath.Join(dir, "comm"))
			found = append(found, fmt.Sprintf("%s (%s)", pid, strings.TrimSpace(string(name))))
		}
	}
	switch {
	case len(found) == 0:
		return ""
	case len(found) > mostHolders:
		found = append(found[:mostHolders], fmt.Sprintf("%d more", len(found)-mostHolders))
	}
	return "held by process " + strings.Join(found, ", ")
}

func linksInto(link string, paths []string) bool {
	target, err := os.Readlink(link)
	return err == nil && isAt(target, paths)
}
