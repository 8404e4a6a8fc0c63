//go:build e2e && vm

package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// packaged is a machine on which the agent is installed by its packages, with all that they have
// where they have it.
type packaged struct {
	*node
	debs string // folder of packages
}

// newPackaged is a machine without packages, which loses them at the end.
func newPackaged(t *testing.T) *packaged {
	t.Helper()
	needsSystemd(t)
	n := *newNode(t)
	n.place = place{Dir: "/etc/berth", Root: "/var/lib/berth", Run: "/run/berth", Cgroup: "/kubepods"}
	n.binary = "/usr/bin/berth"
	p := &packaged{node: &n, debs: os.Getenv("BERTH_PACKAGES")}
	t.Cleanup(func() {
		if t.Failed() {
			n.tell()
			t.Logf("the journal has:\n%s", journalOf(t, "berth", "-n", "60"))
		}
		p.dpkg("--purge", "berth-kubelet", "berth")
		must(t, os.RemoveAll("/etc/berth"))
	})
	return p
}

// deb is the file of a package.
func (p *packaged) deb(name string) string {
	p.t.Helper()
	files, err := filepath.Glob(filepath.Join(p.debs, name+"_*.deb"))
	if err != nil || len(files) != 1 {
		p.t.Fatalf("BERTH_PACKAGES=%s has the packages %v of %s, want one, as make e2e-vm gives it: %v", p.debs, files, name, err)
	}
	return files[0]
}

// dpkg runs the package manager, which must succeed, and returns what it said.
func (p *packaged) dpkg(args ...string) string {
	p.t.Helper()
	return p.run("dpkg", args...)
}

