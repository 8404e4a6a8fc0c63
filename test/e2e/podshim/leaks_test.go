//go:build e2e && podshim

package podshim

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// CVE-2019-5736: who gets hold of the program of a pod shim changes neither it nor its mode. It is
// seen in an exec by who may trace, and in process 1 of a pod that shares its processes.
func TestNobodyChangesTheProgramOfPodshims(t *testing.T) {
	r := newRig(t)
	file := filepath.Join(r.programs, "podshim")
	before, err := os.ReadFile(file)
	r.must(err)
	for _, kind := range []string{"plain", "shared pid"} {
		p := r.place("podshim", kind, "")
		for name, change := range map[string]func(*place, *cri.ContainerConfig){"traces": all(capabilities([]string{"SYS_PTRACE"}, nil), withoutAppArmor), "root": nothing} {
			id := p.sharing(name, change, "program", "/tmp/end")
			for i := range 300 { // an exec is there for a moment only
				if i >= 10 && (name == "root" || r.execSync(id, 0, "/payload", "look", "/tmp/seen").Code == 0) {
					break
				}
				r.execSync(id, 0, "/payload", "look", "/")
			}
			r.execSync(id, 0, "/payload", "touch", "/tmp/end")
			s := r.exits(id)
			said := r.said(p.name, name)
			if s.ExitCode != 0 || name == "traces" && !strings.HasPrefix(said, "1 seen map[/memfd:keeper:true]") {
				t.Errorf("%s, who %s: ended with %d: %s", kind, name, s.ExitCode, said)
			}
		}
		r.must(r.remove(p.pod))
	}
	if after, err := os.ReadFile(file); err != nil || string(after) != string(before) {
		t.Errorf("the program on the host is another one, %v", err)
	}
	if pod, err := r.pod("later"); err != nil {
		t.Errorf("no pod can be made any more: %v", err)
	} else {
		r.must(r.remove(pod))
	}
	r.wantNothingLeft()
}

// CVE-2016-9962, CVE-2024-21626: what waits to become a container has nothing of the host open,
// also when the pod shim holds cgroups, terminals and logs of other containers.
func TestNothingOfTheHostIsOpen(t *testing.T) {
	r := newRig(t)
	for _, kind := range []string{"plain", "shared pid"} {
		p := r.place("podshim", kind, "")
		p.sharing("terminal", terminal, "sleep")
		r.kill()
		r.env = []string{"PODSHIM_POINT=task-made"}
		r.startPoints()
		_, err := p.containerIn(p.pod, p.sandbox, p.config("waits", "sleep"), func() {})
		<-r.ended
		waiting := r.waiting(p.pod)
		if err == nil || len(waiting) != 1 {
			t.Errorf("%s: %v waits, %v", kind, waiting, err)
		}
		for _, pid := range waiting {
			for _, of := range r.opened(pid) {
				t.Errorf("%s: %s", kind, of)
			}
		}
		r.env = nil
		r.start()
		r.must(r.remove(p.pod))
	}
	r.wantNothingLeft()
}

// waiting are the children of a pod's pod shim that run its program still, but for process 1 of a
// shared namespace.
func (r *rig) waiting(pod string) (out []string) {
	r.Helper()
	podshim := r.podshimOf(pod)
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", podshim))
	r.must(err)
	for pid := range strings.FieldsSeq(string(b)) {
		exe, _ := os.Readlink("/proc/" + pid + "/exe")
		if comm, _ := os.ReadFile("/proc/" + pid + "/comm"); strings.HasPrefix(exe, "/memfd:keeper") && string(comm) != "pause\n" {
			out = append(out, pid)
		}
	}
	return out
}

// opened are the files that a process has open beside pipes, sockets, null devices and its own
// root.
func (r *rig) opened(pid string) (out []string) {
	r.Helper()
	root, err := os.Stat("/proc/" + pid + "/root")
	r.must(err)
	files, err := filepath.Glob("/proc/" + pid + "/fd/*")
	r.must(err)
	for _, f := range files {
		at, err := os.Readlink(f)
		r.must(err)
		st, err := os.Stat(f)
		r.must(err)
		null := st.Mode()&os.ModeCharDevice != 0 && filepath.Base(at) == "null"
		if !strings.HasPrefix(at, "pipe:") && !strings.HasPrefix(at, "socket:") && !null && !os.SameFile(st, root) {
			out = append(out, f+" is "+at)
		}
	}
	return out
}

// CVE-2024-21626: the folder of a container or an exec may be a link on a volume that others write
// to. It leads to none of the host, not even where the host's processes are seen.
func TestNoFolderOfAnotherProcess(t *testing.T) {
	r := newRig(t)
	r.must(os.WriteFile(r.path("secret"), []byte("secret of the host"), 0o644))
	r.must(os.Mkdir(r.path("shared"), 0o777))
	link := r.path("shared", "work")
	aim := func(at string) {
		t.Helper()
		if err := os.Remove(link); err != nil && !os.IsNotExist(err) {
			r.must(err)
		}
		r.must(os.Symlink(at, link))
	}
	inside, outside, ran := strings.TrimPrefix(r.path("secret"), "/"), strings.Repeat("../", 12)+strings.TrimPrefix(r.path("secret"), "/"), 0
	for _, kind := range []string{"shared pid", "host pid"} {
		p := r.place("podshim", kind, "")
		work := set(func(c *cri.ContainerConfig) {
			c.WorkingDir = "/volume/work"
			c.Mounts = []*cri.Mount{{HostPath: r.path("shared"), ContainerPath: "/volume"}}
		})
		aim("/tmp")
		id := p.sharing("works", work, "sleep")
		targets := []string{"/proc/1/root", "/proc/1/cwd", "/proc/1/root/tmp", fmt.Sprintf("/proc/%d/cwd", os.Getpid()), fmt.Sprintf("/proc/%d/root/proc", r.podshimOf(p.pod))}
		for fd := range 10 {
			targets = append(targets, "/proc/self/fd/"+strconv.Itoa(fd))
		}
		for i, at := range targets {
			aim(at)
			if o := r.execSync(id, 0, "/payload", "read", inside, outside); strings.Contains(o.Out, "secret of") {
				t.Errorf("%s, exec in %s: %+v", kind, at, o)
			} else if o.Error == "" {
				ran++
			}
			name := fmt.Sprintf("c%d", i)
			c := p.config(name, "read", inside, outside)
			c.Linux.SecurityContext.NamespaceOptions = p.sandbox.Linux.SecurityContext.NamespaceOptions
			work(p, c)
			if made, err := p.containerIn(p.pod, p.sandbox, c, func() {}); err == nil {
				ran++
				if r.exits(made); strings.Contains(r.said(p.name, name), "secret of") {
					t.Errorf("%s, container in %s: %s", kind, at, r.said(p.name, name))
				}
			}
		}
		r.must(r.remove(p.pod))
	}
	if ran == 0 {
		t.Error("no such folder is in the container: nothing was tried")
	}
	r.wantNothingLeft()
}
