//go:build e2e && podshim

package podshim

import (
	"path/filepath"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// pods are the configurations of pods, by their names.
var pods = map[string]func(*cri.PodSandboxConfig){
	"plain":      func(*cri.PodSandboxConfig) {},
	"shared pid": func(c *cri.PodSandboxConfig) { namespaces(c).Pid = cri.NamespaceMode_POD },
	"host pid":   func(c *cri.PodSandboxConfig) { namespaces(c).Pid = cri.NamespaceMode_NODE },
	"host ipc":   func(c *cri.PodSandboxConfig) { namespaces(c).Ipc = cri.NamespaceMode_NODE },
	"host network": func(c *cri.PodSandboxConfig) {
		namespaces(c).Network, c.Hostname = cri.NamespaceMode_NODE, ""
	},
	"host": func(c *cri.PodSandboxConfig) {
		n := namespaces(c)
		c.Hostname = ""
		n.Pid, n.Ipc, n.Network = cri.NamespaceMode_NODE, cri.NamespaceMode_NODE, cri.NamespaceMode_NODE
	},
	"dns": func(c *cri.PodSandboxConfig) {
		c.DnsConfig = &cri.DNSConfig{Servers: []string{"192.0.2.1", "2001:db8::1"}, Searches: []string{"a.test", "test"}, Options: []string{"ndots:5"}}
	},
	"privileged": func(c *cri.PodSandboxConfig) { c.Linux.SecurityContext.Privileged = true },
	"based":      func(*cri.PodSandboxConfig) {}, // over a specification of our own
	"sysctls":    func(c *cri.PodSandboxConfig) { c.Linux.Sysctls = map[string]string{"net.ipv4.ip_forward": "1"} },
	"users":      ownUsers,
	"shared users": func(c *cri.PodSandboxConfig) {
		ownUsers(c)
		namespaces(c).Pid = cri.NamespaceMode_POD
	},
}

// ownUsers has a pod in a user namespace.
func ownUsers(c *cri.PodSandboxConfig) {
	namespaces(c).UsernsOptions = &cri.UserNamespace{Mode: cri.NamespaceMode_POD, Uids: mappings(), Gids: mappings()}
}

func namespaces(c *cri.PodSandboxConfig) *cri.NamespaceOption {
	return c.Linux.SecurityContext.NamespaceOptions
}

// cdi are devices that a container may ask for by a name.
const cdi = `{"cdiVersion":"0.6.0","kind":"test.example/thing","devices":[
	{"name":"plain","containerEdits":{"env":["THING=plain"],"mounts":[{"hostPath":"HOST/plain","containerPath":"/volume","options":["ro","nosuid","nodev","bind"]}]}},
	{"name":"node","containerEdits":{"deviceNodes":[{"path":"/dev/thing","hostPath":"/dev/null","type":"c","major":1,"minor":3,"permissions":"rw"}]}},
	{"name":"hook","containerEdits":{"hooks":[{"hookName":"createContainer","path":"/bin/true"}]}}]}`

func security(c *cri.ContainerConfig) *cri.LinuxContainerSecurityContext {
	return c.Linux.SecurityContext
}

// volume has a container mount a path of the host folder; more changes the mount.
func volume(source, at string, more ...func(*cri.Mount)) func(*place, *cri.ContainerConfig) {
	return func(p *place, c *cri.ContainerConfig) {
		m := &cri.Mount{HostPath: filepath.Join(p.host, source), ContainerPath: at}
		for _, f := range more {
			f(m)
		}
		c.Mounts = append(c.Mounts, m)
	}
}

func readonly(m *cri.Mount) { m.Readonly = true }

func recursively(m *cri.Mount) { m.Readonly, m.RecursiveReadOnly = true, true }

func propagated(how cri.MountPropagation) func(*cri.Mount) {
	return func(m *cri.Mount) { m.Propagation = how }
}

// set is a change that needs nothing of the place.
func set(change func(*cri.ContainerConfig)) func(*place, *cri.ContainerConfig) {
	return func(_ *place, c *cri.ContainerConfig) { change(c) }
}

// limits is a change of the limits.
func limits(change func(*cri.LinuxContainerResources)) func(*place, *cri.ContainerConfig) {
	return func(_ *place, c *cri.ContainerConfig) { change(c.Linux.Resources) }
}

// all does one change after the other.
func all(changes ...func(*place, *cri.ContainerConfig)) func(*place, *cri.ContainerConfig) {
	return func(p *place, c *cri.ContainerConfig) {
		for _, f := range changes {
			f(p, c)
		}
	}
}

var (
	nothing = set(func(*cri.ContainerConfig) {})
	user    = set(func(c *cri.ContainerConfig) {
		s := security(c)
		s.RunAsUser, s.RunAsGroup, s.SupplementalGroups = &cri.Int64Value{Value: 1000}, &cri.Int64Value{Value: 2000}, []int64{3000, 4000}
	})
	terminal = set(func(c *cri.ContainerConfig) { c.Tty = true })
	unmasked = set(func(c *cri.ContainerConfig) { security(c).MaskedPaths, security(c).ReadonlyPaths = nil, nil })
	rootless = set(func(c *cri.ContainerConfig) { security(c).ReadonlyRootfs = true })
	target   = func(p *place, c *cri.ContainerConfig) {
		users := security(c).NamespaceOptions.GetUsernsOptions()
		security(c).NamespaceOptions = among(p.beside)
		security(c).NamespaceOptions.UsernsOptions = users
	}
	privileged = set(func(c *cri.ContainerConfig) { security(c).Privileged = true })
)

// among are namespaces of a container that is among the processes of another.
func among(id string) *cri.NamespaceOption {
	n := own()
	n.Pid, n.TargetId = cri.NamespaceMode_TARGET, id
	return n
}

func capabilities(add, drop []string) func(*place, *cri.ContainerConfig) {
	return set(func(c *cri.ContainerConfig) {
		security(c).Capabilities = &cri.Capability{AddCapabilities: add, DropCapabilities: drop}
	})
}

// withoutAppArmor lets a container do to processes outside of its profile what the kernel allows.
var withoutAppArmor = set(func(c *cri.ContainerConfig) {
	security(c).Apparmor = &cri.SecurityProfile{ProfileType: cri.SecurityProfile_Unconfined}
})

func masks(masked, readonly string) func(*place, *cri.ContainerConfig) {
	return set(func(c *cri.ContainerConfig) {
		s := security(c)
		if masked != "" {
			s.MaskedPaths = append(s.MaskedPaths, masked)
		}
		if readonly != "" {
			s.ReadonlyPaths = append(s.ReadonlyPaths, readonly)
		}
	})
}

func score(n int64) func(*place, *cri.ContainerConfig) {
	return limits(func(l *cri.LinuxContainerResources) { l.OomScoreAdj = n })
}

func device(host, at, permissions string) func(*place, *cri.ContainerConfig) {
	return set(func(c *cri.ContainerConfig) {
		c.Devices = append(c.Devices, &cri.Device{HostPath: host, ContainerPath: at, Permissions: permissions})
	})
}

// hostDev has a container mount the host's /dev.
var hostDev = set(func(c *cri.ContainerConfig) {
	c.Mounts = append(c.Mounts, &cri.Mount{HostPath: "/dev", ContainerPath: "/dev"})
})

func thing(name string) func(*place, *cri.ContainerConfig) {
	return set(func(c *cri.ContainerConfig) { c.CDIDevices = []*cri.CDIDevice{{Name: "test.example/thing=" + name}} })
}

func image(subpath string) func(*place, *cri.ContainerConfig) {
	return func(p *place, c *cri.ContainerConfig) {
		c.Mounts = append(c.Mounts, &cri.Mount{ContainerPath: "/image", Image: &cri.ImageSpec{Image: p.image}, ImageSubPath: subpath, Readonly: true})
	}
}

func seccomp(kind cri.SecurityProfile_ProfileType, file string) func(*place, *cri.ContainerConfig) {
	return func(p *place, c *cri.ContainerConfig) {
		security(c).Seccomp = &cri.SecurityProfile{ProfileType: kind}
		if file != "" {
			security(c).Seccomp.LocalhostRef = filepath.Join(p.host, file)
		}
	}
}

// onVersion1 is a field that is refused where cgroups are of version 1.
func onVersion1(field string) string {
	if unified() {
		return ""
	}
	return field
}

// rows are the configurations that are compared.
var rows = []row{
	{name: "plain", change: nothing},
	{name: "environment", change: set(func(c *cri.ContainerConfig) {
		c.Envs = []*cri.KeyValue{{Key: "NAME", Value: []byte("a value = \"'\n")}, {Key: "EMPTY"}, {Key: "HOME", Value: []byte("/tmp")}, {Key: "PATH", Value: []byte("/x")}}
	})},
	{name: "folder", change: set(func(c *cri.ContainerConfig) { c.WorkingDir = "/tmp" })},
	{name: "folder that is made", change: set(func(c *cri.ContainerConfig) { c.WorkingDir = "/made/here" })},

	{name: "user", change: user},
	{name: "user by name", change: set(func(c *cri.ContainerConfig) { security(c).RunAsUsername = "user" })},
	{name: "user alone", change: set(func(c *cri.ContainerConfig) { security(c).RunAsUser = &cri.Int64Value{Value: 4711} })},
	{name: "groups of root", change: set(func(c *cri.ContainerConfig) { security(c).SupplementalGroups = []int64{0, 5, 70000} })},
	{name: "strict groups", change: all(user, set(func(c *cri.ContainerConfig) {
		security(c).SupplementalGroupsPolicy = cri.SupplementalGroupsPolicy_Strict
	}))},
	{name: "no new privileges", change: set(func(c *cri.ContainerConfig) { security(c).NoNewPrivs = true })},
	{name: "user without new privileges", change: all(user, rootless, set(func(c *cri.ContainerConfig) { security(c).NoNewPrivs = true }))},
	{name: "no capabilities", change: capabilities(nil, []string{"ALL"})},
	{name: "all capabilities", change: capabilities([]string{"ALL"}, nil)},
	{name: "all but one", change: capabilities([]string{"ALL"}, []string{"NET_RAW"})},
	{name: "one alone", change: capabilities([]string{"NET_BIND_SERVICE"}, []string{"ALL"})},
	{name: "to mount", change: capabilities([]string{"SYS_ADMIN"}, nil)},
	{name: "to trace", change: capabilities([]string{"SYS_PTRACE", "SYS_NICE"}, nil)},
	{name: "capabilities of a user", change: all(user, capabilities([]string{"NET_ADMIN"}, nil))},
	{name: "ambient capability", change: all(user, set(func(c *cri.ContainerConfig) {
		security(c).Capabilities = &cri.Capability{AddAmbientCapabilities: []string{"NET_BIND_SERVICE"}}
	}))},
	{name: "read-only root", change: rootless},
	{name: "read-only root and a made folder", change: all(rootless, set(func(c *cri.ContainerConfig) { c.WorkingDir = "/made" }))},

	{name: "likely to be killed", change: score(1000)},
	{name: "less likely to be killed", change: score(-500)},
	{name: "shares", change: limits(func(l *cri.LinuxContainerResources) { l.CpuShares = 2048 })},
	{name: "memory", change: limits(func(l *cri.LinuxContainerResources) { l.MemoryLimitInBytes = 256 << 20 })},
	{name: "quota", change: limits(func(l *cri.LinuxContainerResources) { l.CpuQuota, l.CpuPeriod = 50000, 100000 })},
	{name: "processors", change: limits(func(l *cri.LinuxContainerResources) { l.CpusetCpus, l.CpusetMems = "0", "0" })},
	{name: "swap", change: limits(func(l *cri.LinuxContainerResources) {
		l.MemoryLimitInBytes, l.MemorySwapLimitInBytes = 256<<20, 512<<20
	})},
	{name: "unified", refused: onVersion1("linux.resources.unified"), change: limits(func(l *cri.LinuxContainerResources) { l.Unified = map[string]string{"pids.max": "70"} })},
	{name: "huge pages", change: limits(func(l *cri.LinuxContainerResources) {
		l.HugepageLimits = []*cri.HugepageLimit{{PageSize: "2MB", Limit: 2 << 20}}
	})},

	{name: "unmasked", change: unmasked},
	{name: "masked file", change: masks("/plain", "")},
	{name: "masked folder", change: masks("/etc", "")},
	{name: "masked link", change: masks("/dev/fd", "")},
	{name: "masked path below a mask", change: masks("/sys/firmware/acpi", "")},
	{name: "read-only file", change: masks("", "/etc/passwd")},
	{name: "read-only folder", change: masks("", "/tmp")},
	{name: "read-only and masked", change: masks("/etc/passwd", "/etc")},

	{name: "volume", change: volume("plain", "/volume")},
	{name: "read-only volume", change: volume("plain", "/readonly", readonly)},
	{name: "recursively read-only volume", change: volume("plain", "/readonly", recursively)},
	{name: "the same twice", change: all(volume("plain", "/volume"), volume("plain", "/readonly", recursively))},
	{name: "file", change: volume("plain/file", "/volume/file")},
	{name: "read-only file as volume", change: volume("passwd", "/etc/passwd", readonly)},
	{name: "file in /dev", change: volume("passwd", "/dev/termination-log")},
	{name: "volume in a volume", change: all(volume("plain", "/volume"), volume("memory", "/volume/below"))},
	{name: "in the wrong order", change: all(volume("memory", "/volume/below"), volume("plain", "/volume"))},
	{name: "volume at a made path", change: volume("memory", "/a/b/../c/d")},
	{name: "volume on a folder of the image", change: volume("memory", "/tmp")},
	{name: "volume on /etc", change: volume("plain", "/etc")},
	{name: "volume on /dev/shm", change: volume("memory", "/dev/shm")},
	{name: "volume on /sys/fs/cgroup", change: volume("memory", "/sys/fs/cgroup")},
	{name: "own hosts", change: volume("passwd", "/etc/hosts")},
	{name: "strict volume", change: volume("strict", "/strict")},
	{name: "strict and read-only volume", change: volume("strict", "/strict", readonly)},
	{name: "volume in memory", change: volume("memory", "/memory")},
	{name: "huge volume", change: volume("huge", "/memory")},
	{name: "host to container", change: volume("shared", "/volume", propagated(cri.MountPropagation_PROPAGATION_HOST_TO_CONTAINER))},
	{name: "bidirectional", change: volume("shared", "/volume", propagated(cri.MountPropagation_PROPAGATION_BIDIRECTIONAL))},
	{name: "bidirectional and read-only", change: volume("shared", "/volume", readonly, propagated(cri.MountPropagation_PROPAGATION_BIDIRECTIONAL))},
	{name: "private of what is shared", change: volume("shared", "/volume")},
	{name: "volumes and a read-only root", change: all(rootless, user, volume("memory", "/memory"), volume("plain", "/readonly", readonly))},
	{name: "image", change: image("")},
	{name: "folder of an image", change: image("etc")},

	{name: "terminal", change: terminal},
	{name: "terminal of a user", change: all(terminal, user)},
	{name: "terminal and a read-only root", change: all(terminal, rootless)},
	{name: "input", change: set(func(c *cri.ContainerConfig) { c.Stdin = true })},
	{name: "input once, and a terminal", change: all(terminal, set(func(c *cri.ContainerConfig) { c.Stdin, c.StdinOnce = true, true }))},

	{name: "among the pod's processes", pod: "shared pid", change: nothing},
	{name: "a user among the pod's processes", pod: "shared pid", change: all(user, rootless)},
	{name: "who traces the pod's processes", pod: "shared pid", change: capabilities([]string{"SYS_PTRACE"}, nil)},
	{name: "a terminal among the pod's processes", pod: "shared pid", change: terminal},
	{name: "among another's processes", change: target},
	{name: "a user among another's processes", change: all(target, user, capabilities([]string{"SYS_PTRACE"}, nil))},
	{name: "another's processes in a pod that shares them", pod: "shared pid", change: target},
	{name: "host's processes", pod: "host pid", change: nothing},
	{name: "a user among the host's processes", pod: "host pid", change: user},
	{name: "host's IPC", pod: "host ipc", change: nothing},
	{name: "host's network", pod: "host network", change: nothing},
	{name: "host's network, to change it", pod: "host network", change: capabilities([]string{"NET_ADMIN", "NET_RAW"}, nil)},
	{name: "all of the host's", pod: "host", change: nothing},
	{name: "all of the host's, and unmasked", pod: "host", change: all(unmasked, capabilities([]string{"SYS_ADMIN"}, nil))},
	{name: "names", pod: "dns", change: nothing},
	{name: "of a privileged pod", pod: "privileged", change: nothing},

	{name: "privileged", pod: "privileged", change: privileged},
	{name: "privileged user", pod: "privileged", change: all(privileged, user)},
	{name: "privileged, with a read-only root", pod: "privileged", change: all(privileged, rootless)},
	{name: "device", change: device("/dev/full", "/dev/whole", "rwm")},
	{name: "device that is read", change: device("/dev/zero", "/dev/thing", "r")},
	{name: "device of a user", change: all(device("/dev/null", "/dev/deep/thing", "rw"), user)},
	{name: "thing by its name", change: thing("plain")},
	{name: "thing with a device", change: thing("node")},
	{name: "thing with a hook", refused: "hooks", change: thing("hook")},

	{name: "cgroup namespace", pod: "based", change: nothing},
	{name: "exec in a cgroup namespace", pod: "based", exec: true, change: nothing},
	{name: "exec", exec: true, change: nothing},
	{name: "exec of a user", exec: true, change: all(user, rootless, set(func(c *cri.ContainerConfig) { security(c).NoNewPrivs, c.WorkingDir = true, "/tmp" }))},
	{name: "exec with a capability", exec: true, change: all(user, capabilities([]string{"NET_ADMIN"}, []string{"ALL"}))},
	{name: "exec beside a terminal", exec: true, change: terminal},
	{name: "exec of who is less likely to be killed", exec: true, change: score(-500)},
	{name: "exec with volumes", exec: true, change: all(volume("plain", "/volume"), volume("plain", "/readonly", recursively))},
	{name: "exec among the pod's processes", pod: "shared pid", exec: true, change: nothing},
	{name: "exec among another's processes", exec: true, change: target},
	{name: "exec among the host's processes", pod: "host pid", exec: true, change: nothing},
	{name: "exec with all of the host's", pod: "host", exec: true, change: nothing},

	{name: "default filter of system calls", change: seccomp(cri.SecurityProfile_RuntimeDefault, "")},
	{name: "filter of system calls", change: all(user, seccomp(cri.SecurityProfile_Localhost, "profile.json"))},
	{name: "kernel's parameters", pod: "sysctls", change: nothing},
	{name: "exec with the default filter", exec: true, change: seccomp(cri.SecurityProfile_RuntimeDefault, "")},
	{name: "a user of its own users", pod: "users", change: all(user, volume("plain", "/volume"))},
	{name: "users of its own", pod: "users", change: nothing},
	{name: "exec with users of its own", pod: "users", exec: true, change: nothing},
	{name: "users of its own among the pod's processes", pod: "shared users", change: nothing},
	{name: "terminal with users of its own", pod: "users", change: terminal},
	{name: "terminal of a user of its own users", pod: "users", change: all(terminal, user)},
	{name: "users of its own among another's processes", pod: "users", change: target},
	{name: "who mounts among another's processes, with users of its own", pod: "users", change: all(target, capabilities([]string{"ALL"}, nil), withoutAppArmor)},
	{name: "a user among another's processes, with users of its own", pod: "users", change: all(target, user, rootless, seccomp(cri.SecurityProfile_RuntimeDefault, ""))},
	{name: "terminal among another's processes, with users of its own", pod: "users", change: all(target, terminal)},
	{name: "unmasked among another's processes, with users of its own", pod: "users", change: all(target, unmasked)},
	{name: "exec among another's processes, with users of its own", pod: "users", exec: true, change: target},
	{name: "another's processes in a pod that shares them, with users of its own", pod: "shared users", change: target},

	{name: "volume on /dev", change: all(unmasked, volume("memory", "/dev"))},
	{name: "the host's /dev, and a volume in its /dev/shm", change: all(hostDev, volume("plain", "/dev/shm/volume"))},
	{name: "the host's /dev, and a volume on its /dev/shm", change: all(hostDev, volume("memory", "/dev/shm"))},
	{name: "the host's /dev", change: hostDev},
	{name: "the host's /dev with users of its own", pod: "users", change: hostDev},
	{name: "the host's /dev and IPC", pod: "host ipc", change: hostDev},
}
