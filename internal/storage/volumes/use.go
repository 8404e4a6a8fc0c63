package volumes

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
)

// Use is the usage of a volume; unknown numbers are 0.
type Use struct {
	Capacity, Available, Used      uint64 // bytes
	Inodes, InodesFree, InodesUsed uint64
	// Abnormal reports whether the volume is abnormal; nil: not reported by its driver.
	Abnormal *bool
	// Source is the origin of the numbers: "statfs", "block", or a driver.
	Source string
}

// Use returns the usage of a pod's volume that has a claim, or is a CSI or NFS volume;
// errors.ErrUnsupported for other volumes and those without usage. It may block until a driver
// answers, at most two minutes, or a server does.
func (m *Manager) Use(ctx context.Context, p *v1.Pod, name string) (Use, error) {
	i := slices.IndexFunc(p.Spec.Volumes, func(v v1.Volume) bool { return v.Name == name })
	podDir, err := m.host.podDir(p.UID)
	if err != nil || i < 0 {
		return Use{}, errors.ErrUnsupported
	}
	v := &volume{pod: p, podDir: podDir, spec: &p.Spec.Volumes[i], bound: m.claims.of(p.UID, name)}
	if k, ok := m.kindOf(v).(measurer); ok {
		return k.use(ctx, v)
	}
	return Use{}, errors.ErrUnsupported
}

// useFileSystem returns the usage of the filesystem of the path.
func (h *host) useFileSystem(path string) (Use, error) {
	f, err := h.files.OpenFile(path, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return Use{}, err
	}
	defer f.Close()
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &st); err != nil {
		return Use{}, fmt.Errorf("statfs %s: %w", path, err)
	}
	block := uint64(st.Frsize)
	return Use{
		Capacity: st.Blocks * block, Available: st.Bavail * block, Used: (st.Blocks - st.Bfree) * block,
		Inodes: st.Files, InodesFree: st.Ffree, InodesUsed: st.Files - st.Ffree, Source: "statfs",
	}, nil
}
