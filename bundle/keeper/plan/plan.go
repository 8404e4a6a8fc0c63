package plan

import (
	"errors"
	"fmt"
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

// Container is what a plan is made of.
type Container struct {
	Spec *specs.Spec
	// Rootfs are the mounts of the image, and Root is where they are mounted.
	Rootfs []*types.Mount
	Root   string
	// Cgroups are the container's own.
	Cgroups []Cgroup
	// Log is the file that the output is written to.
	Log string
	// PodFiles is the folder with shm, hosts, hostname and resolv.conf of the pod, Hostname its host
	// name, and Keeper the pid of its keeper.
	PodFiles, Hostname string
	Keeper             uint32
	// IsFile has the sources of bind mounts that are no directories.
	IsFile map[string]bool
}

// Cgroup is a cgroup of one hierarchy, by its directory.
type Cgroup struct{ Hierarchy, Dir string }

// New makes the plan of a container. What it asks for beyond what a keeper does is a *Refused.
func New(c Container) (*Plan, error) {
	if err := refuse(c); err != nil {
		return nil, err
	}
	p := &Plan{
		root: c.Root, log: c.Log, argv: c.Spec.Process.Args, envp: c.Spec.Process.Env, groups: c.Spec.Process.User.AdditionalGids,
		made: map[string]bool{}, place: fmt.Sprintf("/proc/%d/fd/%d", c.Keeper, KeptUser),
	}
	confined, err := Confine(c.Spec)
	if err != nil {
		return nil, err
	}
	p.user, p.label = confined.user, c.Spec.Linux.MountLabel
	p.join(c.Cgroups)
	p.add(opMount, [4]string{"", "/"}, unix.MS_SLAVE|unix.MS_REC)
	if err := p.rootfs(c.Rootfs); err != nil {
		return nil, err
	}
	p.own()
	withFiles(&c, p.user)
	for i := range c.Spec.Mounts {
		if err := p.specMount(c, i); err != nil {
			return nil, err
		}
	}
	p.devices()
	p.directories(c.Spec.Process.Cwd)
	for _, at := range c.Spec.Linux.MaskedPaths {
		p.add(opMask, [4]string{"", at})
	}
	for _, at := range c.Spec.Linux.ReadonlyPaths {
		p.add(opReadonly, [4]string{"", at})
	}
	p.process(c.Spec, confined)
	return p, nil
}

// withFiles adds the pod's own files to the mounts, where the specification has nothing else there.
// containerd takes its own away at a restart, as it does for the pods of each controller but its own.
func withFiles(c *Container, u *user) {
	spec := *c.Spec
	spec.Mounts = slices.Clone(spec.Mounts)
	files := map[string]bool{}
	for source := range c.IsFile {
		files[source] = true
	}
	for _, file := range []string{"hostname", "hosts", "resolv.conf"} {
		at, source := "/etc/"+file, path.Join(c.PodFiles, file)
		if !slices.ContainsFunc(spec.Mounts, func(m specs.Mount) bool { return path.Clean(m.Destination) == at }) {
			m := specs.Mount{Destination: at, Source: source, Options: []string{"rbind", "rprivate"}}
			if spec.Root.Readonly { // as containerd has it for its own
				m.Options = append(m.Options, "ro")
			}
			if u != nil {
				m.UIDMappings, m.GIDMappings = []specs.LinuxIDMapping{u.uids}, []specs.LinuxIDMapping{u.gids}
			}
			spec.Mounts = append(spec.Mounts, m)
			files[source] = true
		}
	}
	c.Spec, c.IsFile = &spec, files
}

// nodes are the devices that each container has, and links what else lies beside them.
var (
	nodes = []struct {
		name         string
		major, minor uint32
	}{{"null", 1, 3}, {"zero", 1, 5}, {"full", 1, 7}, {"random", 1, 8}, {"urandom", 1, 9}, {"tty", 5, 0}}
	links = [][2]string{
		{"fd", "/proc/self/fd"}, {"stdin", "/proc/self/fd/0"}, {"stdout", "/proc/self/fd/1"}, {"stderr", "/proc/self/fd/2"}, {"ptmx", "pts/ptmx"},
	}
)

func (p *Plan) devices() {
	p.directories("/dev")
	for _, n := range nodes {
		p.add(opNode, [4]string{"", "/dev/" + n.name}, unix.S_IFCHR|0o666, unix.Mkdev(n.major, n.minor))
	}
	for _, l := range links {
		p.add(opLink, [4]string{l[1], "/dev/" + l[0]})
	}
}

// process are the steps that come last. Until the start, the process is root with all capabilities,
// and nothing of the container has run.
func (p *Plan) process(spec *specs.Spec, confined Confinement) {
	p.score(spec.Process)
	p.labels(spec.Process)
	if spec.Process.Terminal {
		p.add(opNode, [4]string{"", "/dev/console"}, unix.S_IFREG|0o600)
		p.console(spec.Process, "/dev/console")
	}
	p.rlimits(spec.Process)
	if p.user != nil {
		p.add(opUser, [4]string{p.place})
	}
	p.add(opPivot, [4]string{})
	if spec.Root.Readonly {
		p.add(opMount, [4]string{"", "/"}, unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY)
	}
	p.add(opCwd, [4]string{spec.Process.Cwd})
	p.before = len(p.steps)
	p.rights(spec.Process, confined)
}

func (p *Plan) score(process *specs.Process) {
	score := 0 // the keeper's own is that of a runtime
	if process.OOMScoreAdj != nil {
		score = *process.OOMScoreAdj
	}
	p.add(opScore, [4]string{strconv.Itoa(score)})
}

// console gives the process a terminal, which the path shows too.
func (p *Plan) console(process *specs.Process, at string) {
	size := process.ConsoleSize
	if size == nil {
		size = &specs.Box{}
	}
	p.add(opConsole, [4]string{"", at}, uint64(size.Height), uint64(size.Width))
}

// NewExec makes the plan of a further process of a container, which is in these cgroups and confined as its
// first. What it asks for beyond what a keeper does is a *Refused.
func NewExec(process *specs.Process, cgroups []Cgroup, confined Confinement) (*Plan, error) {
	if err := refuseStruct(reflect.ValueOf(process).Elem(), "process."); err != nil {
		return nil, err
	}
	if err := refuseProcess(process); err != nil {
		return nil, err
	}
	p := &Plan{argv: process.Args, envp: process.Env, groups: process.User.AdditionalGids, user: confined.user}
	p.join(cgroups)
	p.score(process) // by the host's /proc, as the following
	p.labels(process)
	p.rlimits(process)
	p.own()
	enter := uint64(0)
	if p.user != nil {
		enter = 1
	}
	p.add(opEnter, [4]string{}, enter)
	if process.Terminal {
		p.console(process, "")
	}
	p.add(opCwd, [4]string{process.Cwd})
	filter := p.rights(process, confined)
	p.before = len(p.steps)
	if filter >= 0 && !forks(confined.filter) {
		p.before = filter
		return p, refuseLateFilter(process)
	}
	return p, nil
}

func (p *Plan) join(cgroups []Cgroup) {
	for _, g := range cgroups {
		p.add(opJoin, [4]string{path.Join(g.Dir, "cgroup.procs")})
	}
}

// refuseProcess checks what is understood of a process.
func refuseProcess(process *specs.Process) error {
	switch {
	case len(process.Args) == 0:
		return refused("process.args", "is empty")
	case !path.IsAbs(process.Cwd):
		return refused("process.cwd", "%q is no absolute path", process.Cwd)
	case process.ConsoleSize != nil && max(process.ConsoleSize.Height, process.ConsoleSize.Width) > math.MaxUint16:
		return refused("process.consoleSize", "is more than %d", math.MaxUint16)
	}
	return errors.Join(refuseCapabilities(process.Capabilities), refuseRlimits(process.Rlimits))
}

// capabilities are the names of capabilities; the number of each is its place.
var capabilities = strings.Fields(`CAP_CHOWN CAP_DAC_OVERRIDE CAP_DAC_READ_SEARCH CAP_FOWNER CAP_FSETID CAP_KILL CAP_SETGID CAP_SETUID CAP_SETPCAP
	CAP_LINUX_IMMUTABLE CAP_NET_BIND_SERVICE CAP_NET_BROADCAST CAP_NET_ADMIN CAP_NET_RAW CAP_IPC_LOCK CAP_IPC_OWNER CAP_SYS_MODULE CAP_SYS_RAWIO
	CAP_SYS_CHROOT CAP_SYS_PTRACE CAP_SYS_PACCT CAP_SYS_ADMIN CAP_SYS_BOOT CAP_SYS_NICE CAP_SYS_RESOURCE CAP_SYS_TIME CAP_SYS_TTY_CONFIG CAP_MKNOD
	CAP_LEASE CAP_AUDIT_WRITE CAP_AUDIT_CONTROL CAP_SETFCAP CAP_MAC_OVERRIDE CAP_MAC_ADMIN CAP_SYSLOG CAP_WAKE_ALARM CAP_BLOCK_SUSPEND CAP_AUDIT_READ
	CAP_PERFMON CAP_BPF CAP_CHECKPOINT_RESTORE`)

// mask is a set of capabilities as bits; all names are known.
func mask(names []string) uint64 {
	var m uint64
	for _, n := range names {
		m |= 1 << slices.Index(capabilities, n)
	}
	return m
}

// refuse says what the container asks for that a keeper does not do.
func refuse(c Container) error {
	s := c.Spec
	if s.Process == nil || s.Root == nil || s.Linux == nil {
		return refused("process, root, linux", "one of them is missing")
	}
	if err := refuseFields(s); err != nil {
		return err
	}
	switch {
	case s.Root.Path != "rootfs":
		return refused("root.path", "is %q, and must be rootfs", s.Root.Path)
	case s.Hostname != "" && s.Hostname != c.Hostname:
		return refused("hostname", "is %q, and the pod's is %q", s.Hostname, c.Hostname)
	case s.Linux.CgroupsPath == "" || path.Clean(s.Linux.CgroupsPath) != s.Linux.CgroupsPath || !path.IsAbs(s.Linux.CgroupsPath) || s.Linux.CgroupsPath == "/":
		return refused("linux.cgroupsPath", "%q is no absolute path below the root: systemd's names are not known to the keeper", s.Linux.CgroupsPath)
	case !path.IsAbs(c.Log) || path.Clean(c.Log) != c.Log:
		return refused("annotations["+LogAnnotation+"]", "%q is not the absolute path of a log", c.Log)
	}
	if err := refuseProcess(s.Process); err != nil {
		return err
	}
	if p := s.Linux.RootfsPropagation; p != "" && propagation[p] == 0 {
		return refused("linux.rootfsPropagation", "is %q", p)
	}
	for _, check := range []func(Container) error{refuseNamespaces, refusePaths, refuseMemory, refuseDevices} {
		if err := check(c); err != nil {
			return err
		}
	}
	return nil
}

// LogAnnotation is the annotation of a container with the path of its log.
const LogAnnotation = "berth.dev/log-path"

// refuseNamespaces: network, IPC and UTS are the pod's, and each container has its own mounts and
// processes.
func refuseNamespaces(c Container) error {
	files := map[specs.LinuxNamespaceType]string{specs.NetworkNamespace: "net", specs.IPCNamespace: "ipc", specs.UTSNamespace: "uts", specs.UserNamespace: "user"}
	has := map[specs.LinuxNamespaceType]bool{}
	for i, ns := range c.Spec.Linux.Namespaces {
		field := fmt.Sprintf("linux.namespaces[%d]", i)
		switch want, shared := files[ns.Type]; {
		case shared && ns.Path != fmt.Sprintf("/proc/%d/ns/%s", c.Keeper, want):
			return refused(field, "%s namespace %q is not the pod's", ns.Type, ns.Path)
		case !shared && ns.Type != specs.PIDNamespace && ns.Type != specs.MountNamespace:
			return refused(field, "is of type %q", ns.Type)
		case !shared && ns.Path != "":
			return refused(field, "the container shares the %s namespace %q", ns.Type, ns.Path)
		}
		has[ns.Type] = true
	}
	for _, t := range []specs.LinuxNamespaceType{specs.NetworkNamespace, specs.IPCNamespace, specs.UTSNamespace, specs.PIDNamespace, specs.MountNamespace} {
		if !has[t] {
			return refused("linux.namespaces", "has none of type %q: the container would be in the host's", t)
		}
	}
	return nil
}

func refuseCapabilities(k *specs.LinuxCapabilities) error {
	if k == nil {
		return nil
	}
	for set, names := range map[string][]string{
		"bounding": k.Bounding, "effective": k.Effective, "inheritable": k.Inheritable, "permitted": k.Permitted, "ambient": k.Ambient,
	} {
		for _, n := range names {
			if !slices.Contains(capabilities, n) {
				return refused("process.capabilities."+set, "%q is not known to the keeper", n)
			}
		}
	}
	return nil
}

func refusePaths(c Container) error {
	for field, list := range map[string][]string{"linux.maskedPaths": c.Spec.Linux.MaskedPaths, "linux.readonlyPaths": c.Spec.Linux.ReadonlyPaths} {
		for _, at := range list {
			if !path.IsAbs(at) {
				return refused(field, "%q is no absolute path", at)
			}
		}
	}
	return nil
}

// refuseMemory: memory and swap together may have the limit of memory, which is no swap at all.
func refuseMemory(c Container) error {
	if c.Spec.Linux.Resources == nil || c.Spec.Linux.Resources.Memory == nil {
		return nil
	}
	m := c.Spec.Linux.Resources.Memory
	if m.Swap != nil && (m.Limit == nil || *m.Swap != *m.Limit) {
		return refused("linux.resources.memory.swap", "is %d, and must be the limit of memory", *m.Swap)
	}
	return nil
}

// Devices are the devices that each container may use: those that it has, terminals, and making nodes,
// which alone gives nothing.
func Devices() []specs.LinuxDeviceCgroup {
	rule := func(kind string, major, minor int64, access string) specs.LinuxDeviceCgroup {
		return specs.LinuxDeviceCgroup{Allow: true, Type: kind, Major: &major, Minor: &minor, Access: access}
	}
	rules := []specs.LinuxDeviceCgroup{{Type: "a", Access: "rwm"}, rule("c", -1, -1, "m"), rule("b", -1, -1, "m")}
	for _, n := range nodes {
		rules = append(rules, rule("c", int64(n.major), int64(n.minor), "rwm"))
	}
	return append(rules, rule("c", 5, 1, "rwm"), rule("c", 5, 2, "rwm"), rule("c", 136, -1, "rwm"))
}

// refuseDevices takes rules that give no more than each container has.
func refuseDevices(c Container) error {
	if c.Spec.Linux.Resources == nil {
		return nil
	}
	name := func(r specs.LinuxDeviceCgroup) string {
		number := func(n *int64) int64 {
			if n == nil {
				return -1
			}
			return *n
		}
		return fmt.Sprintf("%s %d:%d", r.Type, number(r.Major), number(r.Minor))
	}
	for i, r := range c.Spec.Linux.Resources.Devices {
		known := slices.ContainsFunc(Devices(), func(d specs.LinuxDeviceCgroup) bool {
			return d.Allow && name(d) == name(r) && strings.Trim(r.Access, d.Access) == ""
		})
		if r.Allow && !known || !r.Allow && i > 0 {
			return refused(fmt.Sprintf("linux.resources.devices[%d]", i), "%q with access %q (allow: %t) is not among the devices of each container", name(r), r.Access, r.Allow)
		}
	}
	return nil
}
