//go:build e2e && podshim

package podshim

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// ran is what a container has written, and an exec in another one of the same configuration.
func (p *place) ran(name string, change func(*place, *cri.ContainerConfig), args ...string) map[string]string {
	p.Helper()
	p.exits(p.sharing(name, change, args...))
	o := p.execSync(p.sharing(name+"-exec", change, "sleep"), 0, append([]string{"/payload"}, args...)...)
	return map[string]string{name: p.said(p.name, name), name + ", as exec": o.Out + o.Err + o.Error}
}

// CVE-2022-24769, CVE-2022-29162: no process has inheritable capabilities. CVE-2023-25173: it has
// the groups that were asked for, and no other. CVE-2016-3697: it has the number that was asked
// for, also where that is somebody's name.
func TestRightsOfProcesses(t *testing.T) {
	r := newRig(t)
	passwd := r.path("passwd")
	r.must(os.WriteFile(passwd, []byte("1000:x:0:0::/evil:/\nroot:x:1000:0::/right:/\n"), 0o644))
	named := set(func(c *cri.ContainerConfig) {
		c.Mounts = []*cri.Mount{{HostPath: passwd, ContainerPath: "/etc/passwd"}}
	})
	for _, kind := range []string{"plain", "shared pid", "users"} {
		r.must(os.Chmod(r.dir, 0o711))
		p := r.place("podshim", kind, "")
		r.must(p.err)
		for name, c := range map[string]struct {
			change func(*place, *cri.ContainerConfig)
			want   []string
		}{
			"root":  {capabilities([]string{"SYS_PTRACE", "NET_ADMIN"}, nil), []string{"Uid:\t0\t0\t0\t0\n", "HOME=/root\x00"}},
			"user":  {all(user, named), []string{"Uid:\t1000\t1000\t1000\t1000\n", "Gid:\t2000\t2000\t2000\t2000\n", "Groups:\t2000 3000 4000 \n", "HOME=/right\x00", "CapPrm:\t0000000000000000\n"}},
			"alone": {set(func(c *cri.ContainerConfig) { security(c).RunAsUser = &cri.Int64Value{Value: 4711} }), []string{"Groups:\t0 \n", "HOME=/\x00"}},
		} {
			for how, said := range p.ran(name, c.change, "read", "/proc/self/status", "/proc/self/environ") {
				for _, want := range append(c.want, "CapInh:\t0000000000000000\n", "CapAmb:\t0000000000000000\n") {
					if !strings.Contains(said, want) {
						t.Errorf("%s, %s: no %q in %s", kind, how, want, said)
					}
				}
			}
		}
		r.must(r.remove(p.pod))
	}
	r.wantNothingLeft()
}

// CVE-2021-21334: containers that are made of one image at the same time have each their own
// environment, and so have their execs.
func TestEnvironmentsAreNotMixed(t *testing.T) {
	r := newRig(t)
	pod, err := r.pod("many")
	r.must(err)
	var all sync.WaitGroup
	for i := range 10 {
		all.Go(func() {
			own := fmt.Sprintf("OWN=%d", i)
			want := func(how, said string) {
				if !strings.Contains(said, own+"\x00") || strings.Count(said, "OWN=") != 1 {
					t.Errorf("%s of %s: %q", how, own, said)
				}
			}
			for _, args := range [][]string{{"read", "/proc/self/environ"}, {"sleep"}} {
				name := fmt.Sprintf("c%d-%s", i, args[0])
				c := containerConfig(r, "many", name, args...)
				c.Envs = []*cri.KeyValue{{Key: "OWN", Value: []byte(fmt.Sprint(i))}}
				id, err := r.container(pod, c, func() {})
				switch {
				case err != nil:
					t.Errorf("%s: %v", own, err)
				case args[0] == "sleep":
					for range 3 {
						want("exec", r.execSync(id, 0, "/payload", "read", "/proc/self/environ").Out)
					}
				default:
					r.exits(id)
					want("container", r.said("many", name))
				}
			}
		})
	}
	all.Wait()
	r.must(r.remove(pod))
	r.wantNothingLeft()
}

// CVE-2023-25809: nobody in a container writes to cgroups, whatever namespaces it has.
// CVE-2025-47291: with users of its own, it is in its cgroup with its limits.
func TestCgroupsAreNotForContainers(t *testing.T) {
	r := newRig(t)
	r.must(os.Chmod(r.dir, 0o711))
	for _, kind := range []string{"plain", "shared pid", "users", "host", "based"} {
		p := r.place("podshim", kind, "")
		for how, said := range p.ran("writes", limits(func(l *cri.LinuxContainerResources) { l.MemoryLimitInBytes = 256 << 20 }), "groups") {
			if said != "end: <nil>\n" {
				t.Errorf("%s, %s: %s", kind, how, said)
			}
		}
		id := p.sharing("limited", limits(func(l *cri.LinuxContainerResources) { l.MemoryLimitInBytes = 64 << 20 }), "sleep")
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", r.pidOf(id)))
		if err != nil || strings.Count(string(b), r.groupOf(id)+"\n") < len(hierarchies()) {
			t.Errorf("%s: it is not in its cgroup: %s, %v", kind, b, err)
		}
		file := "memory/memory.limit_in_bytes"
		if unified() {
			file = "cgroup/memory.max"
		}
		if got := r.settings(id)[file]; got != "67108864" {
			t.Errorf("%s: %s is %s", kind, file, got)
		}
		r.must(r.remove(p.pod))
	}
	r.wantNothingLeft()
}
