package shims

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/bundle/podshim/plan"
	"berth/bundle/podshim/wire"
)

func TestOwnNamespaces(t *testing.T) {
	const pod, node = runtime.NamespaceMode_POD, runtime.NamespaceMode_NODE
	for name, c := range map[string]struct {
		options *runtime.NamespaceOption
		want    int
	}{
		"own":            {&runtime.NamespaceOption{Pid: runtime.NamespaceMode_CONTAINER}, unix.CLONE_NEWNET | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC | unix.CLONE_NEWPID},
		"shared":         {&runtime.NamespaceOption{Pid: pod}, unix.CLONE_NEWNET | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC | unix.CLONE_NEWPID},
		"host's pids":    {&runtime.NamespaceOption{Pid: node}, unix.CLONE_NEWNET | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC},
		"host's ipc":     {&runtime.NamespaceOption{Ipc: node}, unix.CLONE_NEWNET | unix.CLONE_NEWUTS | unix.CLONE_NEWPID},
		"host's network": {&runtime.NamespaceOption{Network: node}, unix.CLONE_NEWIPC | unix.CLONE_NEWPID},
		"host's":         {&runtime.NamespaceOption{Network: node, Ipc: node, Pid: node}, 0},
	} {
		got := ownNamespaces(&runtime.PodSandboxConfig{Linux: &runtime.LinuxPodSandboxConfig{SecurityContext: &runtime.LinuxSandboxSecurityContext{NamespaceOptions: c.options}}})
		if got != c.want {
			t.Errorf("%s: %#x, want %#x", name, got, c.want)
		}
	}
}

func TestPIDSharing(t *testing.T) {
	running := &task{state: wire.Running, record: taskRecord{ID: "runs", Pid: 21}}
	stopped := &task{state: wire.Stopped, record: taskRecord{ID: "stopped", Pid: 22}}
	for name, c := range map[string]struct {
		record podRecord
		path   string
		want   pidSharing
		proc   string
	}{
		"none":                         {podRecord{Pid: 7}, "", pidSharing{}, ""},
		"the pod's":                    {podRecord{Pid: 7}, "/proc/7/ns/pid", pidSharing{pod: true}, "/"},
		"the host's":                   {podRecord{Pid: 7, HostPID: true}, "/proc/7/ns/pid", pidSharing{pod: true, host: true}, ""},
		"of a container":               {podRecord{Pid: 7}, "/proc/21/ns/pid", pidSharing{container: "runs"}, "/proc"},
		"of a container on the host's": {podRecord{Pid: 7, HostPID: true}, "/proc/21/ns/pid", pidSharing{container: "runs", host: true}, ""},
		"of one that has ended":        {podRecord{Pid: 7}, "/proc/22/ns/pid", pidSharing{}, ""},
		"of a stranger":                {podRecord{Pid: 7}, "/proc/1/ns/pid", pidSharing{}, ""},
	} {
		p := newPod(t.TempDir())
		p.record, p.tasks = c.record, map[string]*task{"runs": running, "stopped": stopped}
		got := p.pidSharing(&specs.Spec{Linux: &specs.Linux{Namespaces: []specs.LinuxNamespace{{Type: specs.MountNamespace}, {Type: specs.PIDNamespace, Path: c.path}}}})
		if got != c.want || got.proc() != c.proc {
			t.Errorf("%s: %+v with /proc at %q, want %+v at %q", name, got, got.proc(), c.want, c.proc)
		}
	}
}

