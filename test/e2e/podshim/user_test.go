//go:build e2e && podshim

package podshim

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// owned are lines that differ in a user namespace, as devices are nodes, and not files of the host,
// and as some file systems and the PID namespace are made outside of it.
var owned = strings.Fields("/dev/full: /dev/null: /dev/random: /dev/tty: /dev/urandom: /dev/zero: /dev/mqueue: /dev/pts: /proc/sys/kernel/pid_max: unmount: unmask: remount: proc:")

// firstID is root of the user namespaces here, on the host.
const firstID = 200000

func mappings() []*cri.IDMapping {
	return []*cri.IDMapping{{HostId: firstID, ContainerId: 0, Length: 65536}}
}

// inUserNamespace has a pod and a container in a user namespace.
func inUserNamespace() (func(*cri.PodSandboxConfig), func(*cri.ContainerConfig)) {
	set := func(n *cri.NamespaceOption) {
		n.UsernsOptions = &cri.UserNamespace{Mode: cri.NamespaceMode_POD, Uids: mappings(), Gids: mappings()}
	}
	return func(p *cri.PodSandboxConfig) { set(p.Linux.SecurityContext.NamespaceOptions) },
		func(c *cri.ContainerConfig) { set(c.Linux.SecurityContext.NamespaceOptions) }
}

// While a container is made that shares the PID namespace of another one, a process of the podshim
// is in that namespace for a moment. Root of the pod's user namespace, with all capabilities there,
// gets no hold of it.
func TestNoHoldOfWhatIsOutsideOfTheUserNamespace(t *testing.T) {
	r := newRig(t)
	r.must(os.Chmod(r.dir, 0o711))
	p := r.place("podshim", "users", "")
	r.must(p.err)
	c := p.config("reaches", "reach", strconv.Itoa(6000*int(slower())))
	c.Linux.SecurityContext.NamespaceOptions = p.sandbox.Linux.SecurityContext.NamespaceOptions
	all(capabilities([]string{"ALL"}, nil), withoutAppArmor)(p, c)
	id, err := p.containerIn(p.pod, p.sandbox, c, func() {})
	r.must(err)
	p.beside = id
	made := 0
	for ; r.status(id).State == cri.ContainerState_CONTAINER_RUNNING; made++ {
		c := p.config(fmt.Sprintf("debug%d", made), "exit", "0", "0")
		c.Linux.SecurityContext.NamespaceOptions = p.sandbox.Linux.SecurityContext.NamespaceOptions
		target(p, c)
		debug, err := p.containerIn(p.pod, p.sandbox, c, func() {})
		if err != nil {
			if r.status(id).State == cri.ContainerState_CONTAINER_RUNNING {
				t.Error(err)
			}
			break
		}
		r.exits(debug)
		ctx, cancel := r.within()
		_, err = r.rt.RemoveContainer(ctx, &cri.RemoveContainerRequest{ContainerId: debug})
		cancel()
		r.must(err)
	}
	r.exits(id)
	if said := r.said(p.name, "reaches"); said != "seen: true\n" || made < 5 {
		t.Errorf("%d containers were made; the container that they share the PID namespace of reports\n%s", made, said)
	}
	r.must(r.remove(p.pod))
	r.wantNothingLeft()
}

