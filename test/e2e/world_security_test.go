//go:build e2e

package e2e

import (
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

// Capabilities as the kernel shows them: those that a container has by itself, and single ones.
const (
	defaultCaps = "00000000a80425fb"
	noCaps      = "0000000000000000"
	netBind     = "0000000000000400"
)

// Who the process is and what it may do: users, groups, capabilities, no_new_privs, seccomp, a root
// that is not written to, masked files.
func TestWorldSecurity(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.put(n.looker("plain", func(*v1.Pod, *v1.Container) {}))
	n.put(n.looker("restricted", func(p *v1.Pod, c *v1.Container) {
		p.Spec.SecurityContext = &v1.PodSecurityContext{
			RunAsUser: ptr.To[int64](1000), RunAsGroup: ptr.To[int64](3000), RunAsNonRoot: ptr.To(true),
			FSGroup: ptr.To[int64](2000), SupplementalGroups: []int64{4, 5}, SeccompProfile: &v1.SeccompProfile{Type: v1.SeccompProfileTypeRuntimeDefault},
		}
		c.SecurityContext = &v1.SecurityContext{
			AllowPrivilegeEscalation: ptr.To(false), ReadOnlyRootFilesystem: ptr.To(true), Capabilities: &v1.Capabilities{Drop: []v1.Capability{"ALL"}},
		}
	}))
	n.put(n.looker("caps", func(_ *v1.Pod, c *v1.Container) {
		c.SecurityContext = &v1.SecurityContext{Capabilities: &v1.Capabilities{Drop: []v1.Capability{"ALL"}, Add: []v1.Capability{"NET_BIND_SERVICE"}}}
	}))
	n.put(n.looker("privileged", func(_ *v1.Pod, c *v1.Container) { c.SecurityContext = &v1.SecurityContext{Privileged: ptr.To(true)} }))
	n.put(n.looker("group", func(p *v1.Pod, _ *v1.Container) {
		p.Spec.SecurityContext = &v1.PodSecurityContext{RunAsGroup: ptr.To[int64](3000)}
	}))
	n.put(n.looker("profile", func(_ *v1.Pod, c *v1.Container) {
		c.SecurityContext = &v1.SecurityContext{SeccompProfile: &v1.SeccompProfile{Type: v1.SeccompProfileTypeLocalhost, LocalhostProfile: ptr.To("tests/nothing-made.json")}}
	}))
	profile := filepath.Join(n.place.Root, "seccomp/tests/nothing-made.json")
	must(t, os.MkdirAll(filepath.Dir(profile), 0o755), os.WriteFile(profile, []byte(`{"defaultAction": "SCMP_ACT_ALLOW",
		"syscalls": [{"names": ["mkdir", "mkdirat"], "action": "SCMP_ACT_ERRNO"}]}`), 0o644))
	n.start()

	plain := n.worldOf("plain", "main")
	plain.wantStatus(t, "Uid", "0 0 0 0")
	plain.wantStatus(t, "CapEff", defaultCaps)
	plain.wantStatus(t, "CapBnd", defaultCaps)
	plain.wantStatus(t, "NoNewPrivs", "0")
	plain.wantStatus(t, "Seccomp", "0")
	plain.want(t, "root", "writable")
	plain.want(t, "interrupts", "character special file") // that of /dev/null

	restricted := n.worldOf("restricted", "main")
	restricted.wantStatus(t, "Uid", "1000 1000 1000 1000")
	restricted.wantStatus(t, "Gid", "3000 3000 3000 3000")
	restricted.wantStatus(t, "Groups", "4 5 2000 3000")
	restricted.wantStatus(t, "CapEff", noCaps)
	restricted.wantStatus(t, "CapBnd", noCaps)
	restricted.wantStatus(t, "NoNewPrivs", "1")
	restricted.wantStatus(t, "Seccomp", "2")
	if !strings.Contains(restricted["root"], "Read-only file system") {
		t.Errorf("a read-only root: %q", restricted["root"])
	}

	caps := n.worldOf("caps", "main")
	caps.wantStatus(t, "CapEff", netBind)
	caps.wantStatus(t, "CapBnd", netBind)

	privileged := n.worldOf("privileged", "main")
	if got := privileged.status("CapEff"); got != privileged.status("CapBnd") || len(strings.Trim(got, "0")) < 8 {
		t.Errorf("capabilities of a privileged container: %s", got)
	}
	privileged.wantStatus(t, "Seccomp", "0")
	privileged.want(t, "interrupts", "regular empty file")

	group := n.worldOf("group", "main")
	group.wantStatus(t, "Uid", "0 0 0 0")
	group.wantStatus(t, "Gid", "3000 3000 3000 3000")

	n.worldOf("profile", "main").wantStatus(t, "Seccomp", "2")
	if said := n.execIn("", "profile", "--", "/usr/bin/mkdir", "/made"); said.code == 0 || !strings.Contains(said.errOut, "Operation not permitted") {
		t.Errorf("mkdir under a profile that refuses it: %+v", said)
	}
}

// Containers that would be more than the pod allows are not made, and say why.
func TestWorldRefused(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.put(n.looker("root", func(p *v1.Pod, _ *v1.Container) {
		p.Spec.SecurityContext = &v1.PodSecurityContext{RunAsNonRoot: ptr.To(true)}
	}))
	n.put(n.looker("lost", func(_ *v1.Pod, c *v1.Container) {
		c.SecurityContext = &v1.SecurityContext{SeccompProfile: &v1.SeccompProfile{Type: v1.SeccompProfileTypeLocalhost, LocalhostProfile: ptr.To("none.json")}}
	}))
	n.start()
	if said := n.awaitWaiting("root", "CreateContainerConfigError"); !strings.HasPrefix(said, "container has runAsNonRoot and image will run as root (pod: ") {
		t.Errorf("root: %q", said)
	}
	if said := n.awaitWaiting("lost", "CreateContainerError"); !strings.Contains(said, "none.json") {
		t.Errorf("lost: %q", said)
	}
	for _, pod := range []string{"root", "lost"} {
		if story := n.story(pod); len(story) > 1 || story[0] != "" {
			t.Errorf("%s ran: %q", pod, story)
		}
	}
}

// Namespaces and kernel parameters: what is the host's, what is the pod's, what is each
// container's.
func TestWorldNamespaces(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.put(n.looker("own", func(p *v1.Pod, _ *v1.Container) {
		p.Spec.SecurityContext = &v1.PodSecurityContext{Sysctls: []v1.Sysctl{
			{Name: "net/ipv4/ip_unprivileged_port_start", Value: "81"}, {Name: "kernel.shm_rmid_forced", Value: "1"},
		}}
	}))
	n.put(n.looker("hosts", func(p *v1.Pod, _ *v1.Container) {
		p.Spec.HostNetwork, p.Spec.HostPID, p.Spec.HostIPC = true, true, true
	}))
	shared := n.act("shared", v1.RestartPolicyAlways, nil, actor("main", look+"stay\n"), actor("side", look+"stay\n"))
	shared.Spec.ShareProcessNamespace = ptr.To(true)
	n.put(shared)
	apart := n.act("apart", v1.RestartPolicyAlways, nil, actor("main", look+"stay\n"), actor("side", look+"stay\n"))
	n.put(apart)
	n.start()

	own, hosts := n.worldOf("own", "main"), n.worldOf("hosts", "main")
	for _, kind := range []string{"net", "pid", "ipc"} {
		host := namespace(t, kind)
		if own["ns "+kind] == host {
			t.Errorf("%s namespace: the host's, and should be the pod's", kind)
		}
		hosts.want(t, "ns "+kind, host)
	}
	own.want(t, "sysctl net", "81")
	own.want(t, "sysctl ipc", "1")

	for _, tc := range []struct {
		pod    string
		shared []string
		apart  []string
	}{
		{"shared", []string{"net", "ipc", "pid"}, nil},
		{"apart", []string{"net", "ipc"}, []string{"pid"}},
	} {
		a, b := n.worldOf(tc.pod, "main"), n.worldOf(tc.pod, "side")
		for _, kind := range tc.shared {
			b.want(t, "ns "+kind, a["ns "+kind])
		}
		for _, kind := range tc.apart {
			if a["ns "+kind] == b["ns "+kind] {
				t.Errorf("%s: the containers of %s share it", kind, tc.pod)
			}
		}
	}
	if !strings.Contains(n.execIn("", "shared", "-c", "main", "--", "/usr/bin/cat", "/proc/1/cmdline").out, "pause") {
		t.Error("the first process of a pod that shares its processes is not the sandbox's")
	}
}

// A pod with a user namespace is root to itself and nobody to the host; its ids are its own, and
// stay so over the end of its containers and of the agent; they are free when it is gone.
func TestWorldUserNamespace(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	must(t, os.Chmod(n.place.Dir, 0o711)) // as /run is: the pods' root must get to the runtime's mounts
	inside := func(p *v1.Pod, c *v1.Container) {
		p.Spec.HostUsers = ptr.To(false)
		p.Spec.Volumes = append(p.Spec.Volumes, v1.Volume{Name: "empty", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}})
		c.VolumeMounts = append(c.VolumeMounts, v1.VolumeMount{Name: "empty", MountPath: "/empty"})
		c.Command = actor("main", "echo x > /empty/file && say wrote\n"+look+"stay\n").Command
	}
	n.put(n.looker("first", inside))
	n.put(n.looker("second", inside))
	a := n.start()
	ids := func(pod string) string {
		t.Helper()
		w := n.worldOf(pod, "main")
		w.wantStatus(t, "Uid", "0 0 0 0")
		w.want(t, "owner", "0 0") // of the host's folder, through the mount
		if w["ns user"] == namespace(t, "user") {
			t.Errorf("%s has the host's user namespace", pod)
		}
		fields := strings.Fields(w["uid_map"])
		if len(fields) != 3 || fields[0] != "0" || fields[1] == "0" || fields[2] != "65536" {
			t.Fatalf("uid_map of %s: %q", pod, w["uid_map"])
		}
		return fields[1]
	}
	first, second := ids("first"), ids("second")
	must(t, filepath.WalkDir(n.place.Run, func(path string, d fs.DirEntry, err error) error {
		if d == nil || d.Type() != fs.ModeSocket {
			return nil // a folder that went meanwhile, too
		}
		if st, err := d.Info(); err == nil && st.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s has mode %o: only root may connect", path, st.Mode().Perm())
		}
		return nil
	}))
	if first == second {
		t.Errorf("both pods have the ids from %s on", first)
	}
	p := n.awaitReady("first", "second").named("first")
	uidMap, err := os.ReadFile("/proc/" + strconv.Itoa(n.pid(containerID(p, "main"))) + "/uid_map")
	if err != nil || strings.Fields(string(uidMap))[1] != first {
		t.Errorf("the host sees %q, %v", uidMap, err)
	}
	kept := filepath.Join(n.place.Root, "pods", string(p.UID), "userns")
	if b, err := os.ReadFile(kept); err != nil || !strings.Contains(string(b), `"hostId":`+first) {
		t.Errorf("%s: %s, %v", kept, b, err)
	}

	a.kill()
	n.start()
	must(t, os.Remove(filepath.Join(n.stage("first"), "main.world")))
	n.signal(n.awaitReady("first").named("first"), "main", unix.SIGTERM)
	until(t, "first to look again", func() bool { return n.said("first", "main looked") == 2 })
	if again := ids("first"); again != first {
		t.Errorf("after a restart of agent and container: ids from %s on, and before from %s on", again, first)
	}
	n.put(n.looker("third", inside))
	if third := ids("third"); third == first || third == second {
		t.Errorf("a new pod has the ids of another, from %s on", third)
	}
	n.remove("first.yaml")
	n.awaitGone(p.UID)
	until(t, "the ids to be given back", func() bool {
		_, err := os.Stat(filepath.Dir(kept))
		return os.IsNotExist(err)
	})
	n.put(n.looker("fourth", inside))
	if fourth := ids("fourth"); fourth != first {
		t.Errorf("ids that were given back: got those from %s on, want from %s on", fourth, first)
	}
}

