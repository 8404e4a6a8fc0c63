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

// mountFlags are options that are flags; those with set false take one away.
var mountFlags = map[string]struct {
	flag uint64
	set  bool
}{
	"bind": {unix.MS_BIND, true}, "rbind": {unix.MS_BIND | unix.MS_REC, true}, "ro": {unix.MS_RDONLY, true}, "rw": {unix.MS_RDONLY, false},
	"nosuid": {unix.MS_NOSUID, true}, "suid": {unix.MS_NOSUID, false}, "nodev": {unix.MS_NODEV, true}, "dev": {unix.MS_NODEV, false},
	"noexec": {unix.MS_NOEXEC, true}, "exec": {unix.MS_NOEXEC, false}, "relatime": {unix.MS_RELATIME, true}, "noatime": {unix.MS_NOATIME, true},
	"nodiratime": {unix.MS_NODIRATIME, true}, "strictatime": {unix.MS_STRICTATIME, true}, "sync": {unix.MS_SYNCHRONOUS, true},
}

// propagation are options that say which mounts of later go where. None lets a container's mount out.
var propagation = map[string]uint64{
	"private": unix.MS_PRIVATE, "rprivate": unix.MS_PRIVATE | unix.MS_REC, "slave": unix.MS_SLAVE, "rslave": unix.MS_SLAVE | unix.MS_REC,
}

// fileSystems are what may be mounted, each with the options that the kernel is told as text.
var fileSystems = map[string][]string{
	"proc": {"hidepid="}, "sysfs": nil, "mqueue": nil, "tmpfs": {"mode=", "size=", "nr_inodes=", "uid=", "gid="},
	"devpts": {"newinstance", "ptmxmode=", "mode=", "gid="}, "bind": nil, "cgroup": nil,
}

// options are the options of a mount, taken apart.
type options struct {
	flags, propagation uint64
	data               string
}

// parseOptions takes options apart. What is no flag is text for the file system, and must begin with
// one of known.
func parseOptions(list, known []string) (options, error) {
	var o options
	var data []string
	for _, s := range list {
		if f, ok := mountFlags[s]; ok && f.set {
			o.flags |= f.flag
		} else if ok {
			o.flags &^= f.flag
		} else if p, ok := propagation[s]; ok {
			o.propagation = p
		} else if slices.ContainsFunc(known, func(k string) bool { return s == k || strings.HasSuffix(k, "=") && strings.HasPrefix(s, k) }) {
			data = append(data, s)
		} else {
			return o, fmt.Errorf("option %q is not known to the keeper", s)
		}
	}
	o.data = strings.Join(data, ",")
	// The kernel takes a page, and cuts the rest without a word.
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

// directories makes each directory on the way to a path of the container, and the last.
func (p *Plan) directories(dir string) {
	at := ""
	for part := range strings.SplitSeq(strings.Trim(path.Clean(dir), "/"), "/") {
		at += "/" + part
		if part != "" && !p.made[at] {
			p.made[at] = true
			p.add(opDirectory, [4]string{"", at}, 0o755)
		}
	}
}

// rootfs mounts what the image is made of.
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

// specMount is one mount of the specification.
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
	case !path.IsAbs(m.Destination):
		return refused(field, "is no absolute path")
	}
	if err := p.user.refuseMapped(field, m, o); err != nil {
		return err
	}
	m.Destination = path.Clean(m.Destination)
	switch {
	case m.Destination == "/dev/shm" && m.Source == "shm": // the pod's
		m.Source, o = path.Join(c.PodFiles, "shm"), options{flags: unix.MS_BIND | unix.MS_REC | unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC}
		p.directories(m.Destination)
		p.bind(m, o)
	case m.Type == "cgroup":
		p.cgroups(m.Destination, c.Cgroups)
	case bind && c.IsFile[m.Source]:
		p.directories(path.Dir(m.Destination))
		p.add(opNode, [4]string{"", m.Destination}, unix.S_IFREG|0o644)
		p.bind(m, o)
	case bind:
		p.directories(m.Destination)
		p.bind(m, o)
	default:
		o.data = p.context(m.Type, o.data)
		p.directories(m.Destination)
		p.mount(m, o)
		p.labelled(m)
		p.forget(m.Destination)
	}
	return nil
}

// bind mounts a path of the host. Flags other than bind count only when such a mount is mounted anew.
func (p *Plan) bind(m specs.Mount, o options) {
	m.Type = ""
	if len(m.UIDMappings) > 0 {
		p.add(opMapped, [4]string{m.Source, m.Destination, p.place}, o.flags&unix.MS_REC/unix.MS_REC)
	} else {
		p.mount(m, options{flags: o.flags & (unix.MS_BIND | unix.MS_REC)})
	}
	m.Source = ""
	if rest := o.flags &^ (unix.MS_BIND | unix.MS_REC); rest != 0 {
		p.mount(m, options{flags: unix.MS_REMOUNT | unix.MS_BIND | rest})
	}
	if o.propagation != 0 {
		p.mount(m, options{flags: o.propagation})
	}
	p.forget(m.Destination)
}

// forget: what is mounted at a path has none of the directories that were made there before.
func (p *Plan) forget(dir string) {
	for at := range p.made {
		if strings.HasPrefix(at, dir+"/") {
			delete(p.made, at)
		}
	}
}

// cgroups shows the container its own cgroup of each hierarchy, and lets it write to none.
func (p *Plan) cgroups(at string, cgroups []Cgroup) {
	const hard = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
	p.directories(at)
	p.mount(specs.Mount{Source: "tmpfs", Destination: at, Type: "tmpfs"}, options{flags: hard, data: p.context("tmpfs", "mode=755")})
	p.forget(at)
	for _, g := range cgroups {
		dir := path.Join(at, g.Hierarchy)
		p.directories(dir)
		p.bind(specs.Mount{Source: g.Dir, Destination: dir}, options{flags: unix.MS_BIND | unix.MS_RDONLY | hard})
	}
	p.mount(specs.Mount{Destination: at}, options{flags: unix.MS_REMOUNT | unix.MS_BIND | unix.MS_RDONLY | hard})
}
