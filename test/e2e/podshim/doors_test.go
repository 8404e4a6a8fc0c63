//go:build e2e && podshim

package podshim

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// CVE-2020-15257: who is in the host's network reaches no socket of pod shims or of containerd, as
// each has a file that it does not see.
func TestNoSocketWithoutAFile(t *testing.T) {
	r := newRig(t)
	r.runs("listens", "sleep")
	p := r.place("podshim", "host network", "")
	root := p.sharing("root", capabilities([]string{"NET_ADMIN", "NET_RAW"}, nil), "sleep")
	ours := map[string]bool{}
	for _, pid := range r.processes() {
		files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
		for _, f := range files {
			if at, _ := os.Readlink(f); strings.HasPrefix(at, "socket:[") {
				ours[strings.Trim(at, "socket:[]")] = true
			}
		}
	}
	listening := 0
	for line := range strings.Lines(r.execSync(root, 0, "/payload", "read", "/proc/net/unix").Out) {
		f := strings.Fields(line)
		if len(f) < 8 || !ours[f[6]] { // without a name
			continue
		}
		listening++
		if strings.HasPrefix(f[7], "@") {
			t.Errorf("a socket without a file: %s", line)
		}
		if o := r.execSync(root, 0, "/payload", "look", f[7]); o.Code != 1 {
			t.Errorf("the container sees %s: %+v", f[7], o)
		}
	}
	if listening < 3 { // of the pod shims, of the tasks, of containerd
		t.Errorf("%d sockets of the runtime are seen", listening)
	}
	r.removeAll()
}

// CVE-2021-41103, CVE-2024-25621: no other user of the host gets at what there is of a pod:
// sockets, files, roots and logs of containers.
func TestNothingForOtherUsers(t *testing.T) {
	r := newRig(t)
	r.must(os.Chmod(r.dir, 0o711))
	pod, id := r.runs("private", "sleep")
	podshim, first := r.podshimOf(pod), r.pidOf(id)
	// With runc, a root is mounted there.
	bundle := r.path("state", "io.containerd.runtime.v2.task", "k8s.io", id)
	if entries, err := os.ReadDir(filepath.Join(bundle, "rootfs")); len(entries) > 0 || err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the host sees the container's root: %v, %v", entries, err)
	}
	for _, at := range []string{
		r.path("state", "keepers"), r.path("state", "keepers", pod, "pod.json"), r.path("state", "keepers", pod, "socket"), r.path("state", "keepers", "task.sock"),
		r.path("state", "keepers", pod, "hosts"), filepath.Join(bundle, "config.json"), r.path("socket"), r.path("root", "io.containerd.content.v1.content"),
		fmt.Sprintf("/proc/%d/fd", podshim), fmt.Sprintf("/proc/%d/root/", podshim), fmt.Sprintf("/proc/%d/exe", podshim), fmt.Sprintf("/proc/%d/root/", first), r.logFile("private", "c"),
	} {
		if _, err := os.Stat(at); err != nil {
			t.Errorf("root of the host does not see it: %v", err)
		}
		cmd := exec.Command("/bin/sh", "-c", `test -r "$0" || test -w "$0" || test -x "$0"`, at)
		cmd.Dir, cmd.SysProcAttr = "/", &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		if err := cmd.Run(); cmd.ProcessState.ExitCode() != 1 {
			t.Errorf("another user may use %s (%v)", at, err)
		}
	}
	r.must(r.remove(pod))
	r.wantNothingLeft()
}

// CVE-2026-47262: what a container has in place of /etc/passwd, which may never end, stops neither
// its pod shim nor itself.
func TestHostileUsersFile(t *testing.T) {
	r := newRig(t)
	r.must(syscall.Mkfifo(r.path("fifo"), 0o644))
	f, err := os.Create(r.path("huge"))
	r.must(err)
	r.must(errors.Join(f.Truncate(1<<40), f.Close()))
	for _, kind := range []string{"plain", "shared pid"} {
		p := r.place("podshim", kind, "")
		for _, name := range []string{"fifo", "huge", "../../dev/zero"} {
			source := filepath.Join(r.dir, name)
			name = filepath.Base(name)
			users := set(func(c *cri.ContainerConfig) {
				c.Mounts = []*cri.Mount{{HostPath: source, ContainerPath: "/etc/passwd"}}
				c.Linux.Resources.MemoryLimitInBytes = 64 << 20
			})
			for how, said := range p.ran(name, users, "read", "/proc/self/environ") {
				if !strings.Contains(said, "HOME=/\x00") {
					t.Errorf("%s, %s: %q", kind, how, said)
				}
			}
		}
		r.must(r.remove(p.pod))
	}
	r.wantNothingLeft()
}
