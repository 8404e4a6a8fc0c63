package plan

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/containerd/containerd/api/types"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// mountFlags are the options that are flags; those with set false clear one.
var mountFlags = map[string]struct {
	flag uint64
	set  bool
}{
	"bind": {unix.MS_BIND, true}, "rbind": {unix.MS_BIND | unix.MS_REC, true}, "ro": {unix.MS_RDONLY, true}, "rw": {unix.MS_RDONLY, false},
	"nosuid": {unix.MS_NOSUID, true}, "suid": {unix.MS_NOSUID, false}, "nodev": {unix.MS_NODEV, true}, "dev": {unix.MS_NODEV, false},
	"noexec": {unix.MS_NOEXEC, true}, "exec": {unix.MS_NOEXEC, false}, "relatime": {unix.MS_RELATIME, true}, "noatime": {unix.MS_NOATIME, true},
	"nodiratime": {unix.MS_NODIRATIME, true}, "strictatime": {unix.MS_STRICTATIME, true}, "sync": {unix.MS_SYNCHRONOUS, true},
}

// propagation are the mount propagation options.
var propagation = map[string]uint64{
	"private": unix.MS_PRIVATE, "rprivate": unix.MS_PRIVATE | unix.MS_REC, "slave": unix.MS_SLAVE, "rslave": unix.MS_SLAVE | unix.MS_REC,
	"shared": unix.MS_SHARED, "rshared": unix.MS_SHARED | unix.MS_REC,
}

// recursive are the options that change a mount and all mounts below, which the creator of a Tree
// applies. The values are those of the flags, too.
var recursive = map[string]uint64{
	"rro": unix.MOUNT_ATTR_RDONLY, "rnosuid": unix.MOUNT_ATTR_NOSUID, "rnodev": unix.MOUNT_ATTR_NODEV, "rnoexec": unix.MOUNT_ATTR_NOEXEC,
}

// Tree is the opened source of a bind mount.
type Tree struct {
	At   string // its path for the pod shim; a detached mount. "" if the source is in the pod's directory
	File bool   // it is not a directory
}

// TreeOptions returns the options for creating a Tree: whether it includes the mounts below the
// source, and the attributes (such as MOUNT_ATTR_RDONLY) of all of them. ok is false if it is not a
// bind mount.
func TreeOptions(m specs.Mount) (all, ok bool, attributes uint64) {
	for _, o := range m.Options {
		all, ok = all || o == "rbind", ok || o == "rbind" || o == "bind"
		attributes |= recursive[o]
	}
	return all, ok && path.IsAbs(m.Source), attributes
}

// fileSystems are the supported file system types, each with the options that are passed to the
// kernel as text.
var fileSystems = map[string][]string{
	"proc": {"hidepid="}, "sysfs": nil, "mqueue": nil, "tmpfs": {"mode=", "size=", "nr_inodes=", "uid=", "gid="},
	"devpts": {"newinstance", "ptmxmode=", "mode=", "gid="}, "bind": nil, "cgroup": {"nsdelegate", "memory_recursiveprot", "memory_localevents", "favordynmods", "memory_hugetlb_accounting", "pids_localevents"},
}

// options are parsed mount options.
type options struct {
	flags, propagation uint64
	data               string
	recursive          bool
	explicit           bool // flags were set or explicitly cleared
}

// parseOptions parses options. Those that are not flags are passed to the file system, and must
// begin with one of known.
func parseOptions(list, known []string) (options, error) {
	var o options
	var data []string
	for _, s := range list {
		if f, ok := mountFlags[s]; ok && f.set {
			o.flags, o.explicit = o.flags|f.flag, o.explicit || f.flag&unix.MS_BIND == 0
		} else if ok {
			o.flags, o.explicit = o.flags&^f.flag, true
		} else if p, ok := propagation[s]; ok {
			o.propagation = p
		} else if recursive[s] != 0 {
			o.recursive, o.flags = true, o.flags|recursive[s]
		} else if slices.ContainsFunc(known, func(k string) bool { return s == k || strings.HasSuffix(k, "=") && strings.HasPrefix(s, k) }) {
			data = append(data, s)
		} else {
			return o, fmt.Errorf("option %q is not known to the podshim", s)
		}
	}
	o.data = strings.Join(data, ",")
	// The kernel takes a page and silently truncates the rest.
	if len(o.data) >= 4096 {
		return o, fmt.Errorf("options of %d bytes are more than the kernel takes (4095)", len(o.data))
	}
	return o, nil
}

