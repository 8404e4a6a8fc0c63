package stats

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// maxProcesses bounds the processes of a container whose open files are counted.
const maxProcesses = 1000

// Files is the number of open files of processes, according to /proc.
type Files struct {
	// Descriptors are open files, sockets included.
	Descriptors, Sockets uint64
	// MaxOpen is the soft limit of the first process; nil: no limit, or unknown.
	MaxOpen *uint64
}

// ReadFiles counts the open files of processes; proc is the directory of /proc. It returns false if
// the processes have exited, or nothing is known.
func ReadFiles(proc string, pids []int) (Files, bool) {
	var out Files
	found := false
	for i, pid := range pids[:min(len(pids), maxProcesses)] {
		dir := filepath.Join(proc, strconv.Itoa(pid))
		if i == 0 {
			if b, err := os.ReadFile(filepath.Join(dir, "limits")); err == nil {
				out.MaxOpen = parseMaxOpen(b)
			}
		}
		entries, err := os.ReadDir(filepath.Join(dir, "fd"))
		if err != nil {
			continue // it has exited meanwhile
		}
		found = true
		for _, e := range entries {
			out.Descriptors++
			if to, err := os.Readlink(filepath.Join(dir, "fd", e.Name())); err == nil && strings.HasPrefix(to, "socket:") {
				out.Sockets++
			}
		}
	}
	return out, found
}

// parseMaxOpen reads the soft limit of open files from /proc/<pid>/limits (proc(5)).
func parseMaxOpen(b []byte) *uint64 {
	for line := range bytes.Lines(b) {
		if rest, ok := bytes.CutPrefix(line, []byte("Max open files")); ok {
			if fields := strings.Fields(string(rest)); len(fields) > 0 {
				if n, err := strconv.ParseUint(fields[0], 10, 64); err == nil {
					return &n
				}
			}
		}
	}
	return nil
}

// Topology counts the parts of the machine's processors; 0 if unknown. Books and drawers exist on
// s390x.
type Topology struct{ Cores, Sockets, Books, Drawers int }

// ReadTopology reads the topology from the directory of processors, /sys/devices/system/cpu.
func ReadTopology(dir string) Topology {
	cpus, err := filepath.Glob(filepath.Join(dir, "cpu[0-9]*", "topology"))
	if err != nil || len(cpus) == 0 {
		return Topology{}
	}
	cores, sockets, books, drawers := map[string]bool{}, map[string]bool{}, map[string]bool{}, map[string]bool{}
	for _, cpu := range cpus {
		id := func(name string) string {
			b, err := os.ReadFile(filepath.Join(cpu, name))
			if err != nil {
				return ""
			}
			return string(bytes.TrimSpace(b))
		}
		socket := id("physical_package_id")
		if socket == "" {
			continue
		}
		book, drawer := id("book_id"), id("drawer_id")
		socketID := drawer + " " + book + " " + socket
		sockets[socketID] = true
		cores[socketID+" "+id("die_id")+" "+id("core_id")] = true
		if book != "" {
			books[drawer+" "+book] = true
		}
		if drawer != "" {
			drawers[drawer] = true
		}
	}
	return Topology{Cores: len(cores), Sockets: len(sockets), Books: len(books), Drawers: len(drawers)}
}
