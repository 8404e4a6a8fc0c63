package plan

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/containerd/api/types"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"berth/bundle/podshim/wire"
)

var update = flag.Bool("update", false, "write the golden plans")

// sample returns a container as containerd's CRI requests it.
func sample() Container {
	limit, shares, score := int64(64<<20), uint64(100), 321
	return Container{
		Spec: &specs.Spec{
			Version: "1.3.0",
			Process: &specs.Process{
				Args: []string{"/bin/sh", "-c", "", "exit 3"}, Env: []string{"PATH=/bin", "EMPTY=", ""}, Cwd: "/home/me", NoNewPrivileges: true, OOMScoreAdj: &score,
				User: specs.User{UID: 1000, GID: 2000, AdditionalGids: []uint32{3000, 4000}},
				Capabilities: &specs.LinuxCapabilities{
					Bounding: []string{"CAP_CHOWN", "CAP_CHECKPOINT_RESTORE"}, Effective: []string{"CAP_CHOWN"}, Permitted: []string{"CAP_CHOWN"},
					Inheritable: []string{"CAP_KILL"}, Ambient: []string{"CAP_KILL"},
				},
			},
			Root: &specs.Root{Path: "rootfs", Readonly: true},
			Mounts: []specs.Mount{
				{Destination: "/proc", Type: "proc", Source: "proc", Options: []string{"nosuid", "noexec", "nodev"}},
				{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "strictatime", "mode=755", "size=65536k"}},
				{Destination: "/dev/pts", Type: "devpts", Source: "devpts", Options: []string{"nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"}},
				{Destination: "/sys/fs/cgroup", Type: "cgroup", Source: "cgroup", Options: []string{"nosuid", "ro"}},
				{Destination: "/dev/shm", Type: "bind", Source: "shm", Options: []string{"rbind"}},
				{Destination: "/data//deep/", Type: "bind", Source: "/srv/data", Options: []string{"rbind", "rslave", "ro"}},
				{Destination: "/etc/hosts", Type: "bind", Source: "/srv/hosts", Options: []string{"rbind", "rprivate", "rw"}},
			},
			Linux: &specs.Linux{
				CgroupsPath: "/pods/one", MaskedPaths: []string{"/proc/keys"}, ReadonlyPaths: []string{"/proc/sys"}, RootfsPropagation: "rslave",
				Namespaces: []specs.LinuxNamespace{
					{Type: specs.PIDNamespace},
					{Type: specs.MountNamespace},
					{Type: specs.NetworkNamespace, Path: "/proc/42/ns/net"},
					{Type: specs.IPCNamespace, Path: "/proc/42/ns/ipc"},
					{Type: specs.UTSNamespace, Path: "/proc/42/ns/uts"},
				},
				Resources: &specs.LinuxResources{
					CPU: &specs.LinuxCPU{Shares: &shares}, Memory: &specs.LinuxMemory{Limit: &limit, Swap: &limit},
					Devices: []specs.LinuxDeviceCgroup{{Access: "rwm"}},
				},
			},
		},
		Rootfs:  []*types.Mount{{Type: "overlay", Source: "overlay", Options: []string{"workdir=/w", "upperdir=/u", "lowerdir=/l1:/l2"}}},
		Root:    "/state/rootfs",
		Cgroups: []Cgroup{{"memory", "/sys/fs/cgroup/memory/pods/one"}, {"cpu", "/sys/fs/cgroup/cpu/pods/one"}},
		Log:     "/var/log/pods/one/c.log", PodFiles: "/state/pod", Hostname: "one", Podshim: 42,
		Trees: map[int]Tree{5: {At: "/proc/9/fd/5"}, 6: {At: "/proc/9/fd/6", File: true}},
	}
}

