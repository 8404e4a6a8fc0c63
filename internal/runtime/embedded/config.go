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

// Config says where the runtime lives and what it may use. Root and RunDir belong to one agent at a
// time; the caller holds the lock.
type Config struct {
	// Root is the agent's root directory, an absolute path; the bundle, the images and containerd's
	// database live below it.
	Root string
	// RunDir is the agent's run directory, an absolute and short path; sockets and what a reboot
	// may forget live below it.
	RunDir string
	// Subnets are the ranges of the pods: one, or one of each family, such as 10.88.0.0/16 and
	// fd00:88::/64. None means the first free /16 of 10.88 to 10.127 and 172.20 to 172.31,
	// remembered.
	Subnets []string
	// Assigned: a cluster gives the ranges (SetPodCIDRs), and none is chosen. Before it has, pods
	// have no network, or that of the ranges which it gave last.
	Assigned bool
	// NetworkPlugins is the folder in which network plugins put their configuration, such as
	// /etc/cni/net.d: the first file there is used instead of the bridge (CNI specification). Empty
	// means that none is looked for.
	NetworkPlugins string
	// CgroupDriver is "cgroupfs" or "systemd"; empty means systemd where systemd runs the host on
	// cgroup v2, else cgroupfs.
	CgroupDriver string
	// SELinux: containers and their volumes are labelled by the host's policy, which must know of
	// containers and let this process start them.
	SELinux bool
	// PullProgressDeadline ends a pull of which less than 64 KiB have come in this time. 0 is the
	// default.
	PullProgressDeadline time.Duration
	// BundleFile is a bundle to use in place of the one in the binary; empty means the latter.
	BundleFile string
	// Cgroups knows the cgroups of containers; nil means that those of orphans stay.
	Cgroups Cgroups
	// Log receives what the runtime does; nil means slog.Default().
	Log *slog.Logger
	// NetworkChanged, if set, is called when containerd is given another network for pods. It must
	// not block.
	NetworkChanged func()
	// Recovered, if set, is called when a damaged store of containerd was recovered. It must not
	// block.
	Recovered func(Recovery)
	// Restarted, if set, is called from Run each time that containerd had ended and answers again.
	Restarted func()
}

// Cgroups finds and removes cgroups of sandboxes and containers in which nothing runs.
type Cgroups interface {
	// EmptyContainers returns directories by the ids of their sandboxes and containers.
	EmptyContainers() (map[string][]string, error)
	// RemoveEmpty removes the directories of one of them.
	RemoveEmpty(dirs []string) error
}

// maxSocketPath is what the kernel takes for the path of a unix socket, without its final zero
// (unix(7)).
const maxSocketPath = 107

// check returns what is wrong with the configuration, naming the field.
func (c Config) check() error {
	var errs []error
	for _, dir := range []struct{ field, path string }{{"Root", c.Root}, {"RunDir", c.RunDir}} {
		if !filepath.IsAbs(dir.path) || filepath.Clean(dir.path) != dir.path || dir.path == "/" {
			errs = append(errs, fmt.Errorf("%s %q: must be a clean absolute path below /", dir.field, dir.path))
		}
		// Colons and commas separate the options of an overlay mount; quotes and backslashes those
		// of the configuration.
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

// parseSubnets reads the ranges of the pods: at most one of each family, written with its network
// address, and large enough for a few pods.
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

// EndpointIn is the Endpoint of the runtime with a run directory.
func EndpointIn(runDir string) string { return "unix://" + paths{run: runDir}.socket() }

// paths are the places of the runtime.
type paths struct{ root, run string }

func (p paths) bundles() string { return filepath.Join(p.root, "bundle") }

// current is the stable link to the bundle in use; shims remember paths below it for the life of
// their containers.
func (p paths) current() string { return filepath.Join(p.bundles(), "current") }

// metadata is containerd's database of all that is not kept elsewhere.
func (p paths) metadata() string { return p.home() + "/io.containerd.metadata.v1.bolt/meta.db" }

// corrupt is where databases are kept that containerd could not use, for whoever wants to know what
// was in them.
func (p paths) corrupt() string { return p.home() + ".corrupt" }

func (p paths) home() string        { return filepath.Join(p.root, "containerd") }
func (p paths) state() string       { return filepath.Join(p.run, "containerd") }
func (p paths) runc() string        { return filepath.Join(p.run, "runc") }
func (p paths) namespaces() string  { return p.state() + "/io.containerd.grpc.v1.cri/netns" }
func (p paths) keepers() string     { return p.state() + "/keepers" } // one folder for each pod
func (p paths) shimSockets() string { return filepath.Join(p.run, "s") }

// shimSocket is the socket of the shim of a sandbox (containerd's pkg/shim, CreateSocketAddress).
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

// registries is where an administrator says how registries are reached: a folder for each, named
// after it, with containerd's hosts.toml.
func (p paths) registries() string { return filepath.Join(p.root, "registries") }

// addresses is where host-local keeps the leases; pod addresses do not survive a reboot, so neither
// do they.
func (p paths) addresses() string { return filepath.Join(p.run, "addresses") }

// BridgePrefix is what the names of the bridges of pods begin with.
const BridgePrefix = "berth"

// bridge names the pods' network, and the first of its bridges, after the root directory, so that
// agents with different roots have different bridges. Interface names have at most 15 bytes.
func (p paths) bridge() string {
	sum := sha256.Sum256([]byte(p.root))
	return BridgePrefix + hex.EncodeToString(sum[:4])
}

// bridges are the names that the pods' bridge can have: another range has another bridge while pods
// are in the one before.
func (p paths) bridges() []string {
	return []string{p.bridge(), p.bridge() + "-2", p.bridge() + "-3"}
}
