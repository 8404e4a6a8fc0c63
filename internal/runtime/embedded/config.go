package embedded

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"time"
	"unicode"
)

// Config configures the runtime. Root and RunDir must not be shared between agents; the caller
// holds the lock.
type Config struct {
	// Root is the agent's root directory, an absolute path, for the bundle, the images and
	// containerd's databases.
	Root string
	// RunDir is the agent's run directory, an absolute and short path, for sockets and state that a
	// reboot may delete.
	RunDir string
	// Subnets are the pod ranges: one, or one per IP family, such as 10.88.0.0/16 and fd00:88::/64.
	// If empty, the first free /16 of 10.88 to 10.127 and 172.20 to 172.31 is chosen and persisted.
	Subnets []string
	// Assigned: a cluster assigns the ranges (PodNetwork.SetCIDRs), and none is chosen. Until then,
	// pods have no network, or that of the ranges assigned last.
	Assigned bool
	// NetworkPlugins is the directory of CNI network configurations, such as /etc/cni/net.d: its
	// first file is used instead of the bridge (CNI specification). If empty, the bridge is always
	// used.
	NetworkPlugins string
	// CgroupDriver is "cgroupfs" or "systemd"; empty means systemd if it is the host's init on
	// cgroup v2, else cgroupfs.
	CgroupDriver string
	// SELinux: containers and their volumes are labelled. The host's policy must define a container
	// type and allow this process to start containers.
	SELinux bool
	// PullProgressDeadline cancels a pull that receives less than 64 KiB in this time. 0 is the
	// default.
	PullProgressDeadline time.Duration
	// BundleFile replaces the embedded bundle; empty means the embedded one.
	BundleFile string
	// Cgroups manages container cgroups; nil means that orphaned ones are not removed.
	Cgroups Cgroups
	// Log is the runtime's logger; nil means slog.Default().
	Log *slog.Logger
	// NetworkChanged, if set, is called when the pod network of containerd changes. It must not
	// block.
	NetworkChanged func()
	// Recovered, if set, is called after recovery of a damaged containerd store. It must not block.
	Recovered func(Recovery)
	// Restarted, if set, is called from Run each time that containerd was restarted and responds.
	Restarted func()
}

// Cgroups finds and removes empty cgroups of sandboxes and containers.
type Cgroups interface {
	// EmptyContainers returns cgroup directories by sandbox or container ID.
	EmptyContainers() (map[string][]string, error)
	// RemoveEmpty removes the directories of one sandbox or container.
	RemoveEmpty(dirs []string) error
}

// maxSocketPath is the kernel's limit for the path of a unix socket, without the terminating null
// byte (unix(7)).
const maxSocketPath = 107

// check validates the configuration. Errors name the field.
func (c Config) check() error {
	var errs []error
	for _, dir := range []struct{ field, path string }{{"Root", c.Root}, {"RunDir", c.RunDir}} {
		if !filepath.IsAbs(dir.path) || filepath.Clean(dir.path) != dir.path || dir.path == "/" {
			errs = append(errs, fmt.Errorf("%s %q: must be a clean absolute path below /", dir.field, dir.path))
		}
		// Colons and commas separate overlay mount options; quotes and backslashes are special in
		// containerd's configuration.
		if i := strings.IndexFunc(dir.path, func(r rune) bool { return unicode.IsControl(r) || strings.ContainsRune(`:,'"\`, r) }); i >= 0 {
			errs = append(errs, fmt.Errorf("%s %q: the character %q cannot be used in it", dir.field, dir.path, dir.path[i]))
		}
	}
	if s := newPaths(c.Root, c.RunDir).ttrpcSocket; len(s) > maxSocketPath {
		errs = append(errs, fmt.Errorf("RunDir %q: the socket %s would be %d bytes long, the kernel takes %d; use a shorter run directory",
			c.RunDir, s, len(s), maxSocketPath))
	}
	switch c.CgroupDriver {
	case "", driverCgroupfs, driverSystemd:
	default:
		errs = append(errs, fmt.Errorf("CgroupDriver %q: must be %s, %s or empty", c.CgroupDriver, driverCgroupfs, driverSystemd))
	}
	if _, err := parseSubnets(c.Subnets); err != nil {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// parseSubnets parses pod ranges: at most one per IP family, written with its network address, and
// large enough for a few pods.
func parseSubnets(texts []string) ([]netip.Prefix, error) {
	var out []netip.Prefix
	for _, s := range texts {
		p, err := netip.ParsePrefix(s)
		most := 28
		if p.Addr().Is6() {
			most = 124
		}
		if err != nil || p != p.Masked() || p.Bits() < 8 || p.Bits() > most {
			return nil, fmt.Errorf("pod range %q: must be an IPv4 network between /8 and /28, such as 10.88.0.0/16, or an IPv6 one between /8 and /124, such as fd00:88::/64", s)
		}
		if slices.ContainsFunc(out, func(q netip.Prefix) bool { return q.Addr().Is4() == p.Addr().Is4() }) {
			return nil, fmt.Errorf("pod ranges %s: two are of one family; give one of IPv4, one of IPv6, or one of each", strings.Join(texts, ","))
		}
		out = append(out, p)
	}
	return out, nil
}

const (
	driverCgroupfs = "cgroupfs"
	driverSystemd  = "systemd"
)
