//go:build e2e && podshim

package podshim

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// members are the processes of a container that are not dead, by its cgroup.
func (r *rig) members(id string) []string {
	at := cgroups + "/freezer"
	if unified() {
		at = cgroups
	}
	b, _ := os.ReadFile(at + r.groupOf(id) + "/cgroup.procs")
	return strings.Fields(string(b))
}

// sharing is a container of a place, which may be among the processes of another.
func (p *place) sharing(name string, change func(*place, *cri.ContainerConfig), args ...string) string {
	p.Helper()
	p.must(p.err)
	c := p.config(name, args...)
	c.Linux.SecurityContext.NamespaceOptions = p.sandbox.Linux.SecurityContext.NamespaceOptions
	change(p, c)
	id, err := p.containerIn(p.pod, p.sandbox, c, func() {})
	p.must(err)
	return id
}

// sharings are containers whose end is not that of a PID namespace.
var sharings = []struct {
	pod    string
	change func(*place, *cri.ContainerConfig)
}{{"shared pid", nothing}, {"host pid", nothing}, {"plain", target}, {"host pid", target}}

// Whatever a container has started ends with its first process, as where that has a namespace of
// its own, also while containerd is away; what it wrote is in its log.
func TestNothingOutlivesAContainer(t *testing.T) {
	r := newRig(t)
	for i, s := range sharings {
		p := r.place("podshim", s.pod, "")
		r.must(p.err)
		for _, away := range []bool{false, true} {
			name := fmt.Sprintf("leaves-%d-%t", i, away)
			id := p.sharing(name, s.change, "abandon", fmt.Sprint(1500*int(slower())), "7")
			eventually(r, "it has processes", func() error {
				if n := len(r.members(id)); n < 4 {
					return fmt.Errorf("it has %d", n)
				}
				return nil
			})
			if away {
				r.kill()
				eventually(r, "its processes end", func() error {
					if left := r.members(id); len(left) > 0 {
						return fmt.Errorf("left: %v", left)
					}
					return nil
				})
				r.start()
			}
			if s := r.exits(id); s.ExitCode != 7 {
				t.Errorf("%d, away %t: ended with %d, want 7", i, away, s.ExitCode)
			}
			if left := r.members(id); len(left) > 0 {
				t.Errorf("%d, away %t: it has ended, and left %v", i, away, left)
			}
			if lines := r.logged(p.logFile(p.name, name)); len(lines) != 1 || lines[0] != "stdout F bye" {
				t.Errorf("%d, away %t: its log has %q", i, away, lines)
			}
		}
		if s := r.exits(p.sharing("later", s.change, "exit", "0", "3")); s.ExitCode != 3 {
			t.Errorf("%d: one that was made after the restart ended with %d, want 3", i, s.ExitCode)
		}
		if s := r.status(p.beside); s.State != cri.ContainerState_CONTAINER_RUNNING {
			t.Errorf("%d: the other container is %s", i, s.State)
		}
		r.must(r.remove(p.pod))
		r.wantNothingLeft()
	}
}

// The processes of a pod are ended when its pod shim is killed, also where they are the host's.
func TestPodshimIsKilledAmongTheHostsProcesses(t *testing.T) {
	r := newRig(t)
	for _, away := range []bool{false, true} {
		p := r.place("podshim", "host pid", "")
		first := p.sharing("first", nothing, "abandon", "1000000", "0")
		second := p.sharing("second", target, "abandon", "1000000", "0")
		podshim := r.podshimOf(p.pod)
		if away {
			r.kill()
		}
		r.must(syscall.Kill(podshim, syscall.SIGKILL))
		if away {
			r.start()
		}
		for _, id := range []string{first, second, p.beside} {
			if s := r.exits(id); s.ExitCode != 137 {
				t.Errorf("away %t: ended with %d, want 137", away, s.ExitCode)
			}
			if left := r.members(id); len(left) > 0 {
				t.Errorf("away %t: %v are left", away, left)
			}
		}
		r.must(r.remove(p.pod))
		r.wantNothingLeft()
	}
}

// holderOf is process 1 of the namespace that a container of the pod is in.
func (r *rig) holderOf(pod string) int {
	r.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", r.podshimOf(pod)))
	r.must(err)
	for _, f := range strings.Fields(string(b)) {
		if comm, _ := os.ReadFile("/proc/" + f + "/comm"); string(comm) == "pause\n" {
			pid, err := strconv.Atoi(f)
			r.must(err)
			return pid
		}
	}
	r.Fatalf("the pod shim has no pause among %s", b)
	return 0
}