// The image's user is who runs, at the first start, at the second, and from what is there already;
// a group beside it does not change who.
func TestWorldImageUser(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.start()
	r := newRegistry(t, httptest.NewServer)
	pod := func(name, image string) *v1.Pod {
		return n.looker(name, func(p *v1.Pod, c *v1.Container) {
			c.Image, c.ImagePullPolicy = image, v1.PullIfNotPresent
			c.Command = actor("main", look+"if [ $run = 1 ]; then exit 1; fi\nsay second\nstay\n").Command
		})
	}
	image := r.pushUser(n, "world/user", "1234")
	n.put(pod("pulled", image))
	n.awaitStory("pulled", "main second")
	n.worldOf("pulled", "main").wantStatus(t, "Uid", "1234 1234 1234 1234")

	cached := pod("cached", image)
	cached.Spec.SecurityContext = &v1.PodSecurityContext{RunAsNonRoot: ptr.To(true), RunAsGroup: ptr.To[int64](99)}
	n.put(cached)
	n.awaitStory("cached", "main second")
	w := n.worldOf("cached", "main")
	w.wantStatus(t, "Uid", "1234 1234 1234 1234")
	w.wantStatus(t, "Gid", "99 99 99 99")

	for name, tc := range map[string]struct{ user, want string }{
		"wraps":    {"4294967296", "the image's user 4294967296 is no user id"},
		"negative": {"-1", "the image's user -1 is no user id"},
		"huge":     {strings.Repeat("a", 100_000), "the name of the image's user has 100000 bytes"},
	} {
		n.put(pod(name, r.pushUser(n, "world/"+name, tc.user)))
		if said := n.awaitWaiting(name, "CreateContainerConfigError", "CreateContainerError"); !strings.Contains(said, tc.want) || len(said) > 1000 {
			t.Errorf("%s: %.300q, want %q", name, said, tc.want)
		}
	}
}

