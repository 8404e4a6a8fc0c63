package embedded

import (
	"crypto/sha256"
	"encoding/hex"
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
	// Assigned: a cluster assigns the ranges (SetPodCIDRs), and none is chosen. Until then, pods
	// have no network, or that of the ranges assigned last.
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
	if s := c.paths().ttrpcSocket(); len(s) > maxSocketPath {
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

func (c Config) paths() paths { return paths{root: c.Root, run: c.RunDir} }

// EndpointIn returns the Endpoint of the runtime with a run directory.
func EndpointIn(runDir string) string { return "unix://" + paths{run: runDir}.socket() }

// paths are the runtime's files and directories.
type paths struct{ root, run string }

func (p paths) bundles() string { return filepath.Join(p.root, "bundle") }

// current is the stable link to the bundle in use; shims use paths below it while their containers
// exist.
func (p paths) current() string { return filepath.Join(p.bundles(), "current") }

// metadata is containerd's main database.
func (p paths) metadata() string { return p.home() + "/io.containerd.metadata.v1.bolt/meta.db" }

// corrupt is the directory for broken databases, which are retained for inspection.
func (p paths) corrupt() string { return p.home() + ".corrupt" }

func (p paths) home() string        { return filepath.Join(p.root, "containerd") }
func (p paths) state() string       { return filepath.Join(p.run, "containerd") }
func (p paths) runc() string        { return filepath.Join(p.run, "runc") }
func (p paths) namespaces() string  { return p.state() + "/io.containerd.grpc.v1.cri/netns" }
func (p paths) podshims() string    { return p.state() + "/keepers" } // one directory per pod
func (p paths) shimSockets() string { return filepath.Join(p.run, "s") }

// shimSocket is the socket of a sandbox's shim (containerd's pkg/shim, CreateSocketAddress).
func (p paths) shimSocket(id string) string {
	sum := sha256.Sum256([]byte(filepath.Join(p.socket(), podNamespace, id)))
	return filepath.Join(p.shimSockets(), hex.EncodeToString(sum[:]))
}

func (p paths) socket() string      { return filepath.Join(p.run, "containerd.sock") }
func (p paths) ttrpcSocket() string { return p.socket() + ".ttrpc" }
func (p paths) record() string      { return filepath.Join(p.run, "containerd.json") }

func (p paths) settings() string { return filepath.Join(p.root, "runtime") }
func (p paths) config() string   { return filepath.Join(p.settings(), "containerd.toml") }
func (p paths) cniConf() string  { return filepath.Join(p.settings(), "cni") }
func (p paths) conflist() string { return filepath.Join(p.cniConf(), "10-berth.conflist") }
func (p paths) network() string  { return filepath.Join(p.settings(), "network.json") }
func (p paths) log() string      { return filepath.Join(p.settings(), "containerd.log") }

// registries is the directory of registry configurations: one directory per registry, named after
// it, with containerd's hosts.toml.
func (p paths) registries() string { return filepath.Join(p.root, "registries") }

// addresses is host-local's directory of leases; pod addresses do not survive a reboot, so neither
// do the leases.
func (p paths) addresses() string { return filepath.Join(p.run, "addresses") }

// BridgePrefix is the name prefix of pod bridges.
const BridgePrefix = "berth"

// bridge is the name of the pod network and of its first bridge, derived from the root directory,
// so that agents with different roots use different bridges. Interface names have at most 15 bytes.
func (p paths) bridge() string {
	sum := sha256.Sum256([]byte(p.root))
	return BridgePrefix + hex.EncodeToString(sum[:4])
}

// bridges are the possible names of the pod bridge: a new range gets another bridge while pods use
// the previous one.
func (p paths) bridges() []string {
	return []string{p.bridge(), p.bridge() + "-2", p.bridge() + "-3"}
}