// bare returns a container with only the required fields.
func bare() Container {
	c := sample()
	c.Spec.Process.User, c.Spec.Process.Capabilities, c.Spec.Process.NoNewPrivileges, c.Spec.Process.OOMScoreAdj = specs.User{}, nil, false, nil
	c.Spec.Root.Readonly, c.Spec.Mounts, c.Spec.Linux.Resources = false, nil, nil
	c.Spec.Linux.MaskedPaths, c.Spec.Linux.ReadonlyPaths, c.Spec.Process.Env = nil, nil, nil
	return c
}

// onUnified returns a container on cgroup v2, with its own devices.
func onUnified() Container {
	c := bare()
	c.Unified, c.Cgroups = true, []Cgroup{{"", "/sys/fs/cgroup/pods.slice/cri-one.scope"}}
	c.Spec.Linux.CgroupsPath = "pods.slice:cri:one"
	c.Spec.Linux.Namespaces = append(c.Spec.Linux.Namespaces, specs.LinuxNamespace{Type: specs.CgroupNamespace})
	c.Spec.Mounts = []specs.Mount{{Destination: "/sys/fs/cgroup", Type: "cgroup", Source: "cgroup", Options: []string{"nosuid", "noexec", "nodev", "relatime", "ro"}}}
	mode, group := os.FileMode(0o660), uint32(6)
	c.Spec.Linux.Devices = []specs.LinuxDevice{
		{Path: "/dev/disk/../sda", Type: "b", Major: 8, FileMode: &mode, GID: &group}, {Path: "/dev/full", Type: "c", Major: 1, Minor: 7, FileMode: &mode}, {Path: "/run/fifo", Type: "p"},
	}
	return c
}

// The last value of a variable applies, in a container and in an exec. An empty HOME is removed.
func TestEnvironment(t *testing.T) {
	env := []string{"PATH=/image", "A=1", "B=", "A=2=3", "PATH=/pod", "AB=4", "HOME=/image", "HOME="}
	want := []string{"B=", "A=2=3", "PATH=/pod", "AB=4"}
	c := sample()
	c.Spec.Process.Env = env
	container, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	exec, err := NewExec(&specs.Process{Args: []string{"/bin/sh"}, Cwd: "/", Env: env}, nil, Confinement{})
	if err != nil {
		t.Fatal(err)
	}
	for name, p := range map[string]*Plan{"container": container, "exec": exec} {
		if !slices.Equal(p.envp, want) {
			t.Errorf("the environment of the %s is %q, want %q", name, p.envp, want)
		}
	}
}

// A bind mount at /dev has its own devices.
func TestDevOfTheHost(t *testing.T) {
	c := onUnified()
	c.Spec.Mounts = append(c.Spec.Mounts, specs.Mount{Destination: "/dev/", Type: "bind", Source: "/dev", Options: []string{"rbind"}})
	p, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range p.steps {
		if s.op == opMkdir {
			s.strings[1] += s.strings[2]
		}
		if strings.HasPrefix(s.strings[1], "/dev/") && s.strings[1] != devShm {
			t.Errorf("%s: the devices are not the container's to make", s)
		}
	}
}

