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

// explainHolders names the processes that keep what is mounted at the path busy: those whose root, working directory, program or open files
// lie there. It returns "" if it finds none; proc is /proc.
func explainHolders(proc, path string) string {
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
		if slices.ContainsFunc(append(links, open...), func(l string) bool { return linksInto(l, path) }) {
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

func linksInto(link, path string) bool {
	target, err := os.Readlink(link)
	return err == nil && (target == path || strings.HasPrefix(target, path+"/"))
}
