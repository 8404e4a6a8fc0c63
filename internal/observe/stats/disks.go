package stats

import (
	"cmp"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/prometheus/procfs/blockdevice"
	"golang.org/x/sys/unix"
	"k8s.io/mount-utils"
)

// Disk is a mounted file system on a block device.
type Disk struct {
	Device         string // as mounted: /dev/vda1
	Major, Minor   uint32
	Capacity, Free uint64 // bytes
	Inodes         uint64
	InodesFree     uint64
	// IO are the kernel's counters of the device (Documentation/admin-guide/iostats.rst); nil:
	// none.
	IO *blockdevice.IOStats
}

// ReadDisks returns the mounted file systems on block devices, each device once; proc is the
// directory of /proc. File systems in user space are left out: a call may hang with their process.
func ReadDisks(proc string) ([]Disk, error) {
	mounts, err := mount.ParseMountInfo(filepath.Join(proc, "self/mountinfo"))
	if err != nil {
		return nil, fmt.Errorf("read mounts: %w", err)
	}
	block, err := blockdevice.NewFS(proc, "/sys")
	if err != nil {
		return nil, err
	}
	counted, err := block.ProcDiskstats()
	if err != nil {
		return nil, fmt.Errorf("read diskstats: %w", err)
	}
	var out []Disk
	for _, m := range visible(mounts) {
		var st unix.Statfs_t
		if err := unix.Statfs(m.MountPoint, &st); err != nil {
			continue // unmounted, or hidden by another mount
		}
		size := uint64(st.Frsize)
		d := Disk{
			Device: m.Source, Major: uint32(m.Major), Minor: uint32(m.Minor), Capacity: st.Blocks * size, Free: st.Bfree * size, Inodes: st.Files, InodesFree: st.Ffree,
		}
		for i, c := range counted {
			if c.MajorNumber == d.Major && c.MinorNumber == d.Minor {
				d.IO = &counted[i].IOStats
			}
		}
		out = append(out, d)
	}
	return out, nil
}

// visible returns one mount of each block device, the first that no later mount hides.
func visible(mounts []mount.MountInfo) []mount.MountInfo {
	last := make(map[string]int, len(mounts))
	for _, m := range mounts {
		last[m.MountPoint] = m.ID
	}
	var out []mount.MountInfo
	for _, m := range mounts {
		if !strings.HasPrefix(m.Source, "/dev/") || strings.HasPrefix(m.FsType, "fuse") || last[m.MountPoint] != m.ID {
			continue
		}
		if !slices.ContainsFunc(out, func(o mount.MountInfo) bool { return o.Source == m.Source }) {
			out = append(out, m)
		}
	}
	slices.SortFunc(out, func(a, b mount.MountInfo) int { return cmp.Compare(a.Source, b.Source) })
	return out
}
