//go:build e2e && keeper

package keeper

import (
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// seen is what the payload tells of its container.
type seen struct {
	Hostname          string
	PID, UID, GID     int
	Groups            []int
	Cwd, Score        string
	Env               []string
	Status            map[string]string
	Files             map[string]string
	Writes, Devices   map[string]string
	Mounts            []string
	Root, Dev, Cgroup []string
	Fds               []string
}

// look runs a container that looks around, and returns what it saw.
func (r *rig) look(pod, id string, c *cri.ContainerConfig) seen {
	r.Helper()
	container, err := r.container(id, c, func() {})
	r.must(err)
	if s := r.exits(container); s.ExitCode != 0 {
		b, _ := os.ReadFile(r.logFile(pod, c.Metadata.Name))
		r.Fatalf("ended with %d: %s", s.ExitCode, b)
	}
	var text strings.Builder
	b, err := os.ReadFile(r.logFile(pod, c.Metadata.Name))
	r.must(err)
	for line := range strings.Lines(string(b)) { // parts of one long line
		f := strings.SplitN(strings.TrimSuffix(line, "\n"), " ", 4)
		text.WriteString(f[3])
	}
	var s seen
	if err := json.Unmarshal([]byte(text.String()), &s); err != nil {
		r.Fatalf("%v: %s", err, text.String())
	}
	return s
}

func TestWhatAContainerSees(t *testing.T) {
	r := newRig(t)
	pod, err := r.pod("looks")
	r.must(err)
	r.must(os.MkdirAll(r.path("volume"), 0o755))
	r.must(os.WriteFile(r.path("volume", "file"), []byte("content"), 0o644))

	c := containerConfig(r, "looks", "root", "look")
	c.Envs = []*cri.KeyValue{{Key: "NAME", Value: []byte("value")}}
	c.WorkingDir = "/made/here"
	c.Mounts = []*cri.Mount{{HostPath: r.path("volume"), ContainerPath: "/volume"}, {HostPath: r.path("volume"), ContainerPath: "/readonly", Readonly: true}}
	c.Linux.Resources.OomScoreAdj = 321
	c.Linux.Resources.MemoryLimitInBytes = 64 << 20
	s := r.look("looks", pod, c)
	if s.Hostname != "looks" || s.PID != 1 || s.UID != 0 || s.Cwd != "/made/here" || strings.TrimSpace(s.Score) != "321" {
		t.Errorf("host name, process, user, folder or OOM score: %+v", s)
	}
	for _, at := range s.Fds { // the Go runtime of the payload looks how much CPU it has
		if !strings.HasPrefix(at, "/sys/fs/cgroup/") {
			t.Errorf("the container has %s open", at)
		}
	}
	if !slices.Contains(s.Env, "NAME=value") {
		t.Errorf("environment %q", s.Env)
	}
	// containerd's default: 14 capabilities, none that survives a change of the user.
	if s.Status["CapBnd"] != "00000000a80425fb" || s.Status["CapEff"] != s.Status["CapBnd"] || s.Status["CapInh"] != "0000000000000000" || s.Status["NoNewPrivs"] != "0" {
		t.Errorf("capabilities: %v", s.Status)
	}
	for path, want := range map[string]string{
		"/etc/hostname": "looks\n", "/proc/keys": "", "/proc/timer_list": "", "/volume/file": "content",
	} {
		if s.Files[path] != want {
			t.Errorf("%s: %q, want %q", path, s.Files[path], want)
		}
	}
	const readonly = "read-only file system"
	for path, want := range map[string]string{
		"/": "", "/dev/shm": "", "/volume": "", "/tmp": "", "/readonly": readonly, "/sys/fs/cgroup/memory": readonly,
	} {
		if got := s.Writes[path]; want == "" && got != "" || !strings.Contains(got, want) {
			t.Errorf("a file in %s: %q, want %q", path, got, want)
		}
	}
	if s.Writes["/proc/sys/kernel"] == "" {
		t.Error("a file in /proc/sys/kernel could be made")
	}
	for device, err := range s.Devices {
		if disk := strings.Contains(device, "open of a disk"); disk != (err != "") {
			t.Errorf("%s: %q", device, err)
		}
	}
	if want := []string{"fd", "full", "mqueue", "null", "ptmx", "pts", "random", "shm", "stderr", "stdin", "stdout", "tty", "urandom", "zero"}; !slices.Equal(s.Dev, want) {
		t.Errorf("/dev has %q, want %q", s.Dev, want)
	}
	if !slices.Contains(s.Cgroup, "memory") || !slices.Contains(s.Cgroup, "cpu") {
		t.Errorf("cgroups: %q", s.Cgroup)
	}
	if _, err := os.Stat(r.path("volume", "written")); err != nil {
		t.Errorf("what the container wrote into its volume: %v", err)
	}

	c = containerConfig(r, "looks", "user", "look")
	sc := c.Linux.SecurityContext
	sc.RunAsUser, sc.RunAsGroup, sc.SupplementalGroups = &cri.Int64Value{Value: 1000}, &cri.Int64Value{Value: 2000}, []int64{3000}
	sc.NoNewPrivs, sc.ReadonlyRootfs = true, true
	sc.Capabilities = &cri.Capability{DropCapabilities: []string{"ALL"}, AddCapabilities: []string{"NET_BIND_SERVICE"}}
	s = r.look("looks", pod, c)
	if s.UID != 1000 || s.GID != 2000 || !slices.Contains(s.Groups, 3000) || s.Status["NoNewPrivs"] != "1" {
		t.Errorf("ids or no-new-privileges: %+v", s)
	}
	if s.Status["CapBnd"] != "0000000000000400" || s.Status["CapEff"] != "0000000000000000" {
		t.Errorf("capabilities: %v", s.Status)
	}
	if !strings.Contains(s.Writes["/"], readonly) {
		t.Errorf("the root can be written: %q", s.Writes["/"])
	}
	r.must(r.remove(pod))
	r.wantNothingLeft()
}

// A link of an image leads nowhere but into the container, however it is written.
func TestALinkInAnImageStaysInside(t *testing.T) {
	r := newRig(t)
	pod, err := r.pod("links")
	r.must(err)
	r.must(os.MkdirAll(r.path("volume"), 0o755))
	c := containerConfig(r, "links", "c", "look")
	c.Mounts = []*cri.Mount{{HostPath: r.path("volume"), ContainerPath: "/outside/made"}}
	// The image has no such folder: the link leads to nothing, inside.
	if _, err := r.container(pod, c, func() {}); err == nil || !strings.Contains(err.Error(), "/outside/made") {
		t.Errorf("error %v, want one that names the folder", err)
	}
	if _, err := os.Stat(r.path("made")); err == nil {
		t.Error("a folder was made on the host")
	}
	r.must(r.remove(pod))
	r.wantNothingLeft()
}

func TestRefused(t *testing.T) {
	r := newRig(t)
	for field, change := range map[string]func(*cri.PodSandboxConfig){
		"network": func(c *cri.PodSandboxConfig) {
			c.Linux.SecurityContext.NamespaceOptions.Network = cri.NamespaceMode_NODE
		},
		"namespace_options.pid":           func(c *cri.PodSandboxConfig) { c.Linux.SecurityContext.NamespaceOptions.Pid = cri.NamespaceMode_POD },
		"namespace_options.ipc":           func(c *cri.PodSandboxConfig) { c.Linux.SecurityContext.NamespaceOptions.Ipc = cri.NamespaceMode_NODE },
		"linux.sysctls[kernel.panic]":     func(c *cri.PodSandboxConfig) { c.Linux.Sysctls = map[string]string{"kernel.panic": "1"} },
		"linux.sysctls[net.ipv4.no_such]": func(c *cri.PodSandboxConfig) { c.Linux.Sysctls = map[string]string{"net.ipv4.no_such": "1"} },
	} {
		c := podConfig(r, "refused")
		change(c)
		if _, err := r.podOf(c); err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("%s: error %v, want one that names the field", field, err)
		}
	}
	pod, err := r.pod("asks")
	r.must(err)
	profile := func(c *cri.ContainerConfig) *cri.LinuxContainerSecurityContext { return c.Linux.SecurityContext }
	r.must(os.WriteFile(r.path("listener.json"), []byte(`{"defaultAction":"SCMP_ACT_ALLOW","listenerPath":"/run/listener"}`), 0o600))
	for field, change := range map[string]func(*cri.ContainerConfig){
		"linux.seccomp.listenerPath": func(c *cri.ContainerConfig) {
			profile(c).Seccomp = &cri.SecurityProfile{ProfileType: cri.SecurityProfile_Localhost, LocalhostRef: r.path("listener.json")}
		},
		"linux.namespaces":          func(c *cri.ContainerConfig) { profile(c).NamespaceOptions.Pid = cri.NamespaceMode_NODE },
		"linux.resources.unified":   func(c *cri.ContainerConfig) { c.Linux.Resources.Unified = map[string]string{"pids.max": "7"} },
		"linux.resources.cpu.quota": func(c *cri.ContainerConfig) { c.Linux.Resources.CpuQuota, c.Linux.Resources.CpuPeriod = 50000, 100000 },
		"linux.devices": func(c *cri.ContainerConfig) {
			c.Devices = []*cri.Device{{HostPath: "/dev/fuse", ContainerPath: "/dev/fuse", Permissions: "rwm"}}
		},
		"annotations[" + logAnnotation + "]": func(c *cri.ContainerConfig) { c.Annotations[logAnnotation] = "relative" },
	} {
		c := containerConfig(r, "asks", "c"+strings.Trim(field, "[]"), "sleep")
		c.Metadata.Name = strings.Map(func(x rune) rune {
			if x < 'a' || x > 'z' {
				return -1
			}
			return x
		}, field)
		change(c)
		ctx, cancel := r.within()
		a, err := r.rt.CreateContainer(ctx, &cri.CreateContainerRequest{PodSandboxId: pod, Config: c, SandboxConfig: podConfig(r, "asks")})
		if err == nil {
			_, err = r.rt.StartContainer(ctx, &cri.StartContainerRequest{ContainerId: a.ContainerId})
		}
		cancel()
		if err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("%s: error %v, want one that names the field", field, err)
		}
	}
	r.must(r.remove(pod))
	r.wantNothingLeft()
}
