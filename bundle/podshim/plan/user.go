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

// UserNamespaceFD is the descriptor of the pod's user namespace in the pod shim, if the pod has
// one. The shim itself is not in it.
const UserNamespaceFD = 5

// UserNamespacePath returns the path of that descriptor.
func UserNamespacePath(podshim uint32) string {
	return fmt.Sprintf("/proc/%d/fd/%d", podshim, UserNamespaceFD)
}

// HasUserNamespace reports whether a container is in a user namespace.
func HasUserNamespace(spec *specs.Spec) bool {
	return slices.ContainsFunc(spec.Linux.Namespaces, func(n specs.LinuxNamespace) bool { return n.Type == specs.UserNamespace })
}

// userNamespace is the ID mapping of a container's user namespace.
type userNamespace struct {
	uids, gids specs.LinuxIDMapping
}

// userNamespaceOf returns the mapping of a specification, or nil. validateNamespaces validates the
// fields.
func userNamespaceOf(spec *specs.Spec) (*userNamespace, error) {
	has := HasUserNamespace(spec)
	for field, ids := range map[string][]specs.LinuxIDMapping{"linux.uidMappings": spec.Linux.UIDMappings, "linux.gidMappings": spec.Linux.GIDMappings} {
		switch {
		case !has && len(ids) > 0:
			return nil, unsupported(field, "is set, and linux.namespaces has none of type user")
		case has && (len(ids) != 1 || ids[0].ContainerID != 0 || ids[0].Size == 0):
			return nil, unsupported(field, "must be one range, which begins with 0 in the container")
		}
	}
	if !has {
		return nil, nil
	}
	return &userNamespace{spec.Linux.UIDMappings[0], spec.Linux.GIDMappings[0]}, nil
}

// setOwner makes the container's root the owner of what the pod shim creates in it, and of its
// standard streams.
func (p *Plan) setOwner() {
	if p.userns != nil {
		const keep = 1 << 2 // SECBIT_NO_SETUID_FIXUP: preserves capabilities
		p.prctl(unix.PR_SET_SECUREBITS, keep)
		p.add(opSetOwner, [4]string{}, uint64(p.userns.uids.HostID), uint64(p.userns.gids.HostID))
		p.prctl(unix.PR_SET_SECUREBITS, 0)
	}
}

// mapping formats a mapping as a mount option.
func mapping(m specs.LinuxIDMapping) string {
	return fmt.Sprintf("%d:%d:%d", m.ContainerID, m.HostID, m.Size)
}

// mappedRootfs maps the lower directories of an overlay to the IDs of the user namespace, and
// returns the mount to make then. containerd requests it with the options uidmap and gidmap;
// without them, it has made a copy of the image with these IDs.
func (p *Plan) mappedRootfs(field string, m *types.Mount) (*types.Mount, error) {
	u := p.userns
	var rest []string
	maps, lower := map[string]string{}, -1
	for _, o := range m.Options {
		switch k, v, _ := strings.Cut(o, "="); k {
		case "uidmap", "gidmap":
			maps[k] = v
			continue
		case "lowerdir":
			lower = len(rest)
		}
		rest = append(rest, o)
	}
	switch {
	case len(maps) == 0:
		return m, nil
	case u == nil:
		return nil, unsupported(field, "has mapped ids, and the container has no user namespace")
	case maps["uidmap"] != mapping(u.uids) || maps["gidmap"] != mapping(u.gids):
		return nil, unsupported(field, "maps ids as %v, and the user namespace as %s and %s", maps, mapping(u.uids), mapping(u.gids))
	case m.Type != "overlay" || lower < 0:
		return nil, unsupported(field, "is a %s with mapped ids: only layers of an image may have them", m.Type)
	}
	dirs := strings.Split(strings.TrimPrefix(rest[lower], "lowerdir="), ":")
	common := commonDir(dirs)
	for i, d := range dirs {
		if !path.IsAbs(d) || common == "/" {
			return nil, unsupported(field, "its layers %q are in no folder together", dirs)
		}
		dirs[i] = p.root + strings.TrimPrefix(d, common)
	}
	rest[lower] = "lowerdir=" + strings.Join(dirs, ":")
	// The mapped layers are mounted where the overlay is then mounted on top.
	p.add(opOpenRoot, [4]string{})
	p.add(opMountIDMapped, [4]string{common, "/", p.usernsPath})
	return &types.Mount{Type: m.Type, Source: m.Source, Options: rest}, nil
}

// commonDir returns the common parent directory.
func commonDir(dirs []string) string {
	common := path.Dir(dirs[0])
	for _, d := range dirs {
		for common != "/" && common != "." && !strings.HasPrefix(d, common+"/") {
			common = path.Dir(common)
		}
	}
	return common
}

// validateMapping validates the ID mapping of a mount of the specification.
func (u *userNamespace) validateMapping(field string, m specs.Mount, o options) error {
	switch {
	case len(m.UIDMappings)+len(m.GIDMappings) == 0:
		return nil
	case u == nil:
		return unsupported(field, "has mapped ids, and the container has no user namespace")
	case !slices.Equal(m.UIDMappings, []specs.LinuxIDMapping{u.uids}) || !slices.Equal(m.GIDMappings, []specs.LinuxIDMapping{u.gids}):
		return unsupported(field, "has other mapped ids than the user namespace")
	case o.flags&unix.MS_BIND == 0:
		return unsupported(field, "has mapped ids, and is no bind mount")
	}
	return nil
}

// hostIDs converts the IDs in mount options to host IDs.
func (u *userNamespace) hostIDs(field string, list []string) ([]string, error) {
	if u == nil {
		return list, nil
	}
	var out []string
	for _, o := range list {
		for prefix, ids := range map[string]specs.LinuxIDMapping{"uid=": u.uids, "gid=": u.gids} {
			if v, ok := strings.CutPrefix(o, prefix); ok {
				var id uint32
				if _, err := fmt.Sscan(v, &id); err != nil || id >= ids.Size {
					return nil, unsupported(field, "option %q is no id of the user namespace", o)
				}
				o = fmt.Sprint(prefix, ids.HostID+id)
				break
			}
		}
		out = append(out, o)
	}
	return out, nil
}