func (p *packaged) run(name string, args ...string) string {
	p.t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive", "LC_ALL=C.UTF-8")
	out, err := cmd.CombinedOutput()
	if err != nil {
		p.t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

// next is the package of a version that follows, with a program of other bytes.
func (p *packaged) next(name string) string {
	p.t.Helper()
	dir := p.t.TempDir() + "/next"
	p.run("dpkg-deb", "--raw-extract", p.deb(name), dir)
	control, err := os.ReadFile(dir + "/DEBIAN/control")
	must(p.t, err)
	before, after, found := strings.Cut(string(control), "\nVersion: ")
	version, rest, ended := strings.Cut(after, "\n")
	if !found || !ended {
		p.t.Fatalf("the package has no version:\n%s", control)
	}
	must(p.t, os.WriteFile(dir+"/DEBIAN/control", []byte(before+"\nVersion: "+version+".1\n"+rest), 0o644))
	p.copyProgram(dir+"/usr/bin/berth", dir+"/usr/bin/berth", "another version")
	p.run("dpkg-deb", "-Znone", "--build", dir, dir+".deb")
	return dir + ".deb"
}

// serviceIs checks what systemd says of a service: enabled or not, active or not.
func (p *packaged) serviceIs(name, enabled, active string) {
	p.t.Helper()
	for question, want := range map[string]string{"is-enabled": enabled, "is-active": active} {
		out, err := exec.Command("systemctl", question, name).Output()
		if got := strings.TrimSpace(string(out)); got != want {
			p.t.Errorf("systemctl %s %s says %q (%v), want %q", question, name, got, err, want)
		}
	}
}

// ends checks that processes have ended.
func (p *packaged) ends(pids map[string]int) {
	p.t.Helper()
	for name, pid := range pids {
		if err := unix.Kill(pid, 0); err != unix.ESRCH {
			p.t.Errorf("%s, process %d, has not ended: %v", name, pid, err)
		}
	}
}

// there checks which files there are, and which not.
func (p *packaged) there(when string, want map[string]bool) {
	p.t.Helper()
	for file, there := range want {
		if exists(p.t, file) != there {
			p.t.Errorf("%s, %s is there: %t, want %t", when, file, !there, there)
		}
	}
}

// writePods writes two manifests into the folder of the package, and waits for nothing.
func (p *packaged) writePods() {
	p.t.Helper()
	for _, name := range []string{"one", "two"} {
		p.write(name+".yaml", manifest(name, "serve"))
	}
}

// A package that is installed starts nothing; an upgrade leaves every container running, and so
// does one of a service that is stopped; a removal ends pods and keeps their data; a purge keeps
// only what somebody else has put there.
func TestVMPackage(t *testing.T) {
	p := newPackaged(t)
	said := p.dpkg("--install", p.deb("berth"))
	wantText(t, "the installation", said, "systemctl enable --now berth")
	p.serviceIs("berth", "disabled", "inactive")
	p.there("after the installation", map[string]bool{
		p.place.Root: false, p.place.Run: false, p.manifests(): true, "/etc/default/berth": true, "/usr/share/man/man1/berth-explain.1.gz": true,
	})
	if changed := p.dpkg("--verify", "berth"); changed != "" {
		t.Errorf("files of the package are not as it has them:\n%s", changed)
	}

	p.writePods()
	must(t, os.WriteFile("/etc/default/berth", []byte("BERTH_EXTRA_ARGS=\"--max-pods 7\"\n"), 0o644))
	systemctl(t, "enable", "--now", "berth")
	before := p.awaitReady("one", "two")
	bodies, runtime := p.bodies(before), p.containerd()

	u := p.unit("berth.service")
	old := u.pid()
	said = p.dpkg("--install", p.next("berth"))
	if now := u.pid(); now == 0 || now == old {
		t.Errorf("the upgrade has left the agent as process %d, which was %d:\n%s", now, old, said)
	}
	if exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", u.pid())); err != nil || exe != p.binary {
		t.Errorf("after the upgrade the agent runs %s, %v", exe, err)
	}
	command := strings.ReplaceAll(readFile(t, fmt.Sprintf("/proc/%d/cmdline", u.pid())), "\x00", " ")
	wantText(t, "the agent's command line", command, "/usr/bin/berth run --max-pods 7 /etc/berth/manifests")
	p.same("the upgrade", before, bodies, runtime)

	systemctl(t, "stop", "berth")
	p.dpkg("--install", "--force-downgrade", p.deb("berth"))
	p.serviceIs("berth", "enabled", "inactive")
	systemctl(t, "start", "berth")
	p.same("an upgrade while the service is stopped", before, bodies, runtime)

	bodies["the runtime"], bodies["the agent"] = runtime, u.pid()
	wantText(t, "the removal", p.dpkg("--remove", "berth"), "ending the pods", "the embedded runtime")
	p.ends(bodies)
	p.there("after the removal", map[string]bool{
		p.binary: false, "/etc/systemd/system/multi-user.target.wants/berth.service": false, p.place.Root: true,
		"/etc/default/berth": true, p.manifests() + "/one.yaml": true,
	})

	p.dpkg("--install", p.deb("berth"))
	p.serviceIs("berth", "disabled", "inactive")
	systemctl(t, "start", "berth")
	bodies = p.bodies(p.awaitReady("one", "two"))
	bodies["the runtime"] = p.containerd()
	p.dpkg("--purge", "berth")
	p.ends(bodies)
	p.there("after the purge", map[string]bool{
		p.binary: false, p.place.Root: false, p.place.Run: false, "/etc/default/berth": false, p.manifests() + "/one.yaml": true,
	})
	if mounts := readFile(t, "/proc/self/mounts"); strings.Contains(mounts, "berth/") {
		t.Errorf("something is still mounted:\n%s", mounts)
	}
}

// same checks that the pods are those of before, and their processes and the runtime too.
func (p *packaged) same(when string, before pods, bodies map[string]int, runtime int) {
	p.t.Helper()
	now := p.awaitReady("one", "two")
	if diff := cmp.Diff(lives(before), lives(now)); diff != "" {
		p.t.Errorf("containers changed over %s (-before +after):\n%s", when, diff)
	}
	if diff := cmp.Diff(bodies, p.bodies(now)); diff != "" {
		p.t.Errorf("processes of containers changed over %s (-before +after):\n%s", when, diff)
	}
	if now := p.containerd(); now != runtime {
		p.t.Errorf("the runtime was process %d, and is %d after %s", runtime, now, when)
	}
}

// kubeletAlone is the configuration of a kubelet without a cluster.
const kubeletAlone = `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
containerRuntimeEndpoint: embedded
staticPodPath: /etc/berth/manifests
failSwapOn: false
authentication: {anonymous: {enabled: false}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
`

// The package of the kubelet has its service and its name. Its removal leaves the pods running, for
// the kubelet that comes; that of the agent ends them, as they are in its runtime.
func TestVMPackageKubelet(t *testing.T) {
	p := newPackaged(t)
	p.dpkg("--install", p.deb("berth"), p.deb("berth-kubelet"))
	p.serviceIs("kubelet", "disabled", "inactive")
	wantText(t, "kubelet --version", p.run("kubelet", "--version"), "Kubernetes v1.")
	if provides := p.run("dpkg-query", "--show", "--showformat=${Provides} ${Conflicts}", "berth-kubelet"); !strings.HasPrefix(provides, "kubelet (= 1.") {
		t.Errorf("the package stands for %q", provides)
	}
	config := t.TempDir() + "/config.yaml"
	must(t, os.WriteFile(config, []byte(kubeletAlone), 0o644))
	u := p.unit("kubelet.service")
	u.change("ExecStart=\nExecStart=/usr/bin/kubelet --hostname-override=vm --config=" + config)
	t.Cleanup(func() { must(t, os.RemoveAll(unitFolder+"kubelet.service.d")) })
	p.writePods()
	systemctl(t, "enable", "--now", "kubelet")
	before := p.awaitReady("one-vm", "two-vm")
	bodies, old := p.bodies(before), u.pid()

	p.dpkg("--remove", "berth-kubelet")
	p.ends(map[string]int{"the agent": old})
	for name, pid := range bodies {
		if err := unix.Kill(pid, 0); err != nil {
			t.Errorf("the process of %s has ended with the package of the kubelet: %v", name, err)
		}
	}
	p.there("after the removal of the kubelet", map[string]bool{
		"/usr/bin/kubelet": false, "/etc/systemd/system/multi-user.target.wants/kubelet.service": false, p.binary: true,
	})
	p.dpkg("--remove", "berth")
	p.ends(bodies)
}
