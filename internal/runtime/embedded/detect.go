package embedded

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/host/cgroups"
	"berth/internal/host/selinux"
)

// maxShimSocketDir is containerd's limit for the directory of shim sockets, whose names are 64
// bytes of hash.
const maxShimSocketDir = 42

// pluginPrograms is the directory of network plugins' programs (default of containerd and CRI-O).
const pluginPrograms = "/opt/cni/bin"

// detectFacts inspects the host without lasting changes.
func detectFacts(cfg Config) (facts, error) {
	p := cfg.paths()
	f := facts{SELinux: cfg.SELinux, RestrictOOM: !hasCapability(unix.CAP_SYS_RESOURCE)}
	before, err := os.ReadFile(p.config())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return f, err
	}
	f.Snapshotter = chooseSnapshotter(string(before), tryOverlay(p.home()))
	if cfg.SELinux {
		if err := labelsContainers(); err != nil {
			return f, fmt.Errorf("containers cannot be labelled: SELinux: %w", err)
		}
		if f.Snapshotter != "overlayfs" { // other snapshotters cannot be labelled by a mount option
			return f, fmt.Errorf("containers cannot be labelled: no overlay can be mounted in %s", p.home())
		}
	}
	switch cfg.CgroupDriver {
	case driverSystemd:
		f.Systemd = true
	case "":
		version, _ := cgroups.Detect()
		f.Systemd = version == 2 && systemdRuns()
	}
	if cfg.NetworkPlugins != "" {
		f.Plugins = pluginPrograms
	}
	if len(p.shimSockets()) <= maxShimSocketDir {
		f.ShimSockets = p.shimSockets()
	}
	return f, nil
}

// errNoSELinux is returned if the host has no SELinux, or a policy without container types.
var errNoSELinux = errors.New("not enabled, or without a policy for containers")

// labelsContainers returns an error if the host's SELinux cannot confine containers.
func labelsContainers() error {
	label := selinux.ReadLabels("/").Process
	if label == "" {
		return errNoSELinux
	}
	may, err := selinux.MayRun("/", label)
	if err == nil && !may {
		err = fmt.Errorf("its policy does not let this process start containers as %s", label)
	}
	return err
}

// systemdRuns reports whether systemd is the host's init (sd_booted(3)).
func systemdRuns() bool {
	fi, err := os.Lstat("/run/systemd/system")
	return err == nil && fi.IsDir()
}

// hasCapability reports whether this process has the capability in its effective set.
func hasCapability(capability int) bool {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(status)) {
		if hex, ok := strings.CutPrefix(line, "CapEff:"); ok {
			set, err := strconv.ParseUint(strings.TrimSpace(hex), 16, 64)
			return err == nil && set&(1<<capability) != 0
		}
	}
	return false
}

// chooseSnapshotter selects the snapshotter by the result of the overlay trial and the previous
// configuration, "" if there was none. An inconclusive trial, as on a disk that is full or
// read-only, does not change the selection, since another snapshotter would restart containerd and
// remove the layers of running containers.
func chooseSnapshotter(before string, trial error) string {
	const overlay, native = "overlayfs", "native"
	refused := errors.As(trial, &refusedError{})
	if refused || trial != nil && strings.Contains(before, "snapshotter = '"+native+"'") {
		return native
	}
	return overlay
}

// refusedError means that the kernel rejects overlay mounts here.
type refusedError struct{ error }

func (e refusedError) Unwrap() error { return e.error }

// trialPrefix is the name prefix of directories for overlay trials.
const trialPrefix = ".overlay-"

// tryOverlay mounts and unmounts an overlay below dir: some kernels, file systems and containers do
// not support it.
func tryOverlay(dir string) (err error) {
	if err := os.MkdirAll(dir, 0o711); err != nil {
		return err
	}
	// Remainders of an agent that was killed in between.
	old, err := filepath.Glob(filepath.Join(dir, trialPrefix+"*"))
	if err != nil {
		return err
	}
	for _, try := range old {
		if err := unix.Unmount(filepath.Join(try, "merged"), unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("unmount the trial of an earlier agent: %w", err)
		}
		if err := os.RemoveAll(try); err != nil {
			return err
		}
	}
	try, err := os.MkdirTemp(dir, trialPrefix)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(try)) }()
	at := func(name string) string { return filepath.Join(try, name) }
	for _, name := range []string{"lower", "upper", "work", "merged"} {
		if err := os.Mkdir(at(name), 0o700); err != nil {
			return err
		}
	}
	options := fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s", at("lower"), at("upper"), at("work"))
	if err := unix.Mount("overlay", at("merged"), "overlay", 0, options); err != nil {
		if !errors.Is(err, unix.ENOSPC) && !errors.Is(err, unix.EDQUOT) && !errors.Is(err, unix.EROFS) {
			err = refusedError{err}
		}
		return fmt.Errorf("mount an overlay in %s: %w", dir, err)
	}
	return unix.Unmount(at("merged"), unix.MNT_DETACH)
}

// detectFirewall returns the firewall back end for the CNI plugins' NAT, or "".
//
// nft is preferred: it takes one command per pod where iptables takes several.
func detectFirewall() string {
	for _, tool := range []struct {
		backend string
		args    []string
	}{
		{nftables, []string{"nft", "list", "tables"}},
		{iptables, []string{"iptables", "-w", "5", "-t", "nat", "-S"}},
	} {
		if runTool(tool.args...) == nil {
			return tool.backend
		}
	}
	return ""
}

// runTool runs a host program from systemPath. The error includes its output.
func runTool(args ...string) error {
	name, err := findTool(args[0])
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, name, args[1:]...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return nil
}

// findTool finds a program in containerd's PATH.
func findTool(name string) (string, error) {
	for dir := range strings.SplitSeq(systemPath, ":") {
		file := filepath.Join(dir, name)
		if fi, err := os.Stat(file); err == nil && fi.Mode().IsRegular() && fi.Mode()&0o111 != 0 {
			return file, nil
		}
	}
	return "", fmt.Errorf("%s: %w in %s", name, exec.ErrNotFound, systemPath)
}
