// Package selinux reads the host's SELinux configuration for containers.
//
// Owns: nothing.
// Reads: the kernel's selinuxfs, the policy's settings below /etc/selinux, the label of this
// process.
// Writes: the label of a directory in which plugins create sockets.
// Never: changes another label or the enforcing mode.
package selinux

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Labels are the policy's default labels of containers.
type Labels struct {
	// Process is the label of their processes, File that of files that they may write; "" if the
	// policy does not define it.
	Process, File string
}

// ReadLabels returns the labels of the host's policy; none if SELinux is disabled. root is "/".
func ReadLabels(root string) Labels {
	if _, err := os.Stat(filepath.Join(root, selinuxfs, "enforce")); err != nil {
		return Labels{}
	}
	policy := readSetting(filepath.Join(root, "etc/selinux/config"), "SELINUXTYPE")
	if policy == "" || strings.ContainsRune(policy, '/') || policy == ".." {
		return Labels{}
	}
	contexts := filepath.Join(root, "etc/selinux", policy, "contexts/lxc_contexts")
	return Labels{Process: readSetting(contexts, "process"), File: readSetting(contexts, "file")}
}

// pluginsLabel is the kubelet's label for directories in which device plugins and other plugins
// create their sockets: containers may write there.
const pluginsLabel = "system_u:object_r:container_file_t:s0"

// MakePluginsDir creates a directory for plugins' sockets, if it is missing, and labels it if
// SELinux is enabled, so that containers may write there. root is "/".
func MakePluginsDir(root, dir string) error {
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return err
	}
	switch _, err := os.Stat(filepath.Join(root, selinuxfs, "enforce")); {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	}
	if err := unix.Setxattr(dir, "security.selinux", []byte(pluginsLabel), 0); err != nil && !errors.Is(err, unix.ENOTSUP) {
		return fmt.Errorf("label %s with %s: %w", dir, pluginsLabel, err)
	}
	return nil
}

// MayRun reports whether this process and its children may start processes with the label: the
// policy permits it, or is not enforced.
func MayRun(root, label string) (bool, error) {
	enforce, err := os.ReadFile(filepath.Join(root, selinuxfs, "enforce"))
	if err != nil {
		return false, err
	}
	if strings.TrimSpace(string(enforce)) == "0" {
		return true, nil
	}
	current, err := os.ReadFile(filepath.Join(root, "proc/self/attr/current"))
	if err != nil {
		return false, err
	}
	class, err := readNumber(filepath.Join(root, selinuxfs, "class/process/index"))
	if err != nil {
		return false, err
	}
	bit, err := readNumber(filepath.Join(root, selinuxfs, "class/process/perms/transition"))
	if err != nil {
		return false, err
	}
	allowed, err := queryAccess(filepath.Join(root, selinuxfs, "access"), fmt.Sprintf("%s %s %d", strings.TrimRight(string(current), "\x00\n"), label, class))
	if err != nil {
		return false, fmt.Errorf("ask for the label %s: %w", label, err)
	}
	return allowed&(1<<(bit-1)) != 0, nil
}

// selinuxfs is the mount point of the kernel's SELinux interface.
const selinuxfs = "sys/fs/selinux"

// queryAccess queries the permissions of one label on another from the kernel (the file access of
// selinuxfs), and returns them as bits.
func queryAccess(path, question string) (uint32, error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	if _, err := f.WriteString(question); err != nil {
		return 0, err
	}
	answer := make([]byte, 256)
	n, err := f.Read(answer)
	if err != nil {
		return 0, err
	}
	first, _, _ := strings.Cut(string(answer[:n]), " ")
	allowed, err := strconv.ParseUint(first, 16, 32)
	return uint32(allowed), err
}

func readNumber(path string) (int, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err == nil && n < 1 {
		err = fmt.Errorf("%s: %d is not a number of SELinux", path, n)
	}
	return n, err
}

// readSetting returns the value of a setting in a file of lines "name = value", without quotes; ""
// if it is not set.
func readSetting(path, name string) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		key, value, ok := strings.Cut(lines.Text(), "=")
		if ok && strings.TrimSpace(key) == name {
			return strings.Trim(strings.TrimSpace(value), `"`)
		}
	}
	return ""
}
