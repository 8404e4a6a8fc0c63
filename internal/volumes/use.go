package volumes

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	csiapi "github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
)

// abnormalReason is of the event about a volume whose driver says that it is in a bad state; the word is the kubelet's.
const abnormalReason = "VolumeConditionAbnormal"

// Use is what is used of a volume; numbers that nobody tells are 0.
type Use struct {
	Capacity, Available, Used      uint64 // bytes
	Inodes, InodesFree, InodesUsed uint64
	// Abnormal says whether the volume is in a bad state; nil: its driver does not tell.
	Abnormal *bool
}

// Use returns what is used of a pod's volume that has a claim, or is of a CSI driver or NFS; errors.ErrUnsupported of others, and of those of which nothing
// can be known. It may last as long as a driver's answer, at most two minutes, or a server's.
func (m *Manager) Use(ctx context.Context, p *v1.Pod, volume string) (Use, error) {
	i := slices.IndexFunc(p.Spec.Volumes, func(v v1.Volume) bool { return v.Name == volume })
	podDir, err := m.podDir(p.UID)
	if err != nil || i < 0 {
		return Use{}, errors.ErrUnsupported
	}
	v := &p.Spec.Volumes[i]
	m.mu.Lock()
	b, isBound := m.bound[p.UID][volume]
	m.mu.Unlock()
	switch {
	case v.CSI != nil:
		return m.useCSI(ctx, p, podDir, inlineCSI(p, v))
	case v.NFS != nil:
		return m.useFileSystem(filepath.Join(podDir, "volumes", nfsPlugin, v.Name))
	case !isBound:
		return Use{}, errors.ErrUnsupported
	case b.Spec.CSI != nil:
		return m.useCSI(ctx, p, podDir, persistentCSI(b))
	case b.Spec.NFS != nil:
		return m.useFileSystem(filepath.Join(podDir, "volumes", nfsPlugin, b.Name))
	case b.Spec.Local != nil && isBlock(b):
		return m.useDisk(filepath.Join(m.localDisks(), b.Name, string(p.UID)))
	case b.Spec.Local != nil:
		return m.useFileSystem(filepath.Join(podDir, "volumes", localPlugin, b.Name))
	}
	return Use{}, errors.ErrUnsupported
}

// useCSI asks the driver.
func (m *Manager) useCSI(ctx context.Context, p *v1.Pod, podDir string, v csiVolume) (Use, error) {
	if m.csi.Drivers == nil {
		return Use{}, errors.ErrUnsupported
	}
	if !m.isPublished(p.UID, podDir, v) {
		return Use{}, fmt.Errorf("volume %s is not mounted", v.specName)
	}
	driver, err := m.csi.Drivers.Driver(v.driver)
	if err != nil {
		return Use{}, err
	}
	can, err := driver.Capabilities(ctx)
	if err != nil {
		return Use{}, err
	}
	if !can[csiapi.NodeServiceCapability_RPC_GET_VOLUME_STATS] {
		return Use{}, errors.ErrUnsupported
	}
	s, err := driver.Stats(ctx, v.handle, m.target(p.UID, podDir, v))
	if err != nil {
		return Use{}, err
	}
	tells := m.csi.Health && can[csiapi.NodeServiceCapability_RPC_VOLUME_CONDITION] && s.Condition != nil
	if len(s.Usage) == 0 && !tells {
		return Use{}, fmt.Errorf("driver %s tells nothing of volume %s", v.driver, v.handle)
	}
	out := computeUse(s.Usage)
	if tells {
		out.Abnormal = &s.Condition.Abnormal
		if s.Condition.Abnormal {
			m.event(p, v1.EventTypeWarning, abnormalReason, fmt.Sprintf("Volume %s: %s", v.specName, s.Condition.Message))
		}
	}
	return out, nil
}

// computeUse returns what the driver told; units that nobody knows are left out, and so are negative numbers.
func computeUse(usage []*csiapi.VolumeUsage) Use {
	var out Use
	of := func(n int64) uint64 { return uint64(max(n, 0)) }
	for _, u := range usage {
		switch u.GetUnit() {
		case csiapi.VolumeUsage_BYTES:
			out.Capacity, out.Available, out.Used = of(u.Total), of(u.Available), of(u.Used)
		case csiapi.VolumeUsage_INODES:
			out.Inodes, out.InodesFree, out.InodesUsed = of(u.Total), of(u.Available), of(u.Used)
		}
	}
	return out
}

// useFileSystem returns what is used of the file system that the path is in.
func (m *Manager) useFileSystem(path string) (Use, error) {
	f, err := m.files.OpenFile(path, unix.O_PATH|unix.O_DIRECTORY, 0)
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
		Inodes: st.Files, InodesFree: st.Ffree, InodesUsed: st.Files - st.Ffree,
	}, nil
}

// useDisk returns the size of a disk: what is on it is its user's business.
func (m *Manager) useDisk(path string) (Use, error) {
	f, err := m.files.OpenFile(path, os.O_RDONLY, 0)
	if err != nil {
		return Use{}, err
	}
	defer f.Close()
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return Use{}, fmt.Errorf("size of %s: %w", path, err)
	}
	return Use{Capacity: uint64(size)}, nil
}