func (p *Plan) add(o op, s [4]string, n ...uint64) {
	st := step{op: o, strings: s}
	copy(st.numbers[:], n)
	p.steps = append(p.steps, st)
}

// mount mounts source on a path of the container.
func (p *Plan) mount(m specs.Mount, o options) {
	p.add(opMountInside, [4]string{m.Source, m.Destination, m.Type, o.data}, o.flags)
}

// create creates a node, link or directory at a path of the container.
func (p *Plan) create(o op, target, at string, n ...uint64) {
	dir, name := path.Split(at)
	p.add(o, [4]string{target, dir, name}, n...)
}

// createDirectories creates a directory of the container with its parents.
func (p *Plan) createDirectories(dir string) {
	at := ""
	for part := range strings.SplitSeq(strings.Trim(path.Clean(dir), "/"), "/") {
		at += "/" + part
		if part != "" && !p.created[at] {
			p.created[at] = true
			p.create(opMkdir, "", at, 0o755)
		}
	}
}

// mountRootfs mounts the image.
func (p *Plan) mountRootfs(mounts []*types.Mount) error {
	for i, m := range mounts {
		field := fmt.Sprintf("rootfs[%d]", i)
		if m.Type != "overlay" && m.Type != "bind" || m.Target != "" {
			return unsupported(field, "is of type %q at %q", m.Type, m.Target)
		}
		m, err := p.mappedRootfs(field, m)
		if err != nil {
			return err
		}
		o, err := parseOptions(m.Options, []string{"lowerdir=", "upperdir=", "workdir=", "index=", "userxattr", "metacopy=", "redirect_dir=", "volatile", "context="})
		if err != nil {
			return unsupported(field, "%s", err)
		}
		p.add(opMount, [4]string{m.Source, p.root, m.Type, o.data}, o.flags)
	}
	p.add(opMount, [4]string{"", p.root}, unix.MS_PRIVATE)
	p.add(opOpenRoot, [4]string{})
	return nil
}

// specMount adds one mount of the specification.
func (p *Plan) specMount(c Container, i int) error {
	m := c.Spec.Mounts[i]
	field := fmt.Sprintf("mounts[%d] (%s)", i, m.Destination)
	known, ok := fileSystems[m.Type]
	list, err := p.userns.hostIDs(field, m.Options)
	if err != nil {
		return err
	}
	o, err := parseOptions(list, known)
	bind := o.flags&unix.MS_BIND != 0
	switch {
	case err != nil:
		return unsupported(field, "%s", err)
	case !ok && !(m.Type == "" && bind), m.Type == "bind" && !bind:
		return unsupported(field, "is of type %q", m.Type)
	case bind && !path.IsAbs(m.Source) && (m.Destination != devShm || m.Source != "shm"):
		return unsupported(field, "source %q is no absolute path", m.Source)
	case m.Type == "proc" && c.Proc != "" && o.data != "":
		return unsupported(field, "has the options %q, and the processes that it shows are of others", o.data)
	case o.recursive && c.Trees[i].At == "":
		return unsupported(field, "is no bind mount of the host, and has recursive options")
	case !path.IsAbs(m.Destination):
		return unsupported(field, "is no absolute path")
	}
	if err := p.userns.validateMapping(field, m, o); err != nil {
		return err
	}
	m.Destination = path.Clean(m.Destination)
	switch {
	case m.Destination == devShm && m.Source == "shm":
		p.mountShm(c)
	case m.Type == "proc" && newProcfs(c):
		p.createDirectories(m.Destination)
		p.add(opMountProcfs, [4]string{"", m.Destination}, o.flags)
		p.forgetBelow(m.Destination)
	case m.Type == "proc" && c.Proc != "":
		p.createDirectories(m.Destination)
		p.add(opAttachMount, [4]string{targetProcPath, m.Destination})
		p.remount(m, o)
		p.forgetBelow(m.Destination)
	case m.Type == "cgroup":
		p.mountCgroups(m, o, c)
	case bind && c.Trees[i].File:
		p.createDirectories(path.Dir(m.Destination))
		p.create(opMknod, "", m.Destination, unix.S_IFREG|0o644)
		p.mountTree(m, o, c.Trees[i])
	case bind:
		p.createDirectories(m.Destination)
		p.mountTree(m, o, c.Trees[i])
		// With a volume at /dev, containerd omits its own mounts below /dev, including this
		// one.
		if m.Destination == "/dev" && !slices.ContainsFunc(c.Spec.Mounts, func(m specs.Mount) bool { return path.Clean(m.Destination) == devShm }) {
			p.mountShm(c)
		}
	default:
		o.data = p.labelOption(m.Type, o.data)
		p.createDirectories(m.Destination)
		p.mount(m, o)
		if m.Type == "sysfs" && o.flags&unix.MS_RDONLY == 0 { // the pod has one instance, which another container may have made read-only
			p.mount(m, options{flags: unix.MS_REMOUNT | o.flags})
		}
		p.labelQueue(m)
		p.forgetBelow(m.Destination)
	}
	return nil
}