// With a volume at /dev, containerd omits the pod's /dev/shm. It is mounted over the volume, before
// volumes below it, unless there is a volume at /dev/shm.
func TestSharedMemoryOverDev(t *testing.T) {
	dev := specs.Mount{Destination: "/dev/", Type: "bind", Source: "/srv/dev", Options: []string{"rbind"}}
	for name, c := range map[string]struct {
		more []specs.Mount
		want string
	}{
		"alone":        {nil, "/dev/shm of /state/pod/shm"},
		"volume below": {[]specs.Mount{{Destination: "/dev/shm/a", Source: "/srv/a", Options: []string{"bind"}}}, "/dev/shm of /state/pod/shm, /dev/shm/a of /proc/9/fd/8"},
		"volume at it": {[]specs.Mount{{Destination: "/dev//shm", Source: "/srv/a", Options: []string{"bind"}}}, "/dev/shm of /proc/9/fd/8"},
		"the host's":   {[]specs.Mount{{Destination: "/dev/shm", Source: "/dev/shm", Options: []string{"rbind"}}}, "/dev/shm of /proc/9/fd/8"},
	} {
		container := bare()
		container.Spec.Mounts = append([]specs.Mount{dev}, c.more...)
		container.Trees = map[int]Tree{0: {At: "/proc/9/fd/7"}, 1: {At: "/proc/9/fd/8"}}
		p, err := New(container)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, s := range p.steps {
			if path := s.strings[1]; (s.op == opMountInside || s.op == opAttachMount) && s.strings[0] != "" && strings.HasPrefix(path, "/dev/shm") {
				got = append(got, path+" of "+s.strings[0])
			}
		}
		if got := strings.Join(got, ", "); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}

// shared returns a container that shares the PID namespace of its pod, and with shared mounts of
// the host.
func shared() Container {
	c := bare()
	c.SharesProcesses, c.Proc, c.Spec.Linux.RootfsPropagation = true, "/", "rshared"
	c.Spec.Linux.Namespaces[0].Path = "/proc/42/ns/pid"
	c.Spec.Linux.Namespaces = append(c.Spec.Linux.Namespaces, specs.LinuxNamespace{Type: specs.CgroupNamespace})
	c.Spec.Mounts = []specs.Mount{
		{Destination: "/both", Type: "bind", Source: "/srv/both", Options: []string{"rbind", "rshared"}},
		{Destination: "/deep", Type: "bind", Source: "/srv/deep", Options: []string{"rbind", "rprivate", "rro"}},
		{Destination: "/sys/fs/cgroup", Type: "cgroup", Source: "cgroup", Options: []string{"nosuid"}},
		{Destination: "/plain", Type: "bind", Source: "/srv/plain", Options: []string{"bind", "rw"}},
		{Destination: "/proc", Type: "proc", Source: "proc", Options: []string{"nosuid", "noexec", "nodev"}},
	}
	c.Trees = map[int]Tree{0: {At: "/proc/9/fd/3"}, 1: {At: "/proc/9/fd/4"}, 3: {At: "/proc/9/fd/5"}}
	return c
}

func TestTreeOptions(t *testing.T) {
	for name, c := range map[string]struct {
		source     string
		options    []string
		all, ok    bool
		attributes uint64
	}{
		"no bind":       {"proc", []string{"nosuid"}, false, false, 0},
		"bind":          {"/a", []string{"bind", "ro"}, false, true, 0},
		"rbind":         {"/a", []string{"rprivate", "rbind"}, true, true, 0},
		"of the pod":    {"shm", []string{"rbind"}, true, false, 0},
		"read-only":     {"/a", []string{"rbind", "rro"}, true, true, unix.MOUNT_ATTR_RDONLY},
		"all of them":   {"/a", []string{"rnoexec", "rnodev", "rbind", "rnosuid", "rro"}, true, true, 15},
		"not recursive": {"/a", []string{"bind", "nosuid"}, false, true, 0},
	} {
		all, ok, attributes := TreeOptions(specs.Mount{Source: c.source, Options: c.options})
		if all != c.all || ok != c.ok || attributes != c.attributes {
			t.Errorf("%s: %t, %t, %#x, want %+v", name, all, ok, attributes, c)
		}
	}
}

// text decodes a plan as the pod shim does, and formats it.
func text(t *testing.T, b []byte) string {
	t.Helper()
	var h rawHeader
	n, err := binary.Decode(b, binary.NativeEndian, &h)
	if err != nil || h.Magic != Magic || h.Version != wire.Version || int(h.Size) != len(b) || b[len(b)-1] != 0 {
		t.Fatalf("header %+v of %d bytes: %v", h, len(b), err)
	}
	str := func(at uint32) string {
		if at == 0 {
			return ""
		}
		s, _, _ := bytes.Cut(b[at:], []byte{0})
		return string(s)
	}
	steps, words := make([]rawStep, h.Steps), make([]uint32, h.Argc+h.Envc+h.Groups)
	m, err := binary.Decode(b[n:], binary.NativeEndian, steps)
	if err == nil {
		_, err = binary.Decode(b[n+m:], binary.NativeEndian, words)
	}
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	fmt.Fprintf(&out, "root %q\nlog %q\n", str(h.Root), str(h.Log))
	for i, w := range words {
		switch {
		case i < int(h.Argc):
			fmt.Fprintf(&out, "argument %q\n", str(w))
		case i < int(h.Argc+h.Envc):
			fmt.Fprintf(&out, "environment %q\n", str(w))
		default:
			fmt.Fprintf(&out, "group %d\n", w)
		}
	}
	for i, raw := range steps {
		if i == int(h.Before) {
			out.WriteString("wait for the start\n")
		}
		s := step{op: op(raw.Op), numbers: raw.N}
		for k, at := range raw.S {
			s.strings[k] = str(at)
		}
		fmt.Fprintln(&out, s)
	}
	return out.String()
}

func TestGoldenPlans(t *testing.T) {
	for name, c := range map[string]Container{
		"sample": sample(), "bare": bare(), "unified": onUnified(), "shared": shared(), "user": inUserNamespace(), "target": targetInUserNamespace(), "labels": labelled(),
	} {
		p, err := New(c)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		b, err := p.Bytes(wire.Version)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		file, got := filepath.Join("testdata", name+".txt"), text(t, b)
		if *update {
			if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if got != string(want) {
			t.Errorf("%s (go test ./plan -run TestGoldenPlans -update writes it anew):\n%s\nwant\n%s", name, got, want)
		}
	}
}

// Each field of a specification is supported, or rejected with its name when it is set. So are
// fields of later releases.
func TestEachFieldIsSupportedOrRejected(t *testing.T) {
	checked := 0
	var visit func(path string, index []int, at reflect.Type)
	visit = func(path string, index []int, at reflect.Type) {
		for i := range at.NumField() {
			f := at.Field(i)
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			name = path + name
			here := append(append([]int{}, index...), i)
			inner := f.Type
			if inner.Kind() == reflect.Pointer {
				inner = inner.Elem()
			}
			switch {
			case supported[name]:
			case partlySupported(name):
				visit(name+".", here, inner)
			default:
				checked++
				c := sample()
				set(t, reflect.ValueOf(c.Spec), here)
				_, err := New(c)
				var r *FieldError
				if !errors.As(err, &r) || r.Field != name {
					t.Errorf("%s is set: error %v, want one that refuses it", name, err)
				}
			}
		}
	}
	visit("", nil, reflect.TypeFor[specs.Spec]())
	if checked < 22 {
		t.Errorf("%d fields were set: the walk over the specification has lost some", checked)
	}
}

// set sets a field, at an index path, to a value other than zero.
func set(t *testing.T, v reflect.Value, way []int) {
	t.Helper()
	for _, i := range way {
		if v.Kind() == reflect.Pointer {
			if v.IsNil() {
				v.Set(reflect.New(v.Type().Elem()))
			}
			v = v.Elem()
		}
		v = v.Field(i)
	}
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(reflect.Zero(v.Type().Key()), reflect.Zero(v.Type().Elem()))
	case reflect.String:
		v.SetString("x")
	case reflect.Bool:
		v.SetBool(true)
	default:
		t.Fatalf("no value for a %s", v.Type())
	}
}

func TestUnsupportedFields(t *testing.T) {
	mount := func(m specs.Mount) func(*Container) {
		return func(c *Container) { c.Spec.Mounts = []specs.Mount{m} }
	}
	namespace := func(n specs.LinuxNamespace) func(*Container) {
		return func(c *Container) { c.Spec.Linux.Namespaces = append(c.Spec.Linux.Namespaces, n) }
	}
	rule := func(d specs.LinuxDeviceCgroup) func(*Container) {
		return func(c *Container) { c.Spec.Linux.Resources.Devices = append(c.Spec.Linux.Resources.Devices, d) }
	}
	device := func(d specs.LinuxDevice) func(*Container) {
		return func(c *Container) { c.Spec.Linux.Devices = append(c.Spec.Linux.Devices, d) }
	}
	for name, tc := range map[string]struct {
		change func(*Container)
		field  string
	}{
		"no process":           {func(c *Container) { c.Spec.Process = nil }, "process, root, linux"},
		"no arguments":         {func(c *Container) { c.Spec.Process.Args = nil }, "process.args"},
		"relative folder":      {func(c *Container) { c.Spec.Process.Cwd = "here" }, "process.cwd"},
		"root elsewhere":       {func(c *Container) { c.Spec.Root.Path = "/" }, "root.path"},
		"another host name":    {func(c *Container) { c.Spec.Hostname = "two" }, "hostname"},
		"cgroup without slice": {func(c *Container) { c.Spec.Linux.CgroupsPath = "a:cri:b" }, "linux.cgroupsPath"},
		"property of systemd": {func(c *Container) {
			c.Spec.Linux.CgroupsPath, c.Spec.Annotations = "a.slice:cri:b", map[string]string{"org.systemd.property.CollectMode": "'inactive'"}
		}, "annotations[org.systemd.property.CollectMode]"},
		"a slice with a path":  {func(c *Container) { c.Spec.Linux.CgroupsPath = "a/b.slice:cri:c" }, "linux.cgroupsPath"},
		"cgroup above":         {func(c *Container) { c.Spec.Linux.CgroupsPath = "/pods/../.." }, "linux.cgroupsPath"},
		"the root's cgroup":    {func(c *Container) { c.Spec.Linux.CgroupsPath = "/" }, "linux.cgroupsPath"},
		"no log":               {func(c *Container) { c.Log = "" }, "annotations[berth.dev/log-path]"},
		"shared processes":     {func(c *Container) { c.Spec.Linux.Namespaces[0].Path = "/proc/42/ns/pid" }, "linux.namespaces[0]"},
		"host's processes":     {func(c *Container) { c.Spec.Linux.Namespaces = c.Spec.Linux.Namespaces[1:] }, "linux.namespaces"},
		"host's network":       {func(c *Container) { c.Spec.Linux.Namespaces[2].Path = "/proc/1/ns/net" }, "linux.namespaces[2]"},
		"user namespace":       {namespace(specs.LinuxNamespace{Type: specs.UserNamespace}), "linux.namespaces[5]"},
		"a mapping":            {func(c *Container) { c.Spec.Linux.UIDMappings = ids(0) }, "linux.uidMappings"},
		"unknown capability":   {func(c *Container) { c.Spec.Process.Capabilities.Ambient = []string{"CAP_X"} }, "process.capabilities.ambient"},
		"relative masked path": {func(c *Container) { c.Spec.Linux.MaskedPaths = []string{"x"} }, "linux.maskedPaths"},
		"a rule of no type":    {rule(specs.LinuxDeviceCgroup{Allow: true, Type: "x", Access: "r"}), "linux.resources.devices[1]"},
		"a rule for nothing":   {rule(specs.LinuxDeviceCgroup{Allow: true, Type: "c"}), "linux.resources.devices[1]"},
		"unknown access":       {rule(specs.LinuxDeviceCgroup{Type: "c", Access: "rx"}), "linux.resources.devices[1]"},
		"relative device":      {device(specs.LinuxDevice{Path: "fuse", Type: "c"}), "linux.devices[0]"},
		"device of no type":    {device(specs.LinuxDevice{Path: "/dev/x", Type: "d"}), "linux.devices[0]"},
		"number of a device":   {device(specs.LinuxDevice{Path: "/dev/x", Type: "c", Major: -1}), "linux.devices[0]"},
		"the root as a device": {device(specs.LinuxDevice{Path: "/dev/..", Type: "c"}), "linux.devices[0]"},
		"unified on v1":        {func(c *Container) { c.Spec.Linux.Resources.Unified = map[string]string{"pids.max": "1"} }, "linux.resources.unified"},
		"swappiness on v2": {func(c *Container) {
			c.Unified, c.Spec.Linux.Resources.Memory.Swappiness = true, new(uint64)
		}, "linux.resources.memory.swappiness"},
		"class of packets on v2": {func(c *Container) {
			c.Unified, c.Spec.Linux.Resources.Network = true, &specs.LinuxNetwork{ClassID: new(uint32)}
		}, "linux.resources.network"},
		"another's cgroup namespace": {func(c *Container) {
			c.Unified = true
			c.Spec.Linux.Namespaces = append(c.Spec.Linux.Namespaces, specs.LinuxNamespace{Type: specs.CgroupNamespace, Path: "/proc/1/ns/cgroup"})
		}, "linux.namespaces[5]"},
		"mapped ids":          {mount(specs.Mount{Destination: "/a", Source: "/b", Options: []string{"rbind"}, UIDMappings: []specs.LinuxIDMapping{{}}}), "mounts[0] (/a)"},
		"a file system":       {mount(specs.Mount{Destination: "/a", Source: "/dev/sda", Type: "ext4"}), "mounts[0] (/a)"},
		"text for a bind":     {mount(specs.Mount{Destination: "/a", Source: "/b", Type: "bind", Options: []string{"rbind", "mode=1"}}), "mounts[0] (/a)"},
		"bind without bind":   {mount(specs.Mount{Destination: "/a", Source: "/b", Type: "bind"}), "mounts[0] (/a)"},
		"relative source":     {mount(specs.Mount{Destination: "/a", Source: "b", Options: []string{"bind"}}), "mounts[0] (/a)"},
		"relative mount":      {mount(specs.Mount{Destination: "a", Source: "/b", Options: []string{"bind"}}), "mounts[0] (a)"},
		"image on a disk":     {func(c *Container) { c.Rootfs[0].Type = "ext4" }, "rootfs[0]"},
		"many layers":         {func(c *Container) { c.Rootfs[0].Options = []string{"lowerdir=" + strings.Repeat("/l:", 2000)} }, "rootfs[0]"},
		"option of an image":  {func(c *Container) { c.Rootfs[0].Options = []string{"xino=on"} }, "rootfs[0]"},
		"cgroup of another":   {namespace(specs.LinuxNamespace{Type: specs.CgroupNamespace, Path: "/proc/1/ns/cgroup"}), "linux.namespaces[5]"},
		"own, and not own":    {func(c *Container) { c.SharesProcesses = true }, "linux.namespaces[0]"},
		"unknown propagation": {func(c *Container) { c.Spec.Linux.RootfsPropagation = "both" }, "linux.rootfsPropagation"},
		"options of another's /proc": {func(c *Container) {
			*c = shared()
			c.Spec.Mounts[4].Options = []string{"hidepid=2"}
		}, "mounts[4] (/proc)"},
		"recursive, not bound": {mount(specs.Mount{Destination: "/a", Source: "/b", Options: []string{"rbind", "rro"}}), "mounts[0] (/a)"},
	} {
		c := sample()
		tc.change(&c)
		_, err := New(c)
		var r *FieldError
		if !errors.As(err, &r) || r.Field != tc.field {
			t.Errorf("%s: error %v, want one that refuses %s", name, err, tc.field)
		}
	}
}

// Limits of one cgroup version are rejected with the other version, and accepted with their own.
func TestResourcesOfOneVersion(t *testing.T) {
	for name, text := range map[string]string{
		"network": `{"network":{"classID":1}}`, "memory.swappiness": `{"memory":{"swappiness":1}}`, "memory.disableOOMKiller": `{"memory":{"disableOOMKiller":true}}`,
		"cpu.realtimeRuntime": `{"cpu":{"realtimeRuntime":1}}`, "cpu.realtimePeriod": `{"cpu":{"realtimePeriod":1}}`, "blockIO.leafWeight": `{"blockIO":{"leafWeight":1}}`,
		"unified": `{"unified":{"pids.max":"1"}}`,
	} {
		var r specs.LinuxResources
		if err := json.Unmarshal([]byte(text), &r); err != nil {
			t.Fatal(err)
		}
		has := slices.Contains(onlyUnified, name)
		if !has && !slices.Contains(onlyV1, name) {
			t.Errorf("%s is of no version", name)
		}
		var no *FieldError
		if err := ValidateResources(&r, !has); !errors.As(err, &no) || no.Field != "linux.resources."+name {
			t.Errorf("%s: error %v, want one that refuses it", name, err)
		}
		if err := ValidateResources(&r, has); err != nil {
			t.Errorf("%s: %v, where there is such a limit", name, err)
		}
	}
}

func TestBytesRejects(t *testing.T) {
	for want, change := range map[string]func(*Container){
		"has a zero inside":  func(c *Container) { c.Spec.Process.Args[1] = "a\x00b" },
		"the pod shim takes": func(c *Container) { c.Spec.Process.Env = []string{strings.Repeat("x", Max)} },
	} {
		c := sample()
		change(&c)
		p, err := New(c)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := p.Bytes(wire.Version); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %.200v, want %q in it", err, want)
		}
	}
}

