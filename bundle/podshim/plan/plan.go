package plan

import (
	"errors"
	"maps"
	"math"
	"path"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/containerd/containerd/api/types"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// Container is the input of a plan.
type Container struct {
	Spec *specs.Spec
	// Rootfs are the mounts of the image, and Root is their mount point.
	Rootfs []*types.Mount
	Root   string
	// Cgroups are the container's own. Unified means that the host has only cgroup v2.
	Cgroups []Cgroup
	Unified bool
	// Log is the path of the log file.
	Log string
	// PodFiles is the directory with shm, hosts, hostname and resolv.conf of the pod, Hostname
	// its host name, and Podshim the PID of its shim.
	PodFiles, Hostname string
	Podshim            uint32
	// Trees are the sources of the bind mounts, by index in the mounts.
	Trees map[int]Tree
	// SharesProcesses means that the container's PID namespace is that of the pod, or of one of
	// its containers. Proc is the path of /proc in the mounts of a process in it; if empty, the
	// pod shim itself is in that namespace.
	SharesProcesses bool
	Proc            string
}

// Cgroup is a directory in one hierarchy. Hierarchy is its name in a container; a hierarchy without
// a name is not visible there.
type Cgroup struct{ Hierarchy, Dir string }

// New builds the plan of a container. An unsupported request is a *FieldError.
func New(c Container) (*Plan, error) {
	if err := validate(c); err != nil {
		return nil, err
	}
	p := &Plan{
		root: c.Root, log: c.Log, argv: c.Spec.Process.Args, envp: environment(c.Spec.Process.Env), groups: c.Spec.Process.User.AdditionalGids,
		created: map[string]bool{}, usernsPath: UserNamespacePath(c.Podshim),
	}
	confined, err := Confine(c.Spec)
	if err != nil {
		return nil, err
	}
	p.userns, p.label = confined.userns, c.Spec.Linux.MountLabel
	p.joinCgroups(c.Cgroups, newCgroups(c.Spec))
	p.joinPIDNamespace(c)
	p.add(opMount, [4]string{"", "/"}, unix.MS_SLAVE|unix.MS_REC)
	if err := p.mountRootfs(c.Rootfs); err != nil {
		return nil, err
	}
	p.setOwner()
	addPodFiles(&c, p.userns)
	for i := range c.Spec.Mounts {
		if err := p.specMount(c, i); err != nil {
			return nil, err
		}
	}
	p.createDevices(c.Spec)
	p.createDirectories(c.Spec.Process.Cwd)
	for _, at := range c.Spec.Linux.ReadonlyPaths {
		p.add(opReadonly, [4]string{"", at})
	}
	for _, at := range c.Spec.Linux.MaskedPaths {
		p.add(opMask, [4]string{"", at})
	}
	return p, p.addProcess(c, confined)
}

// addPodFiles adds the pod's own files to the mounts, unless the specification mounts something
// else there. containerd deletes its own files at a restart, as for the pods of all other
// controllers.
func addPodFiles(c *Container, u *userNamespace) {
	spec := *c.Spec
	spec.Mounts = slices.Clone(spec.Mounts)
	trees := maps.Clone(c.Trees)
	if trees == nil {
		trees = map[int]Tree{}
	}
	write := "rw"
	if spec.Root.Readonly {
		write = "ro"
	}
	for _, file := range []string{"hostname", "hosts", "resolv.conf"} {
		at, source := "/etc/"+file, path.Join(c.PodFiles, file)
		if !slices.ContainsFunc(spec.Mounts, func(m specs.Mount) bool { return path.Clean(m.Destination) == at }) {
			m := specs.Mount{Destination: at, Source: source, Options: []string{"rbind", "rprivate", write}}
			if u != nil {
				m.UIDMappings, m.GIDMappings = []specs.LinuxIDMapping{u.uids}, []specs.LinuxIDMapping{u.gids}
			}
			trees[len(spec.Mounts)] = Tree{File: true}
			spec.Mounts = append(spec.Mounts, m)
		}
	}
	c.Spec, c.Trees = &spec, trees
}

// addProcess adds the last steps. Until the start, the process is root with all capabilities, and
// no code of the container has run.
func (p *Plan) addProcess(c Container, confined Confinement) error {
	spec := c.Spec
	p.oomScore(spec.Process)
	p.labels(spec.Process)
	if spec.Process.Terminal {
		p.create(opMknod, "", "/dev/console", unix.S_IFREG|0o600)
	}
	p.rlimits(spec.Process)
	if p.userns != nil {
		p.add(opEnterUserns, [4]string{p.usernsPath})
	}
	if spec.Process.Terminal { // of the process's final mounts, so that it has a name there
		p.console(spec.Process, "/dev/console")
	}
	p.add(opPivotRoot, [4]string{})
	if spec.Root.Readonly {
		p.add(opMount, [4]string{"", "/"}, unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY)
	}
	p.add(opChdir, [4]string{spec.Process.Cwd})
	if c.SharesProcesses { // it is visible to other processes while it waits for the start
		return p.joinConfined(spec.Process, confined)
	}
	p.stepsBeforeStart = len(p.steps)
	p.privileges(spec.Process, confined)
	return nil
}

func (p *Plan) oomScore(process *specs.Process) {
	score := 0 // the pod shim's own score is that of a runtime
	if process.OOMScoreAdj != nil {
		score = *process.OOMScoreAdj
	}
	p.add(opWriteProc, [4]string{"self/oom_score_adj", strconv.Itoa(score)})
}

// console gives the process a terminal, which is also bound to the path.
func (p *Plan) console(process *specs.Process, at string) {
	size := process.ConsoleSize
	if size == nil {
		size = &specs.Box{}
	}
	p.add(opConsole, [4]string{"", at}, uint64(size.Height), uint64(size.Width))
}

// NewExec builds the plan of a further process of a container, in these cgroups and with the
// confinement of the first. An unsupported request is a *FieldError.
func NewExec(process *specs.Process, cgroups []Cgroup, confined Confinement) (*Plan, error) {
	if err := validateStruct(reflect.ValueOf(process).Elem(), "process."); err != nil {
		return nil, err
	}
	if err := validateProcess(process); err != nil {
		return nil, err
	}
	p := &Plan{argv: process.Args, envp: environment(process.Env), groups: process.User.AdditionalGids, userns: confined.userns}
	p.joinCgroups(cgroups, 0)
	p.oomScore(process) // with the host's /proc, as the following steps
	p.labels(process)
	p.rlimits(process)
	p.setOwner()
	enter := uint64(unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWCGROUP)
	if p.userns != nil {
		enter |= unix.CLONE_NEWUSER
	}
	p.add(opEnterNamespaces, [4]string{}, enter)
	if process.Terminal {
		p.console(process, "")
	}
	p.add(opChdir, [4]string{process.Cwd})
	return p, p.joinConfined(process, confined)
}

// environment returns the variables as runc does: only the last value of each name, because
// containerd appends those of the container to those of the image, and the C library reads the
// first; and without an empty HOME, which c/child.c sets.
func environment(vars []string) []string {
	last := map[string]int{}
	for i, v := range vars {
		name, _, _ := strings.Cut(v, "=")
		last[name] = i
	}
	var out []string
	for i, v := range vars {
		if name, value, _ := strings.Cut(v, "="); last[name] == i && (name != "HOME" || value != "") {
			out = append(out, v)
		}
	}
	return out
}

// OnlyCgroup returns the v2 cgroup if there are no others: the process is created in it.
func OnlyCgroup(groups []Cgroup) (dir string, ok bool) {
	if len(groups) != 1 || groups[0].Hierarchy != "" {
		return "", false
	}
	return groups[0].Dir, true
}

// joinCgroups makes the process join its cgroups, unless it is created in its only one, and then
// new namespaces.
func (p *Plan) joinCgroups(cgroups []Cgroup, namespaces uint64) {
	if _, ok := OnlyCgroup(cgroups); !ok {
		for _, g := range cgroups {
			p.add(opJoin, [4]string{path.Join(g.Dir, "cgroup.procs")})
		}
	}
	if namespaces != 0 {
		p.add(opJoin, [4]string{}, namespaces)
	}
}

// newCgroups returns the flag of a new cgroup namespace, if the container gets one.
func newCgroups(spec *specs.Spec) uint64 {
	if slices.ContainsFunc(spec.Linux.Namespaces, func(n specs.LinuxNamespace) bool { return n.Type == specs.CgroupNamespace }) {
		return unix.CLONE_NEWCGROUP
	}
	return 0
}

// validateProcess validates the supported fields of a process.
func validateProcess(process *specs.Process) error {
	switch {
	case len(process.Args) == 0:
		return unsupported("process.args", "is empty")
	case !path.IsAbs(process.Cwd):
		return unsupported("process.cwd", "%q is no absolute path", process.Cwd)
	case process.ConsoleSize != nil && max(process.ConsoleSize.Height, process.ConsoleSize.Width) > math.MaxUint16:
		return unsupported("process.consoleSize", "is more than %d", math.MaxUint16)
	}
	return errors.Join(validateCapabilities(process.Capabilities), validateRlimits(process.Rlimits))
}

// capabilities are the names of capabilities, indexed by their number.
var capabilities = strings.Fields(`CAP_CHOWN CAP_DAC_OVERRIDE CAP_DAC_READ_SEARCH CAP_FOWNER CAP_FSETID CAP_KILL CAP_SETGID CAP_SETUID CAP_SETPCAP
	CAP_LINUX_IMMUTABLE CAP_NET_BIND_SERVICE CAP_NET_BROADCAST CAP_NET_ADMIN CAP_NET_RAW CAP_IPC_LOCK CAP_IPC_OWNER CAP_SYS_MODULE CAP_SYS_RAWIO
	CAP_SYS_CHROOT CAP_SYS_PTRACE CAP_SYS_PACCT CAP_SYS_ADMIN CAP_SYS_BOOT CAP_SYS_NICE CAP_SYS_RESOURCE CAP_SYS_TIME CAP_SYS_TTY_CONFIG CAP_MKNOD
	CAP_LEASE CAP_AUDIT_WRITE CAP_AUDIT_CONTROL CAP_SETFCAP CAP_MAC_OVERRIDE CAP_MAC_ADMIN CAP_SYSLOG CAP_WAKE_ALARM CAP_BLOCK_SUSPEND CAP_AUDIT_READ
	CAP_PERFMON CAP_BPF CAP_CHECKPOINT_RESTORE`)

// capabilityMask returns a bit set of capabilities. All names must be known.
func capabilityMask(names []string) uint64 {
	var m uint64
	for _, n := range names {
		m |= 1 << slices.Index(capabilities, n)
	}
	return m
}

// validate rejects unsupported requests of the container.
func validate(c Container) error {
	s := c.Spec
	if s.Process == nil || s.Root == nil || s.Linux == nil {
		return unsupported("process, root, linux", "one of them is missing")
	}
	if err := validateFields(s); err != nil {
		return err
	}
	switch {
	case s.Root.Path != "rootfs":
		return unsupported("root.path", "is %q, and must be rootfs", s.Root.Path)
	case s.Hostname != "" && s.Hostname != c.Hostname:
		return unsupported("hostname", "is %q, and the pod's is %q", s.Hostname, c.Hostname)
	case !cgroupPath(s.Linux.CgroupsPath):
		return unsupported("linux.cgroupsPath", "%q is no absolute path below the root, and no slice:prefix:name", s.Linux.CgroupsPath)
	case !path.IsAbs(c.Log) || path.Clean(c.Log) != c.Log:
		return unsupported("annotations["+LogAnnotation+"]", "%q is not the absolute path of a log", c.Log)
	}
	if err := validateProcess(s.Process); err != nil {
		return err
	}
	if p := s.Linux.RootfsPropagation; p != "" && propagation[p] == 0 {
		return unsupported("linux.rootfsPropagation", "is %q", p)
	}
	if err := ValidateResources(s.Linux.Resources, c.Unified); err != nil {
		return err
	}
	for name := range s.Annotations {
		if strings.HasPrefix(name, "org.systemd.property.") && systemdPath.MatchString(s.Linux.CgroupsPath) {
			return unsupported("annotations["+name+"]", "the pod shim sets no properties of systemd's units but for limits")
		}
	}
	for _, check := range []func(Container) error{validateNamespaces, validatePaths, validateDevices} {
		if err := check(c); err != nil {
			return err
		}
	}
	return nil
}

// cgroupPath reports whether the name of a cgroup is valid.
func cgroupPath(name string) bool {
	return path.IsAbs(name) && path.Clean(name) == name && name != "/" || systemdPath.MatchString(name)
}

// LogAnnotation is the annotation of a container with the path of its log.
const LogAnnotation = "berth.dev/log-path"

func validateCapabilities(k *specs.LinuxCapabilities) error {
	if k == nil {
		return nil
	}
	for set, names := range map[string][]string{
		"bounding": k.Bounding, "effective": k.Effective, "inheritable": k.Inheritable, "permitted": k.Permitted, "ambient": k.Ambient,
	} {
		for _, n := range names {
			if !slices.Contains(capabilities, n) {
				return unsupported("process.capabilities."+set, "%q is not known to the podshim", n)
			}
		}
	}
	return nil
}

func validatePaths(c Container) error {
	for field, list := range map[string][]string{"linux.maskedPaths": c.Spec.Linux.MaskedPaths, "linux.readonlyPaths": c.Spec.Linux.ReadonlyPaths} {
		for _, at := range list {
			if !path.IsAbs(at) {
				return unsupported(field, "%q is no absolute path", at)
			}
		}
	}
	return nil
}