// pushUser is push for an image that runs as the user.
func (r *imageRegistry) pushUser(n *node, repository, user string) (name string) {
	r.t.Helper()
	blobs := helloBlobs(n)
	var index struct{ Manifests []descriptor }
	var m struct {
		SchemaVersion int          `json:"schemaVersion"`
		MediaType     string       `json:"mediaType"`
		Config        descriptor   `json:"config"`
		Layers        []descriptor `json:"layers"`
	}
	var config map[string]any
	decode(r.t, blobs["index.json"], &index)
	decode(r.t, blobs[blobFile(index.Manifests[0].Digest)], &m)
	decode(r.t, blobs[blobFile(m.Config.Digest)], &config)
	config["config"].(map[string]any)["User"] = user
	content := encode(r.t, config)
	m.MediaType, m.Config = manifestKind, describe(m.Config.MediaType, content)
	r.do(http.MethodPost, "/v2/"+repository+"/blobs/uploads/?digest="+m.Config.Digest, "application/octet-stream", content)
	for _, l := range m.Layers {
		r.do(http.MethodPost, "/v2/"+repository+"/blobs/uploads/?digest="+l.Digest, "application/octet-stream", blobs[blobFile(l.Digest)])
	}
	r.do(http.MethodPut, "/v2/"+repository+"/manifests/1", manifestKind, encode(r.t, m))
	return r.host + "/" + repository + ":1"
}
