// Package selinux reads what the host's SELinux has to say of containers.
//
// Owns: nothing.
// Reads: the kernel's selinuxfs, the policy's settings below /etc/selinux, the label of this
// process.
// Writes: the label of a folder in which plugins make sockets.
// Never: changes another label, or what is enforced.
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

// Labels are those that a policy gives to containers where nobody asks for others.
type Labels struct {
	// Process is that of their processes, File that of the files that they may write; "" where the
	// policy does not tell.
	Process, File string
}

// ReadLabels returns the labels of the host's policy; none where SELinux is off. root is "/".
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

// pluginsLabel is that of the folders in which device plugins and other plugins make their sockets,
// as the kubelet has it: containers may write there.
const pluginsLabel = "system_u:object_r:container_file_t:s0"

// MakePluginsDir makes a folder in which plugins make their sockets, if it is missing, and lets
// containers write there where SELinux is on. root is "/".
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

// MayRun reports whether this process, and what it starts, may start processes with the label: the
// policy allows it, or it is not enforced.
func MayRun(root, label string) (bool, error) {
	enforce, err := os.ReadFile(filepath.Join(root, selinuxfs, "enforce"))
	if err != nil {
		return false, err
	}
	if strings.TrimSpace(string(enforce)) == "0" {
		return true, nil
	}
	own, err := os.ReadFile(filepath.Join(root, "proc/self/attr/current"))
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
	allowed, err := ask(filepath.Join(root, selinuxfs, "access"), fmt.Sprintf("%s %s %d", strings.TrimRight(string(own), "\x00\n"), label, class))
	if err != nil {
		return false, fmt.Errorf("ask for the label %s: %w", label, err)
	}
	return allowed&(1<<(bit-1)) != 0, nil
}

// selinuxfs is where the kernel's side of SELinux is mounted.
const selinuxfs = "sys/fs/selinux"

// ask has the kernel decide what one label may do to another (the file access of selinuxfs), and
// returns the permissions as bits.
func ask(path, question string) (uint32, error) {
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

// readSetting returns what a file of lines "name = value" says, without quotes; "" when it says
// nothing.
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
