package kuberuntime

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	v1 "k8s.io/api/core/v1"

	"berth/internal/host/safepath"
	"berth/internal/runtime/crispec"
)

const nodeHosts = "/etc/hosts"

// hostsFiles writes the managed /etc/hosts of pods.
type hostsFiles struct {
	files   podFiles
	hostIPs func() []string
	domain  string // of the cluster
}

// write writes the pod's managed /etc/hosts and returns its path, or "" if the pod has no address.
func (h *hostsFiles) write(p *v1.Pod, ips []string) (string, error) {
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
		ips = crispec.OnePerFamily(ips, h.hostIPs())
		content = crispec.HostsFile(crispec.ComputeNames(p, h.domain), ips, p.Spec.HostAliases)
	}
	path := filepath.Join(h.files.dir(p.UID), "etc-hosts")
	if err := ensureContent(h.files.Root, path, content); err != nil {
		return "", fmt.Errorf("hosts file: %w", err)
	}
	return path, nil
}

// ensureContent rewrites the file in place: containers have it mounted and would not see a
// replacement. Unchanged content is not rewritten, so that no reader finds the file empty.
// Containers may have written to it, without a size limit.
func ensureContent(files safepath.Root, path string, content []byte) (err error) {
	f, err := files.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
		return errors.Join(err, fmt.Errorf("%s is not a regular file: remove it", path))
	}
	// Containers run as any user: the mode must not depend on the umask.
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
