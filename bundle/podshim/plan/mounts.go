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
	said               bool // flags were set or explicitly cleared
}

// parseOptions parses options. Those that are not flags are passed to the file system, and must
// begin with one of known.
func parseOptions(list, known []string) (options, error) {
	var o options
	var data []string
	for _, s := range list {
		if f, ok := mountFlags[s]; ok && f.set {
			o.flags, o.said = o.flags|f.flag, o.said || f.flag&unix.MS_BIND == 0
		} else if ok {
			o.flags, o.said = o.flags&^f.flag, true
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
	st := step{op: o, s: s}
	copy(st.n[:], n)
	p.steps = append(p.steps, st)
}

// mount mounts source on a path of the container.
func (p *Plan) mount(m specs.Mount, o options) {
	p.add(opInside, [4]string{m.Source, m.Destination, m.Type, o.data}, o.flags)
}

// make creates a node, link or directory at a path of the container.
func (p *Plan) make(o op, target, at string, n ...uint64) {
	dir, name := path.Split(at)
	p.add(o, [4]string{target, dir, name}, n...)
}

// directories creates a directory of the container with its parents.
func (p *Plan) directories(dir string) {
	at := ""
	for part := range strings.SplitSeq(strings.Trim(path.Clean(dir), "/"), "/") {
		at += "/" + part
		if part != "" && !p.made[at] {
			p.made[at] = true
			p.make(opDirectory, "", at, 0o755)
		}
	}
}

// rootfs mounts the image.
func (p *Plan) rootfs(mounts []*types.Mount) error {
	for i, m := range mounts {
		field := fmt.Sprintf("rootfs[%d]", i)
		if m.Type != "overlay" && m.Type != "bind" || m.Target != "" {
			return refused(field, "is of type %q at %q", m.Type, m.Target)
		}
		m, err := p.mappedRootfs(field, m)
		if err != nil {
			return err
		}
		o, err := parseOptions(m.Options, []string{"lowerdir=", "upperdir=", "workdir=", "index=", "userxattr", "metacopy=", "redirect_dir=", "volatile", "context="})
		if err != nil {
			return refused(field, "%s", err)
		}
		p.add(opMount, [4]string{m.Source, p.root, m.Type, o.data}, o.flags)
	}
	p.add(opMount, [4]string{"", p.root}, unix.MS_PRIVATE)
	p.add(opRoot, [4]string{})
	return nil
}

// specMount adds one mount of the specification.
func (p *Plan) specMount(c Container, i int) error {
	m := c.Spec.Mounts[i]
	field := fmt.Sprintf("mounts[%d] (%s)", i, m.Destination)
	known, ok := fileSystems[m.Type]
	list, err := p.user.hostIDs(field, m.Options)
	if err != nil {
		return err
	}
	o, err := parseOptions(list, known)
	bind := o.flags&unix.MS_BIND != 0
	switch {
	case err != nil:
		return refused(field, "%s", err)
	case !ok && !(m.Type == "" && bind), m.Type == "bind" && !bind:
		return refused(field, "is of type %q", m.Type)
	case bind && !path.IsAbs(m.Source) && (m.Destination != devShm || m.Source != "shm"):
		return refused(field, "source %q is no absolute path", m.Source)
	case m.Type == "proc" && c.Proc != "" && o.data != "":
		return refused(field, "has the options %q, and the processes that it shows are of others", o.data)
	case o.recursive && c.Trees[i].At == "":
		return refused(field, "is no bind mount of the host, and has recursive options")
	case !path.IsAbs(m.Destination):
		return refused(field, "is no absolute path")
	}
	if err := p.user.refuseMapped(field, m, o); err != nil {
		return err
	}
	m.Destination = path.Clean(m.Destination)
	switch {
	case m.Destination == devShm && m.Source == "shm":
		p.shm(c)
	case m.Type == "proc" && newProcfs(c):
		p.directories(m.Destination)
		p.add(opProcfs, [4]string{"", m.Destination}, o.flags)
		p.forget(m.Destination)
	case m.Type == "proc" && c.Proc != "":
		p.directories(m.Destination)
		p.add(opAttach, [4]string{theirs, m.Destination})
		p.change(m, o)
		p.forget(m.Destination)
	case m.Type == "cgroup":
		p.cgroups(m, o, c)
	case bind && c.Trees[i].File:
		p.directories(path.Dir(m.Destination))
		p.make(opNode, "", m.Destination, unix.S_IFREG|0o644)
		p.tree(m, o, c.Trees[i])
	case bind:
		p.directories(m.Destination)
		p.tree(m, o, c.Trees[i])
		// With a volume at /dev, containerd omits its own mounts below /dev, including this one.
		if m.Destination == "/dev" && !slices.ContainsFunc(c.Spec.Mounts, func(m specs.Mount) bool { return path.Clean(m.Destination) == devShm }) {
			p.shm(c)
		}
	default:
		o.data = p.context(m.Type, o.data)
		p.directories(m.Destination)
		p.mount(m, o)
		if m.Type == "sysfs" && o.flags&unix.MS_RDONLY == 0 { // the pod has one instance, which another container may have made read-only
			p.mount(m, options{flags: unix.MS_REMOUNT | o.flags})
		}
		p.labelled(m)
		p.forget(m.Destination)
	}
	return nil
}

const devShm = "/dev/shm"

// shm mounts the pod's /dev/shm.
func (p *Plan) shm(c Container) {
	o := options{flags: unix.MS_BIND | unix.MS_REC, said: true}
	if p.user != nil { // as the kernel sets it for a bind mount in a user namespace
		o.flags |= unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
	}
	p.directories(devShm)
	p.bind(specs.Mount{Destination: devShm, Source: path.Join(c.PodFiles, "shm")}, o)
}

// tree mounts an opened path of the host. Without a propagation option, later mounts on the host
// appear in it, but not the reverse.
func (p *Plan) tree(m specs.Mount, o options, t Tree) {
	if t.At == "" {
		p.bind(m, o)
		return
	}
	if o.propagation == 0 {
		o.propagation = unix.MS_SLAVE | unix.MS_REC
	}
	p.add(opAttach, [4]string{t.At, m.Destination, m.Source}) // the source is only for errors
	p.change(m, o)
}

// bind mounts a path of the pod's directory.
func (p *Plan) bind(m specs.Mount, o options) {
	m.Type = ""
	if len(m.UIDMappings) > 0 {
		p.add(opMapped, [4]string{m.Source, m.Destination, p.place}, o.flags&unix.MS_REC/unix.MS_REC)
	} else {
		p.mount(m, options{flags: o.flags & (unix.MS_BIND | unix.MS_REC)})
	}
	p.change(m, o)
}

// change applies a bind mount's options, which need a remount.
func (p *Plan) change(m specs.Mount, o options) {
	m.Source, m.Type = "", ""
	if rest := o.flags &^ (unix.MS_BIND | unix.MS_REC); rest != 0 || o.said {
		p.mount(m, options{flags: unix.MS_REMOUNT | unix.MS_BIND | rest})
	}
	if o.propagation != 0 {
		p.mount(m, options{flags: o.propagation})
	}
	p.forget(m.Destination)
}

// forget forgets directories created below a path that a mount has hidden.
func (p *Plan) forget(dir string) {
	for at := range p.made {
		if strings.HasPrefix(at, dir+"/") {
			delete(p.made, at)
		}
	}
}

// cgroups mounts the container's cgroups. With v1, only its own are visible.
func (p *Plan) cgroups(m specs.Mount, o options, c Container) {
	const hard = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
	at, readonly := m.Destination, o.flags&unix.MS_RDONLY
	p.directories(at)
	if c.Unified { // the cgroup namespace limits what is visible
		p.mount(specs.Mount{Source: "cgroup", Destination: at, Type: "cgroup2"}, o)
		p.forget(at)
		return
	}
	p.mount(specs.Mount{Source: "tmpfs", Destination: at, Type: "tmpfs"}, options{flags: hard, data: p.context("tmpfs", "mode=755")})
	p.forget(at)
	for _, g := range c.Cgroups {
		if g.Hierarchy == "" {
			continue
		}
		dir := path.Join(at, g.Hierarchy)
		p.directories(dir)
		p.bind(specs.Mount{Source: g.Dir, Destination: dir}, options{flags: unix.MS_BIND | readonly | hard})
		if strings.Contains(g.Hierarchy, ",") { // cpu,cpuacct has a name for each
			for name := range strings.SplitSeq(g.Hierarchy, ",") {
				p.make(opLink, g.Hierarchy, path.Join(at, name))
			}
		}
	}
	p.mount(specs.Mount{Destination: at}, options{flags: unix.MS_REMOUNT | unix.MS_BIND | readonly | hard})
}