// Process 1 of a pod that shares its processes has no rights, cannot be killed from inside, and
// reaps who has lost his parent; the pod ends with it.
func TestFirstProcessOfASharedPod(t *testing.T) {
	r := newRig(t)
	p := r.place("podshim", "shared pid", "")
	id := p.sharing("tries", all(capabilities([]string{"ALL"}, nil), withoutAppArmor), "sleep")
	holder := r.holderOf(p.pod)
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", holder))
	r.must(err)
	for _, want := range []string{"\nUid:\t65535\t65535\t65535\t65535\n", "\nGid:\t65535\t", "\nGroups:\t \n", "\nCapEff:\t0000000000000000\n", "\nCapPrm:\t0000000000000000\n", "\nCapInh:\t0000000000000000\n"} {
		if !strings.Contains(string(b), want) {
			t.Errorf("its status has no %q: %s", want, b)
		}
	}
	if fds, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", holder)); err != nil || len(fds) != 3 {
		t.Errorf("it has the files %v, %v", fds, err)
	}
	if b, err := os.ReadFile(fmt.Sprintf("/proc/%d/mounts", holder)); err != nil || strings.TrimSpace(string(b)) != "proc / proc rw,nosuid,nodev,noexec,relatime 0 0" {
		t.Errorf("it has the mounts %q, %v", b, err)
	}
	if fd, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/0", holder)); err != nil || filepath.Base(fd) != "null" {
		t.Errorf("its input is %q, %v", fd, err)
	}
	for range 3 {
		r.execSync(id, 0, "/payload", "leave", "0") // its child ends later, among those of process 1
	}
	if o := r.execSync(id, 0, "/payload", "kill", "1", "9"); o.Code != 0 {
		t.Errorf("a signal to process 1: %+v", o)
	}
	eventually(r, "nobody is dead and not reaped", func() error {
		seen := r.execSync(id, 0, "/payload", "probe")
		f, err := readFacts(seen.Out)
		if err != nil {
			return err
		}
		if got, want := f["processes"], "/pause, /payload probe, /payload sleep, /payload sleep"; got != want {
			return fmt.Errorf("processes are %s, want %s", got, want)
		}
		return nil
	})
	if s := r.podStatus(p.pod); s.State != cri.PodSandboxState_SANDBOX_READY {
		t.Errorf("the pod is %s", s.State)
	}
	r.must(syscall.Kill(holder, syscall.SIGKILL))
	for _, id := range []string{id, p.beside} {
		if s := r.exits(id); s.ExitCode != 137 {
			t.Errorf("ended with %d, want 137", s.ExitCode)
		}
	}
	eventually(r, "the pod is not ready", func() error {
		if s := r.podStatus(p.pod); s.State != cri.PodSandboxState_SANDBOX_NOTREADY {
			return fmt.Errorf("it is %s", s.State)
		}
		return nil
	})
	r.must(r.remove(p.pod))
	r.wantNothingLeft()
}

// An ephemeral container ends with the one whose processes it is among, and takes nothing else with
// it; none can be made among those of one that has ended.
func TestTargetEnds(t *testing.T) {
	r := newRig(t)
	p := r.place("podshim", "plain", "")
	debug := p.sharing("debug", target, "sleep")
	other := p.sharing("other", nothing, "sleep")
	ctx, cancel := r.within()
	defer cancel()
	_, err := r.rt.StopContainer(ctx, &cri.StopContainerRequest{ContainerId: p.beside, Timeout: 0})
	r.must(err)
	for _, id := range []string{p.beside, debug} {
		if s := r.exits(id); s.ExitCode != 137 {
			t.Errorf("ended with %d, want 137", s.ExitCode)
		}
	}
	if s := r.status(other); s.State != cri.ContainerState_CONTAINER_RUNNING {
		t.Errorf("the other container is %s", s.State)
	}
	// One that has put something else at its /proc gets nobody to take that for his own.
	liar := p.sharing("liar", all(capabilities([]string{"SYS_ADMIN"}, nil), withoutAppArmor), "mount", "/proc")
	eventually(r, "its /proc is another", func() error {
		if o := r.execSync(liar, 0, "/payload", "look", "/proc/self"); o.Code != 1 {
			return fmt.Errorf("%+v", o)
		}
		return nil
	})
	for id, want := range map[string]string{p.beside: "", liar: "shows others at its /proc"} {
		c := p.config("late", "sleep")
		security(c).NamespaceOptions = among(id)
		if _, err := p.containerIn(p.pod, p.sandbox, c, func() {}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("a container was made among the processes of %s: %v, want %q", id, err, want)
		}
	}
	r.must(r.remove(p.pod))
	r.wantNothingLeft()
}

// What a container mounts on a volume that goes both ways is the host's, too, and stays; what the
// host mounts later is the container's where the volume says so.
func TestMountsGoBothWays(t *testing.T) {
	r := newRig(t)
	host := hostFolder(t)
	for _, d := range []string{"out", "in"} {
		r.must(os.Mkdir(filepath.Join(host, "shared", d), 0o755))
	}
	for _, h := range handlers {
		p := r.place(h, "plain", host)
		both := p.sharing("both", all(volume("shared", "/volume", propagated(cri.MountPropagation_PROPAGATION_BIDIRECTIONAL)), capabilities([]string{"SYS_ADMIN"}, nil), withoutAppArmor), "mount", "/volume/out")
		in := p.sharing("in", volume("shared", "/volume", propagated(cri.MountPropagation_PROPAGATION_HOST_TO_CONTAINER)), "sleep")
		private := p.sharing("private", volume("shared", "/volume"), "sleep")
		out := filepath.Join(host, "shared", "out")
		eventually(r, "the host has the container's mount", func() error { return r.mounted(out) })
		at := filepath.Join(host, "shared", "in")
		r.must(unix.Mount("tmpfs", at, "tmpfs", 0, ""))
		r.must(os.WriteFile(filepath.Join(at, "file"), []byte("later"), 0o644))
		for name, c := range map[string]struct {
			id   string
			code int32
		}{"both": {both, 0}, "in": {in, 0}, "private": {private, 1}} {
			if o := r.execSync(c.id, 0, "/payload", "look", "/volume/in/file"); o.Code != c.code {
				t.Errorf("%s, %s: the host's mount: %+v, want code %d", h, name, o, c.code)
			}
		}
		r.must(r.remove(p.pod))
		if err := r.mounted(out); err != nil {
			t.Errorf("%s: after the container's end: %v", h, err)
		}
		r.must(unix.Unmount(out, 0))
		r.must(unix.Unmount(at, 0))
	}
	r.wantNothingLeft()
}

// mounted says that there is no mount at a path.
func (r *rig) mounted(path string) error {
	b, err := os.ReadFile("/proc/self/mounts")
	if err == nil && !strings.Contains(string(b), " "+path+" ") {
		return fmt.Errorf("nothing is mounted at %s", path)
	}
	return err
}