// Building a plan does not change its input.
func TestNewDoesNotChangeTheSpecification(t *testing.T) {
	c := sample()
	before, err := json.Marshal(c.Spec)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := New(c); err != nil {
		t.Fatal(err)
	}
	if after, err := json.Marshal(c.Spec); err != nil || !bytes.Equal(before, after) || len(c.Trees) != 2 {
		t.Errorf("the specification is %s, was %s; trees %v; %v", after, before, c.Trees, err)
	}
}

// C and Go have the same numbers.
func TestTheSameInC(t *testing.T) {
	b, err := os.ReadFile("../c/podshim.h")
	if err != nil {
		t.Fatal(err)
	}
	c := string(b)
	for _, want := range []string{
		fmt.Sprintf("MAGIC = %#x }", Magic), fmt.Sprintf("enum { VERSION = %d,", wire.Version), "MAX_PLAN_SIZE = 4 << 20 }", "STEP_JOIN = 1,",
	} {
		if !strings.Contains(c, want) {
			t.Errorf("podshim.h has no %q", want)
		}
	}
	// The steps in their order, which is their number.
	at := strings.Index(c, "STEP_JOIN = 1,")
	names := strings.Fields("MOUNT OPEN_ROOT MOUNT_INSIDE MKDIR MKNOD SYMLINK MASK READONLY PIVOT_ROOT CHDIR SET_IDS SET_CAPABILITIES PRCTL CONSOLE ENTER_NAMESPACES ATTACH_MOUNT PREPARE_PROGRAM SECCOMP_FILTER RLIMIT SET_OWNER MOUNT_IDMAPPED ENTER_USERNS WRITE_PROC JOIN_KEYRING SET_LABEL MOUNT_PROCFS COUNT")
	for _, name := range names {
		name = "STEP_" + name
		next := strings.Index(c[at:], "\t"+name+",")
		for _, before := range []string{" " + name + ",", " " + name + "\n", "\t" + name + "\n"} {
			if i := strings.Index(c[at:], before); i >= 0 && (next < 0 || i < next) {
				next = i
			}
		}
		if next < 0 {
			t.Fatalf("podshim.h has no %s after the step before", name)
		}
		at += next
	}
	for o := range op(len(names)) {
		if opNames[o+1] == "" || len(opNames) != len(names) {
			t.Errorf("step %d of %d has no name, and podshim.h has %d", o+1, len(opNames), len(names))
		}
	}
}
