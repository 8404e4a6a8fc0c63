package preflight

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"berth/internal/host/selinux"
)

// errNoSELinux is returned if the host has no SELinux, or a policy without container types.
var errNoSELinux = errors.New("not enabled, or without a policy for containers")

// CheckContainerLabels returns an error if the host's SELinux cannot confine containers.
func CheckContainerLabels() error {
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

// HasCapability reports whether this process has the capability in its effective set.
func HasCapability(capability int) bool {
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

// RejectedError means that the kernel rejects overlay mounts.
type RejectedError struct{ Err error }

func (e RejectedError) Error() string { return e.Err.Error() }
func (e RejectedError) Unwrap() error { return e.Err }

// trialPrefix is the name prefix of directories for overlay trials.
const trialPrefix = ".overlay-"

// TryOverlay mounts and unmounts an overlay below dir: some kernels, file systems and containers do
// not support it. The error is a RejectedError if the kernel does not.
func TryOverlay(dir string) (err error) {
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
			err = RejectedError{err}
		}
		return fmt.Errorf("mount an overlay in %s: %w", dir, err)
	}
	return unix.Unmount(at("merged"), unix.MNT_DETACH)
}