func TestKillCgroup(t *testing.T) {
	v1, v2 := t.TempDir(), t.TempDir()
	if err := os.WriteFile(filepath.Join(v2, "cgroup.kill"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	memory, freezer, unified := plan.Cgroup{Hierarchy: "memory", Dir: "/none"}, plan.Cgroup{Hierarchy: "freezer", Dir: v1}, plan.Cgroup{Hierarchy: "unified", Dir: v2}
	for name, c := range map[string]struct {
		groups []plan.Cgroup
		want   string
	}{
		"version 1":    {[]plan.Cgroup{memory, freezer}, v1},
		"version 2":    {[]plan.Cgroup{unified}, v2},
		"both":         {[]plan.Cgroup{freezer, memory, unified}, v2},
		"none of both": {[]plan.Cgroup{memory}, ""},
	} {
		if got, err := killCgroup(c.groups); got != c.want || (err == nil) != (c.want != "") {
			t.Errorf("%s: %q, %v, want %q", name, got, err, c.want)
		}
	}
}

func TestKillOnceInARemovedCgroup(t *testing.T) {
	if some, err := killOnce(filepath.Join(t.TempDir(), "gone")); some || err != nil {
		t.Errorf("%t, %v, want nothing", some, err)
	}
}

// Opening trees requires root. Errors name the field in any case.
func TestOpenTreesNamesTheMount(t *testing.T) {
	gone := filepath.Join(t.TempDir(), "gone")
	_, _, err := openTrees(&specs.Spec{Mounts: []specs.Mount{{Destination: "/proc", Type: "proc", Source: "proc"}, {Destination: "/a", Source: gone, Options: []string{"rbind"}}}}, "")
	want := "mounts[1] (/a): open mount " + gone + ": "
	if err == nil || len(err.Error()) <= len(want) || err.Error()[:len(want)] != want {
		t.Errorf("error %v, want %s…", err, want)
	}
	trees, done, err := openTrees(&specs.Spec{Mounts: []specs.Mount{{Destination: "/dev/shm", Source: "shm", Options: []string{"rbind"}}, {Destination: "/sys", Type: "sysfs", Source: "sysfs"}}}, "")
	if err != nil || len(trees) > 0 {
		t.Errorf("%v, %v, want none: no source is of the host", trees, err)
	}
	done()
}

// Each container of a pod with a user namespace is in it.
func TestValidateUserNamespace(t *testing.T) {
	users := specs.LinuxNamespace{Type: specs.UserNamespace, Path: "/proc/7/ns/user"}
	for name, c := range map[string]struct {
		pod       *runtime.UserNamespace
		container []specs.LinuxNamespace
		refused   bool
	}{
		"none":    {nil, nil, false},
		"both":    {&runtime.UserNamespace{Mode: runtime.NamespaceMode_POD}, []specs.LinuxNamespace{users}, false},
		"the pod": {&runtime.UserNamespace{Mode: runtime.NamespaceMode_POD}, nil, true},
	} {
		pod := &runtime.PodSandboxConfig{Linux: &runtime.LinuxPodSandboxConfig{SecurityContext: &runtime.LinuxSandboxSecurityContext{NamespaceOptions: &runtime.NamespaceOption{UsernsOptions: c.pod}}}}
		err := validateUserNamespace(pod, &specs.Spec{Linux: &specs.Linux{Namespaces: c.container}})
		var r *plan.FieldError
		if got := errors.As(err, &r); got != c.refused || got && r.Field != "linux.namespaces" {
			t.Errorf("%s: error %v, refused %t, want %t", name, err, got, c.refused)
		}
	}
}

func TestValidatePod(t *testing.T) {
	for name, c := range map[string]struct {
		options *runtime.NamespaceOption
		netns   string
		field   string // empty if it is accepted
	}{
		"own":                    {&runtime.NamespaceOption{Pid: runtime.NamespaceMode_CONTAINER}, "/run/netns/a", ""},
		"shared":                 {&runtime.NamespaceOption{}, "/run/netns/a", ""},
		"host's":                 {&runtime.NamespaceOption{Network: runtime.NamespaceMode_NODE, Pid: runtime.NamespaceMode_NODE, Ipc: runtime.NamespaceMode_NODE}, "", ""},
		"no network":             {&runtime.NamespaceOption{}, "", "network"},
		"host's and own":         {&runtime.NamespaceOption{Network: runtime.NamespaceMode_NODE}, "/run/netns/a", "network"},
		"processes of another's": {&runtime.NamespaceOption{Pid: runtime.NamespaceMode_TARGET}, "/run/netns/a", "pid"},
	} {
		err := validatePod(&runtime.PodSandboxConfig{Linux: &runtime.LinuxPodSandboxConfig{SecurityContext: &runtime.LinuxSandboxSecurityContext{NamespaceOptions: c.options}}}, c.netns)
		var r *plan.FieldError
		if got := errors.As(err, &r); got != (c.field != "") || got && r.Field != "linux.security_context.namespace_options."+c.field {
			t.Errorf("%s: error %v, want the field %q", name, err, c.field)
		}
	}
}
