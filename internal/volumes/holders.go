package volumes

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// mostHolders bounds how many processes an error names.
const mostHolders = 5

// heldBy adds to an error the processes that keep what is mounted at the paths busy, if there are any.
func heldBy(err error, paths ...string) error {
	if who := explainHolders("/proc", paths...); who != "" {
		return fmt.Errorf("%w (%s)", err, who)
	}
	return err
}

// explainHolders names the processes that keep what is mounted at the paths, or are devices, busy: those whose root, working directory, program or
// open files lie there. It returns "" if it finds none; proc is /proc.
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
		open, _ := filepath.Glob(filepath.Join(dir, "fd", "*")) // a process that ends meanwhile holds nothing
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
	return err == nil && slices.ContainsFunc(paths, func(path string) bool { return target == path || strings.HasPrefix(target, path+"/") })
}
