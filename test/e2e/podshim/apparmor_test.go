//go:build e2e && podshim

package podshim

import (
	"archive/tar"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// appArmor reports whether this machine has AppArmor.
func appArmor() bool {
	b, err := os.ReadFile("/sys/module/apparmor/parameters/enabled")
	return err == nil && strings.HasPrefix(string(b), "Y")
}

// hostProfile is a profile that the host has loaded.
const hostProfile = `profile podshim-test flags=(attach_disconnected) {
  file,
  capability,
  network,
  signal,
  ptrace,
  mount,
  umount,
  deny /tmp/forbidden rw,
}
`

func confinedBy(kind cri.SecurityProfile_ProfileType, name string) func(*cri.ContainerConfig) {
	return func(c *cri.ContainerConfig) {
		s := c.Linux.SecurityContext
		s.Apparmor = &cri.SecurityProfile{ProfileType: kind, LocalhostRef: name}
		// Nothing but the profile denies what is tried.
		s.MaskedPaths, s.ReadonlyPaths = nil, nil
		s.Capabilities = &cri.Capability{AddCapabilities: []string{"SYS_ADMIN"}}
	}
}

// A container and an exec in it are confined by the AppArmor profile of the container, as with
// stock shims, in each way that a process comes to be. Without AppArmor, a profile is refused.
func TestAppArmorIsAsWithStockShims(t *testing.T) {
	r := newRig(t)
	local := confinedBy(cri.SecurityProfile_Localhost, "podshim-test")
	if !appArmor() {
		for _, h := range handlers {
			pod, err := r.podBy(h, podConfig(r, "without-"+h))
			r.must(err)
			c := containerConfig(r, "without-"+h, "c", "confined")
			local(c)
			if _, err := r.containerIn(pod, podConfig(r, "without-"+h), c, func() {}); err == nil || !strings.Contains(err.Error(), "apparmor") {
				t.Errorf("%s: error %v, want one of AppArmor", h, err)
			}
		}
		r.removeAll()
		return
	}
	r.profile(hostProfile)
	const runtimes, own, none = "profile: cri-containerd.apparmor.d (enforce)\n", "profile: podshim-test (enforce)\n", "profile: unconfined\n"
	runtimeDefault := confinedBy(cri.SecurityProfile_RuntimeDefault, "")
	unsaid := func(c *cri.ContainerConfig) {
		runtimeDefault(c)
		c.Linux.SecurityContext.Apparmor = nil
	}
	asUser := func(c *cri.ContainerConfig) {
		s := c.Linux.SecurityContext
		s.RunAsUser, s.NoNewPrivs, s.ReadonlyRootfs = &cri.Int64Value{Value: 1000}, true, true
		s.Seccomp = &cri.SecurityProfile{ProfileType: cri.SecurityProfile_RuntimeDefault}
	}
	both := func(changes ...func(*cri.ContainerConfig)) func(*cri.ContainerConfig) {
		return func(c *cri.ContainerConfig) {
			for _, f := range changes {
				f(c)
			}
		}
	}
	tty := func(c *cri.ContainerConfig) { c.Tty = true }
	denied := []string{"mount: permission denied\n", "write /proc/sysrq-trigger: permission denied\n", "write /tmp/forbidden: <nil>\n"}
	for name, c := range map[string]struct {
		change func(*cri.ContainerConfig)
		want   []string
	}{
		"unsaid":     {unsaid, append([]string{runtimes}, denied...)},
		"runtimes":   {runtimeDefault, append([]string{runtimes}, denied...)},
		"terminal":   {both(runtimeDefault, tty), append([]string{runtimes}, denied...)},
		"unconfined": {confinedBy(cri.SecurityProfile_Unconfined, ""), []string{none, "mount: <nil>\n", "write /tmp/forbidden: <nil>\n"}},
		"hosts":      {local, []string{own, "mount: <nil>\n", "write /tmp/forbidden: permission denied\n"}},
		"user":       {both(local, asUser), []string{own}},
	} {
		said := r.wantSame(name, c.change, "/payload", "confined")
		for _, want := range c.want {
			if !strings.Contains(said, want) {
				t.Errorf("%s: no %q in\n%s", name, want, said)
			}
		}
	}
	for name, change := range map[string]func(*cri.PodSandboxConfig){"users": pods["users"], "shared-pid": pods["shared pid"], "host-pid": pods["host pid"]} {
		r.must(os.Chmod(r.dir, 0o711)) // for who is root in a user namespace alone
		of := func(c *cri.ContainerConfig) {
			p := podConfig(r, "")
			change(p)
			c.Linux.SecurityContext.NamespaceOptions = namespaces(p)
		}
		ids := r.pairOf(name, "", change, both(local, of), "confined")
		r.wantSameWords(name, ids, own, "write /tmp/forbidden: permission denied\n")
		execs := r.pairOf(name+"-exec", "", change, both(local, of), "sleep")
		k, s := r.execSync(execs["podshim"], 0, "/payload", "confined"), r.execSync(execs["stock"], 0, "/payload", "confined")
		if k != s || !strings.Contains(k.Out, own) {
			t.Errorf("%s, as exec: with stock shims\n%+v\nand with pod shims\n%+v", name, s, k)
		}
	}
	r.wantConfinedOverAnotherProc(local, own)
	r.removeAll()
}

// CVE-2019-16884, CVE-2019-19921, CVE-2023-28642, CVE-2025-52881: what an image or a volume has in
// place of /proc takes nobody's profile away.
func (r *rig) wantConfinedOverAnotherProc(local func(*cri.ContainerConfig), own string) {
	r.Helper()
	r.fakeProc(r.path("proc"))
	linked := r.imageOf("linked", "{}", tar.Header{Name: "made/", Mode: 0o755, Typeflag: tar.TypeDir}, tar.Header{Name: "proc", Linkname: "made", Typeflag: tar.TypeSymlink})
	pod, err := r.pod("procs")
	r.must(err)
	for name, change := range map[string]func(*cri.ContainerConfig){
		"volume": func(c *cri.ContainerConfig) {
			c.Mounts = []*cri.Mount{{HostPath: r.path("proc"), ContainerPath: "/proc"}}
		},
		"link": func(c *cri.ContainerConfig) { c.Image.Image = linked },
	} {
		c := containerConfig(r, "procs", name, "sleep")
		local(c)
		change(c)
		id, err := r.container(pod, c, func() {})
		r.must(err)
		if b, err := os.ReadFile(fmt.Sprintf("/proc/%d/attr/current", r.pidOf(id))); err != nil || "profile: "+string(b) != own {
			r.Errorf("%s: the container is confined by %q, %v", name, b, err)
		}
		if o := r.execSync(id, 0, "/payload", "confined"); !strings.Contains(o.Out, "write /tmp/forbidden: permission denied\n") {
			r.Errorf("%s: the exec is not confined: %+v", name, o)
		}
	}
}

// profile loads an AppArmor profile, which is taken away in the end.
func (r *rig) profile(text string) {
	r.Helper()
	parse := func(how string) {
		cmd := exec.Command("apparmor_parser", how)
		cmd.Stdin = strings.NewReader(text)
		if out, err := cmd.CombinedOutput(); err != nil {
			r.Errorf("apparmor_parser %s: %v: %s", how, err, out)
		}
	}
	parse("--replace")
	r.Cleanup(func() { parse("--remove") })
}