// Containers in user namespaces see, own and may do the same with pod shims as with stock shims.
func TestUserNamespacesAreAsWithStockShims(t *testing.T) {
	r := newRig(t)
	// Who is root in there alone passes by this folder on the way to the files of its container.
	r.must(os.Chmod(r.dir, 0o711))
	pods, container := inUserNamespace()
	for _, h := range handlers {
		volume := r.path("volume-" + h)
		r.must(os.MkdirAll(volume, 0o755))
		r.must(os.WriteFile(filepath.Join(volume, "file"), []byte("content"), 0o600))
		r.must(os.WriteFile(filepath.Join(volume, "users"), []byte("of 1000"), 0o600))
		r.must(os.Chown(filepath.Join(volume, "users"), 1000, 1000))
	}
	for name, change := range map[string]func(*cri.ContainerConfig){
		"root": func(*cri.ContainerConfig) {},
		"user": func(c *cri.ContainerConfig) {
			sc := c.Linux.SecurityContext
			sc.RunAsUser, sc.RunAsGroup, sc.SupplementalGroups = &cri.Int64Value{Value: 1000}, &cri.Int64Value{Value: 2000}, []int64{3000}
			sc.NoNewPrivs, sc.ReadonlyRootfs = true, true
		},
		"admin": func(c *cri.ContainerConfig) {
			sc := c.Linux.SecurityContext
			sc.Capabilities = &cri.Capability{AddCapabilities: []string{"ALL"}}
			sc.Seccomp = &cri.SecurityProfile{ProfileType: cri.SecurityProfile_RuntimeDefault}
		},
	} {
		r.wantSameWords(name, r.pairOf(name, "", pods, func(c *cri.ContainerConfig) {
			container(c)
			change(c)
			h := filepath.Base(filepath.Dir(c.Annotations[logAnnotation]))
			volume := r.path("volume-" + h[strings.LastIndex(h, "-")+1:])
			c.Mounts = []*cri.Mount{
				{HostPath: volume, ContainerPath: "/volume", UidMappings: mappings(), GidMappings: mappings()},
				{HostPath: volume, ContainerPath: "/made/readonly", Readonly: true, UidMappings: mappings(), GidMappings: mappings()},
			}
		}, "owners"), "uid_map: 0 200000 65536")
	}
	// With stock shims, who has CAP_SYS_ADMIN takes these away. AppArmor denies before the kernel
	// does.
	said := r.said("admin-podshim", "c")
	for _, want := range []string{`unmask: invalid argument`, `remount: (operation not permitted|permission denied)`, `/dev/null: 20666 of 0:0 <nil>`} {
		if !regexp.MustCompile(`(?m)^` + want + `$`).MatchString(said) {
			t.Errorf("no %q in\n%s", want, said)
		}
	}
	for _, h := range handlers {
		st, err := os.Stat(r.path("volume-"+h, "made"))
		r.must(err)
		if id := st.Sys().(*syscall.Stat_t).Uid; id != 0 {
			t.Errorf("%s: what root of a container has made in a volume belongs to %d of the host", h, id)
		}
	}

	execs := r.pairOf("execs", "", pods, func(c *cri.ContainerConfig) { container(c) }, "sleep")
	for _, args := range [][]string{{"/payload", "owners"}, {"/payload", "reopen"}, {"foo"}} {
		k, s := r.execSync(execs["podshim"], 0, args...), r.execSync(execs["stock"], 0, args...)
		if k.Out, s.Out = without(k.Out, owned...), without(s.Out, owned...); k != s {
			t.Errorf("exec %s: with stock shims\n%+v\nand with pod shims\n%+v", args, s, k)
		}
	}
	sysctls := func(p *cri.PodSandboxConfig) {
		pods(p)
		p.Linux.Sysctls = map[string]string{"net.ipv4.ip_unprivileged_port_start": "5", "kernel.msgmax": "1234", "fs.mqueue.msg_max": "77"}
	}
	r.wantSameWords("sysctls", r.pairOf("sysctls", "", sysctls, func(c *cri.ContainerConfig) { container(c) }, "read",
		"/proc/sys/net/ipv4/ip_unprivileged_port_start", "/proc/sys/kernel/msgmax", "/proc/sys/fs/mqueue/msg_max"), "start: 5\n", "msgmax: 1234\n")

	// A containerd of later knows such a pod, too.
	p := podConfig(r, "later")
	pods(p)
	pod, err := r.podOf(p)
	r.must(err)
	c := containerConfig(r, "later", "before", "sleep")
	container(c)
	before, err := r.container(pod, c, func() {})
	r.must(err)
	r.kill()
	r.start()
	if o := r.execSync(before, 0, "/payload", "owners"); !strings.Contains(o.Out, "uid_map: 0 200000 65536") {
		t.Errorf("an exec after a restart: %+v", o)
	}
	c = containerConfig(r, "later", "after", "owners")
	container(c)
	after, err := r.container(pod, c, func() {})
	r.must(err)
	if r.exits(after); !strings.Contains(r.said("later", "after"), "uid_map: 0 200000 65536") {
		t.Errorf("a container after a restart: %s", r.said("later", "after"))
	}
	for _, pod := range r.pods() {
		r.must(r.remove(pod.Id))
	}
	r.wantNothingLeft()
}
