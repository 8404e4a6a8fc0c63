package shims

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/containerd/log"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/bundle/podshim/plan"
	"berth/bundle/podshim/wire"
)

// ownNamespaces returns the clone flags of the namespaces that a pod does not share with the host.
// With the host's network, it also has the host's name.
func ownNamespaces(c *runtime.PodSandboxConfig) int {
	n, flags := c.GetLinux().GetSecurityContext().GetNamespaceOptions(), 0
	for flag, mode := range map[int]runtime.NamespaceMode{
		unix.CLONE_NEWNET | unix.CLONE_NEWUTS: n.GetNetwork(), unix.CLONE_NEWIPC: n.GetIpc(), unix.CLONE_NEWPID: n.GetPid(),
	} {
		if mode != runtime.NamespaceMode_NODE {
			flags |= flag
		}
	}
	return flags
}

// pidSharing are the containers whose PID namespace a container shares: all of the pod, or one of
// them.
type pidSharing struct {
	pod       bool
	container string
	host      bool // the PID namespace is the host's
}

func (c pidSharing) shared() bool { return c.pod || c.container != "" }

// proc returns the /proc in the mounts of the process through which the pod shim enters the
// namespace: for the pod's namespace, it is that process's root.
func (c pidSharing) proc() string {
	switch {
	case c.host || !c.shared():
		return ""
	case c.pod:
		return "/"
	}
	return "/proc"
}

// pidSharing finds them by the path that containerd passes for the namespace. There are none if the
// container has its own PID namespace, or if the path belongs to no running container of the pod.
func (p *pod) pidSharing(spec *specs.Spec) pidSharing {
	p.mu.Lock()
	defer p.mu.Unlock()
	of := func(pid uint32) bool {
		return slices.Contains(spec.Linux.Namespaces, specs.LinuxNamespace{Type: specs.PIDNamespace, Path: fmt.Sprintf("/proc/%d/ns/pid", pid)})
	}
	if of(p.record.Pid) {
		return pidSharing{pod: true, host: p.record.HostPID}
	}
	for id, t := range p.tasks {
		if t.state == wire.Running && of(t.record.Pid) {
			return pidSharing{container: id, host: p.record.HostPID}
		}
	}
	return pidSharing{}
}

// addTo adds them to a request, and the cgroup in which the pod shim kills the container's
// processes.
func (c pidSharing) addTo(q *wire.Request, f *files, groups []plan.Cgroup) error {
	if !c.shared() {
		return nil
	}
	if c.pod {
		q.Arg |= wire.ShareProcesses
	}
	q.Exec = c.container
	dir, err := killCgroup(groups)
	if err != nil {
		return err
	}
	f[wire.KillCgroup], err = unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	return err
}

// killCgroup returns the directory of the cgroup through which all processes of a container can be
// killed: the v2 cgroup, or the one with the freezer.
func killCgroup(groups []plan.Cgroup) (string, error) {
	freezer := ""
	for _, g := range groups {
		if _, err := os.Stat(filepath.Join(g.Dir, "cgroup.kill")); err == nil {
			return g.Dir, nil
		}
		if g.Hierarchy == "freezer" {
			freezer = g.Dir
		}
	}
	if freezer == "" {
		return "", errors.New("no cgroup hierarchy can kill processes: the container needs cgroup.kill or the freezer, as it shares a PID namespace")
	}
	return freezer, nil
}

// killShared kills the remaining processes of a pod's containers after its pod shim has exited, if
// that used the host's PID namespace. For other pods, the kernel has killed all.
func (p *pod) killShared() {
	p.mu.Lock()
	var groups []string
	if p.record.HostPID && p.alive() {
		for _, t := range p.tasks {
			groups = append(groups, t.record.Cgroup)
		}
	}
	p.mu.Unlock()
	for _, g := range groups {
		if err := killAll(g); err != nil {
			log.L.Errorf("podshim: pod %s: %s", filepath.Base(p.dir), err)
		}
	}
}

// killAll kills the processes of a container's cgroup and its descendants, and waits until there
// are none.
func killAll(name string) error {
	g, err := cgroupAt(name)
	if err != nil || !g.Exists() {
		return err
	}
	dir, err := killCgroup(g.dirs())
	if err != nil {
		return fmt.Errorf("cgroup %s: %w", name, err)
	}
	for began := time.Now(); ; time.Sleep(5 * time.Millisecond) {
		some, err := killOnce(dir)
		if err != nil || !some {
			return err
		}
		if time.Since(began) > replyTimeout {
			return fmt.Errorf("cgroup %s: its processes do not exit", name)
		}
	}
}

// killOnce sends SIGKILL to each process in a cgroup and its descendants, and reports whether
// there were any. Frozen processes cannot fork.
func killOnce(dir string) (some bool, err error) {
	write := func(file, value string) {
		err := os.WriteFile(filepath.Join(dir, file), []byte(value), 0)
		if err != nil && !errors.Is(err, os.ErrNotExist) && !errors.Is(err, os.ErrPermission) {
			log.L.Warnf("podshim: %s", err)
		}
	}
	write("cgroup.kill", "1")
	write("freezer.state", "FROZEN")
	defer write("freezer.state", "THAWED")
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		if err != nil || d.Name() != "cgroup.procs" {
			return err
		}
		b, err := os.ReadFile(path)
		for _, f := range strings.Fields(string(b)) {
			if pid, err := strconv.Atoi(f); err == nil && pid > 0 && unix.Kill(pid, unix.SIGKILL) == nil {
				some = true
			}
		}
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ENODEV) { // it was deleted
			return nil
		}
		return err
	})
	return some, err
}
