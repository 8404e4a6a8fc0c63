package plan

import (
	"fmt"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// nodes are the default devices of each container, and links the default symbolic links in /dev.
var (
	nodes = []struct {
		name         string
		major, minor uint32
	}{{"null", 1, 3}, {"zero", 1, 5}, {"full", 1, 7}, {"random", 1, 8}, {"urandom", 1, 9}, {"tty", 5, 0}}
	links = [][2]string{
		{"fd", "/proc/self/fd"}, {"stdin", "/proc/self/fd/0"}, {"stdout", "/proc/self/fd/1"}, {"stderr", "/proc/self/fd/2"}, {"ptmx", "pts/ptmx"},
	}
)

// deviceKinds are the types of linux.devices.
var deviceKinds = map[string]uint64{"c": unix.S_IFCHR, "u": unix.S_IFCHR, "b": unix.S_IFBLK, "p": unix.S_IFIFO}

// createDevices creates the default devices and those of the specification, which take precedence.
// A bind mount at /dev has its own.
func (p *Plan) createDevices(spec *specs.Spec) {
	if slices.ContainsFunc(spec.Mounts, func(m specs.Mount) bool {
		return path.Clean(m.Destination) == "/dev" && (slices.Contains(m.Options, "bind") || slices.Contains(m.Options, "rbind"))
	}) {
		return
	}
	for _, d := range spec.Linux.Devices {
		mode := uint64(0o666)
		if d.FileMode != nil {
			mode = uint64(d.FileMode.Perm())
		}
		at := path.Clean(d.Path)
		if at == "/dev/ptmx" { // the container's own
			continue
		}
		uid, gid := id(d.UID), id(d.GID)
		if p.userns != nil {
			uid, gid = uid+uint64(p.userns.uids.HostID), gid+uint64(p.userns.gids.HostID)
		}
		p.createDirectories(path.Dir(at))
		p.create(opMknod, "", at, deviceKinds[d.Type]|mode, unix.Mkdev(uint32(d.Major), uint32(d.Minor)), uid, gid)
	}
	p.createDirectories("/dev")
	for _, n := range nodes {
		p.create(opMknod, "", "/dev/"+n.name, unix.S_IFCHR|0o666, unix.Mkdev(n.major, n.minor))
	}
	for _, l := range links {
		p.create(opSymlink, l[1], "/dev/"+l[0])
	}
	if _, err := os.Stat(kcore); err == nil { // not every kernel has it
		p.create(opSymlink, kcore, "/dev/core")
	}
}

// kcore is the kernel's memory, which is masked in a container. The link to it exists for programs
// that expect it.
const kcore = "/proc/kcore"

func id(n *uint32) uint64 {
	if n == nil {
		return 0
	}
	return uint64(*n)
}

// validateDevices validates the devices of a container.
func validateDevices(c Container) error {
	u, err := userNamespaceOf(c.Spec)
	if err != nil {
		return err
	}
	for i, d := range c.Spec.Linux.Devices {
		field := fmt.Sprintf("linux.devices[%d]", i)
		switch {
		case !path.IsAbs(d.Path) || path.Clean(d.Path) == "/":
			return unsupported(field, "%q is no absolute path below the root", d.Path)
		case deviceKinds[d.Type] == 0:
			return unsupported(field, "%s is of type %q", d.Path, d.Type)
		case d.Major < 0 || d.Minor < 0 || d.Major > 1<<12-1 || d.Minor > 1<<20-1:
			return unsupported(field, "%s has the number %d:%d", d.Path, d.Major, d.Minor)
		case u != nil && (id(d.UID) >= uint64(u.uids.Size) || id(d.GID) >= uint64(u.gids.Size)):
			return unsupported(field, "%s has an owner that the user namespace does not have", d.Path)
		}
	}
	return nil
}

// validateDeviceRules validates the device rules, whether the device exists or not.
func validateDeviceRules(rules []specs.LinuxDeviceCgroup) error {
	for i, r := range rules {
		field := fmt.Sprintf("linux.resources.devices[%d]", i)
		switch {
		case !slices.Contains([]string{"", "a", "b", "c"}, r.Type):
			return unsupported(field, "is of type %q", r.Type)
		case r.Access == "" || strings.Trim(r.Access, "rwm") != "":
			return unsupported(field, "has the access %q", r.Access)
		}
	}
	return nil
}
