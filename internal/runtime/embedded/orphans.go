package embedded

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// An interrupted call, because its agent exited or the call timed out, leaves orphans: containerd
// kills the program that starts the shim after that has forked it; it asks a busy shim to delete
// its task, is rejected, and forgets both; what runc created remains. A killed containerd leaves
// the same. All orphans carry a sandbox or container ID, by which they are found here and compared
// with containerd's objects (inventory.go). CRI has no call for it.

// hostState is the host state of one sandbox or container.
type hostState struct {
	shims       []shimProcess
	runc        []string // directories with runc's state
	folders     []string // of containerd, possibly with mounts; shim sockets
	attachments []string // files of the CNI library
	addresses   []string // leases
	cgroups     []string // without processes
}

// shimProcess is a running shim or pod shim.
type shimProcess struct {
	id        string
	pid       int
	startTime uint64 // clock ticks since boot
}

// findHostState lists the host state of sandboxes and containers, by ID.
func findHostState(p paths, proc string) (map[string]*hostState, error) {
	found := map[string]*hostState{}
	of := func(id string) *hostState {
		if found[id] == nil {
			found[id] = &hostState{}
		}
		return found[id]
	}
	shims, err := findShims(p, proc)
	if err != nil {
		return nil, err
	}
	for _, s := range shims {
		of(s.id).shims = append(of(s.id).shims, s)
	}
	err = eachEntry(filepath.Join(p.runc, podNamespace), func(path string) {
		of(filepath.Base(path)).runc = append(of(filepath.Base(path)).runc, path)
	})
	for _, dir := range []string{p.state + taskDir, p.store.dir + taskDir, p.state + sandboxDir, p.store.dir + sandboxDir} {
		err = errors.Join(err, eachEntry(dir, func(path string) {
			// containerd prefixes a bundle's name with a dot before it deletes it.
			id := strings.TrimPrefix(filepath.Base(path), ".")
			of(id).folders = append(of(id).folders, path)
		}))
	}
	err = errors.Join(err, eachEntry(filepath.Join(p.network.leases, p.network.bridge), func(path string) {
		if id, _ := lessee(path); id != "" {
			of(id).addresses = append(of(id).addresses, path)
		}
	}))
	attachments, globErr := filepath.Glob(filepath.Join(attachmentsDir, p.network.bridge+"-*"))
	for _, path := range attachments {
		name := strings.TrimPrefix(filepath.Base(path), p.network.bridge+"-")
		if i := strings.LastIndexByte(name, '-'); i > 0 { // the rest is the interface
			of(name[:i]).attachments = append(of(name[:i]).attachments, path)
		}
	}
	return found, errors.Join(err, globErr)
}

// containerd's directories of bundles and sandbox files, below its root and its state directory.
const (
	taskDir    = "/io.containerd.runtime.v2.task/" + podNamespace
	sandboxDir = "/io.containerd.grpc.v1.cri/sandboxes"
)

// eachEntry calls use with each entry of a directory, which need not exist.
func eachEntry(dir string, use func(path string)) error {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, e := range entries {
		use(filepath.Join(dir, e.Name()))
	}
	return nil
}

// lessee returns the sandbox and interface that a file leases its address to; "" if the file is not
// a lease.
func lessee(file string) (id, ifName string) {
	if _, err := netip.ParseAddr(filepath.Base(file)); err != nil {
		return "", "" // the lock, or the last assigned address
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return "", ""
	}
	id, ifName, _ = strings.Cut(strings.TrimSpace(string(text)), "\r\n")
	return strings.TrimSpace(id), ifName
}

// findShims lists the shims and pod shims of our containerd. The shim's start and delete commands
// are not included.
func findShims(p paths, proc string) ([]shimProcess, error) {
	all, err := pids(proc)
	if err != nil {
		return nil, err
	}
	var shims []shimProcess
	for _, pid := range all {
		id, err := shimID(p, proc, pid)
		if err != nil || id == "" {
			continue // exited, a kernel thread, or not permitted
		}
		start, err := startTime(proc, pid)
		if err == nil {
			shims = append(shims, shimProcess{id: id, pid: pid, startTime: start})
		}
	}
	return shims, nil
}

// shimID returns the ID that a shim or pod shim of our containerd was started for, and "" for other
// processes.
func shimID(p paths, proc string, pid int) (string, error) {
	exe, err := executable(proc, pid)
	if err != nil {
		return "", err
	}
	isShim := strings.HasPrefix(exe, real(p.bundles)+"/")
	if !isShim && (!slices.Contains(podshimPrograms, exe) || !runsSealed(proc, pid)) {
		return "", nil
	}
	line, err := os.ReadFile(filepath.Join(proc, strconv.Itoa(pid), "cmdline"))
	if err != nil {
		return "", err
	}
	args := strings.Split(strings.TrimSuffix(string(line), "\x00"), "\x00")
	if isShim {
		return parseShim(args, p.socket), nil
	}
	return parsePodshim(args, p.podshims), nil
}

// parseShim returns the ID in a shim's arguments if it serves the containerd at the socket, in the
// namespace of pods, else "".
func parseShim(args []string, socket string) string {
	flag := func(name string) string {
		if i := slices.Index(args, name); i >= 0 && i+1 < len(args) {
			return args[i+1]
		}
		return ""
	}
	// With an action, "start" or "delete", the program exits by itself.
	action := slices.Contains([]string{"start", "delete"}, args[len(args)-1])
	if action || flag("-address") != socket || flag("-namespace") != podNamespace {
		return ""
	}
	return flag("-id")
}

// idleNamespaces lists network namespace files that neither an attachment nor a process uses. This
// includes namespaces that a call is creating.
func idleNamespaces(p paths, proc string) ([]string, error) {
	var files []string
	if err := eachEntry(p.namespaces, func(path string) { files = append(files, path) }); err != nil || len(files) == 0 {
		return nil, err
	}
	used := map[string]bool{}
	attachments, err := filepath.Glob(filepath.Join(attachmentsDir, p.network.bridge+"-*"))
	if err != nil {
		return nil, err
	}
	for _, file := range attachments {
		var a attachment
		_ = readJSON(file, &a) // if it cannot be read, processes in the namespace still count as users
		used[a.NetNS] = true
	}
	all, err := pids(proc)
	if err != nil {
		return nil, err
	}
	for _, pid := range all {
		if ns, err := os.Readlink(filepath.Join(proc, strconv.Itoa(pid), "ns/net")); err == nil {
			used[ns] = true
		}
	}
	return slices.DeleteFunc(files, func(file string) bool {
		var st unix.Stat_t
		err := unix.Stat(file, &st)
		return err != nil || used[file] || used[fmt.Sprintf("net:[%d]", st.Ino)]
	}), nil
}

// computeOrphans returns the unknown IDs, and those of them that were unknown at the previous scan
// too: containerd's own cleanup takes a moment. Names that are not IDs are ignored.
func computeOrphans(found map[string]*hostState, known, before map[string]bool) (now map[string]bool, sure []string) {
	now = map[string]bool{}
	for _, id := range slices.Sorted(maps.Keys(found)) {
		if !isID(id) || known[id] {
			continue
		}
		if now[id] = true; before[id] {
			sure = append(sure, id)
		}
	}
	return now, sure
}
