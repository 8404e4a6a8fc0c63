package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"

	"berth/internal/api/server"
)

// unixSockets is the kernel's table of Unix sockets (proc_net(5)).
const unixSockets = "/proc/net/unix"

// findRunDirs returns the run directories in which agents listen, according to the kernel's table.
func findRunDirs(table string) []string {
	const listens = "00010000" // __SO_ACCEPTCON
	var dirs []string
	for line := range strings.Lines(table) {
		// Num RefCount Protocol Flags Type St Inode Path
		fields := strings.SplitN(strings.TrimSpace(line), " ", 8)
		if len(fields) < 8 || fields[3] != listens {
			continue
		}
		path := strings.TrimSpace(fields[7])
		dir := filepath.Dir(path)
		if !filepath.IsAbs(path) || path != server.SocketPath(dir) || slices.Contains(dirs, dir) {
			continue
		}
		if _, err := os.Stat(path); err == nil { // not in a container
			dirs = append(dirs, dir)
		}
	}
	slices.Sort(dirs)
	return dirs
}

// elsewhere returns the remedy if no agent runs: another agent's run directory, or how to start
// one.
func elsewhere() string {
	table, err := os.ReadFile(unixSockets)
	if err != nil {
		table = nil // no agent is found
	}
	switch dirs := findRunDirs(string(table)); len(dirs) {
	case 0:
		return `start one with "berth run DIR", or name its --run-dir`
	case 1:
		return "one runs on " + dirs[0] + ": name it with --run-dir " + dirs[0] + ", or by " + variableOf("run-dir")
	default:
		return "agents run on " + strings.Join(dirs, ", ") + ": name one with --run-dir, or by " + variableOf("run-dir")
	}
}
