package kuberuntime

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	v1 "k8s.io/api/core/v1"

	"berth/internal/beneath"
	"berth/internal/crispec"
)

// nodeHosts is the node's own list of hosts.
const nodeHosts = "/etc/hosts"

// writeHosts writes the pod's managed /etc/hosts and returns its path, or "" for a pod without an address.
func (r *Runtime) writeHosts(p *v1.Pod, ips []string) (string, error) {
	var content []byte
	switch {
	case p.Spec.HostNetwork:
		node, err := os.ReadFile(nodeHosts)
		if err != nil {
			return "", fmt.Errorf("hosts file: %w", err)
		}
		content = crispec.NodeHostsFile(node, p.Spec.HostAliases)
	case len(ips) == 0:
		return "", nil
	default:
		ips = crispec.OnePerFamily(ips, r.HostIPs())
		content = crispec.HostsFile(crispec.ComputeNames(p, r.DNS.Domain), ips, p.Spec.HostAliases)
	}
	path := filepath.Join(r.podDir(p.UID), "etc-hosts")
	if err := ensureContent(r.files(), path, content); err != nil {
		return "", fmt.Errorf("hosts file: %w", err)
	}
	return path, nil
}

// ensureContent writes the file in its place, which is mounted into containers already: another file of the name would not be seen by them.
// What is as it should be is not touched, so that nobody finds it empty. Containers may have written to it, as much as they liked.
func ensureContent(files beneath.Root, path string, content []byte) (err error) {
	f, err := files.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
		return errors.Join(err, fmt.Errorf("%s is not a regular file: remove it", path))
	}
	// Containers run as any user: the mode must hold whatever the umask.
	if err := f.Chmod(0o644); err != nil {
		return err
	}
	have, err := io.ReadAll(io.LimitReader(f, int64(len(content))+1))
	if err != nil || bytes.Equal(have, content) {
		return err
	}
	if err := f.Truncate(0); err != nil {
		return err
	}
	_, err = f.WriteAt(content, 0)
	return err
}

// thermalThrottles returns the counters of the processors' heat, from which a container could learn what its neighbours do.
func thermalThrottles() []string {
	found, _ := filepath.Glob("/sys/devices/system/cpu/cpu[0-9]*/thermal_throttle") // fails only for a bad pattern
	return found
}