const devShm = "/dev/shm"

// mountShm mounts the pod's /dev/shm.
func (p *Plan) mountShm(c Container) {
	o := options{flags: unix.MS_BIND | unix.MS_REC, explicit: true}
	if p.userns != nil { // as the kernel sets it for a bind mount in a user namespace
		o.flags |= unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
	}
	p.createDirectories(devShm)
	p.bindMount(specs.Mount{Destination: devShm, Source: path.Join(c.PodFiles, "shm")}, o)
}

// mountTree mounts an opened path of the host. Without a propagation option, later mounts on the
// host appear in it, but not the reverse.
func (p *Plan) mountTree(m specs.Mount, o options, t Tree) {
	if t.At == "" {
		p.bindMount(m, o)
		return
	}
	if o.propagation == 0 {
		o.propagation = unix.MS_SLAVE | unix.MS_REC
	}
	p.add(opAttachMount, [4]string{t.At, m.Destination, m.Source}) // the source is only for errors
	p.remount(m, o)
}

// bindMount mounts a path of the pod's directory.
func (p *Plan) bindMount(m specs.Mount, o options) {
	m.Type = ""
	if len(m.UIDMappings) > 0 {
		p.add(opMountIDMapped, [4]string{m.Source, m.Destination, p.usernsPath}, o.flags&unix.MS_REC/unix.MS_REC)
	} else {
		p.mount(m, options{flags: o.flags & (unix.MS_BIND | unix.MS_REC)})
	}
	p.remount(m, o)
}

// remount applies a bind mount's options, which need a remount.
func (p *Plan) remount(m specs.Mount, o options) {
	m.Source, m.Type = "", ""
	if rest := o.flags &^ (unix.MS_BIND | unix.MS_REC); rest != 0 || o.explicit {
		p.mount(m, options{flags: unix.MS_REMOUNT | unix.MS_BIND | rest})
	}
	if o.propagation != 0 {
		p.mount(m, options{flags: o.propagation})
	}
	p.forgetBelow(m.Destination)
}

// forgetBelow forgets directories created below a path that a mount has hidden.
func (p *Plan) forgetBelow(dir string) {
	for at := range p.created {
		if strings.HasPrefix(at, dir+"/") {
			delete(p.created, at)
		}
	}
}

// mountCgroups mounts the container's cgroups. With v1, only its own are visible.
func (p *Plan) mountCgroups(m specs.Mount, o options, c Container) {
	const hard = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
	at, readonly := m.Destination, o.flags&unix.MS_RDONLY
	p.createDirectories(at)
	if c.Unified { // the cgroup namespace limits what is visible
		p.mount(specs.Mount{Source: "cgroup", Destination: at, Type: "cgroup2"}, o)
		p.forgetBelow(at)
		return
	}
	p.mount(specs.Mount{Source: "tmpfs", Destination: at, Type: "tmpfs"}, options{flags: hard, data: p.labelOption("tmpfs", "mode=755")})
	p.forgetBelow(at)
	for _, g := range c.Cgroups {
		if g.Hierarchy == "" {
			continue
		}
		dir := path.Join(at, g.Hierarchy)
		p.createDirectories(dir)
		p.bindMount(specs.Mount{Source: g.Dir, Destination: dir}, options{flags: unix.MS_BIND | readonly | hard})
		if strings.Contains(g.Hierarchy, ",") { // cpu,cpuacct has a name for each
			for name := range strings.SplitSeq(g.Hierarchy, ",") {
				p.create(opSymlink, g.Hierarchy, path.Join(at, name))
			}
		}
	}
	p.mount(specs.Mount{Destination: at}, options{flags: unix.MS_REMOUNT | unix.MS_BIND | readonly | hard})
}
