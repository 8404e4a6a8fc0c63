package embedded

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

func TestParsePodshim(t *testing.T) {
	const dir = "/run/berth/containerd/keepers"
	for name, c := range map[string]struct{ args, want string }{
		"podshim":          {"podshim web " + dir + "/x/shm 7", "x"},
		"other containerd": {"podshim web /run/other/containerd/keepers/x/shm 7", ""},
		"deeper":           {"podshim web " + dir + "/x/y/shm 7", ""},
		"another folder":   {"podshim web " + dir + "/x/sham 7", ""},
		"the folder alone": {"podshim web " + dir + "/shm 7", ""},
		"holds a cgroup":   {"podshim hold", ""},
	} {
		if got := parsePodshim(strings.Fields(c.args), dir); got != c.want {
			t.Errorf("%s: id %q, want %q", name, got, c.want)
		}
	}
}

// What runs a sealed copy in memory with the arguments of a pod shim of our containerd is one; it
// is found as a shim is, and killed. What differs in one of that is neither.
func TestPodshimsAreFoundAndKilled(t *testing.T) {
	dir := t.TempDir()
	p := newPaths(dir+"/root", dir+"/run")
	ours := p.podshims + "/x/shm"
	podshim := startInMemory(t, "keeper", unix.F_SEAL_WRITE, ours)
	others := map[string]*inMemory{
		"not sealed":          startInMemory(t, "keeper", 0, ours),
		"of another name":     startInMemory(t, "kept", unix.F_SEAL_WRITE, ours),
		"of other containerd": startInMemory(t, "keeper", unix.F_SEAL_WRITE, dir+"/other/keepers/x/shm"),
	}
	found, err := findShims(p, "/proc")
	if err != nil {
		t.Fatal(err)
	}
	for i := range found {
		found[i].startTime = 0
	}
	want := []shimProcess{{id: "x", pid: podshim.cmd.Process.Pid}}
	if diff := cmp.Diff(want, found, cmp.AllowUnexported(shimProcess{})); diff != "" {
		t.Errorf("shims (-want +got):\n%s", diff)
	}
	if err := killAll(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	if !podshim.wasKilled() {
		t.Error("the pod shim was not killed")
	}
	for name, other := range others {
		if other.wasKilled() {
			t.Errorf("%s: was killed, too", name)
		}
	}
}

// inMemory is a process that ends with its input.
type inMemory struct {
	cmd *exec.Cmd
	in  io.Closer
}

// wasKilled ends the process, and reports whether it had been killed before.
func (m *inMemory) wasKilled() bool {
	_ = errors.Join(m.in.Close(), m.cmd.Wait()) // the second time both fail
	return !m.cmd.ProcessState.Exited()
}

// startInMemory starts a copy of cat in memory, with a pod shim's arguments.
func startInMemory(t *testing.T, name string, seals int, shm string) *inMemory {
	t.Helper()
	cat, err := exec.LookPath("cat")
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(cat)
	if err != nil {
		t.Fatal(err)
	}
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING|unix.MFD_EXEC)
	if errors.Is(err, unix.EINVAL) { // Linux before 6.3
		fd, err = unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	}
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	if _, err := f.Write(text); err != nil {
		t.Fatal(err)
	}
	if _, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, seals); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(filepath.Join("/proc/self/fd", fmt.Sprint(fd)), "-", shm, "7") // reads its input first
	in, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	m := &inMemory{cmd, in}
	t.Cleanup(func() { m.wasKilled() })
	return m
}
