package stats

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	summary "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
)

const (
	// layerAge is how long the size of a writable layer is cached.
	layerAge = time.Minute
	// defaultVolumePeriod is volumeStatsAggPeriod's default.
	defaultVolumePeriod = time.Minute
	// contentAge is how long the sizes of volumes that the agent writes itself are cached.
	contentAge = 10 * time.Minute
)

// addStorage adds the pod's disk usage: container files, logs, volumes.
func (c *Collector) addStorage(ctx context.Context, p *Pod, out *summary.PodStats, root fileSystem) {
	logs := c.folders.logsOf(p.Namespace, p.Name, p.UID)
	var used, inodes uint64
	add := func(bytes, n uint64) { used, inodes = used+bytes, inodes+n }
	for i := range out.Containers {
		ct := &out.Containers[i]
		log := c.folders.logsIn(filepath.Join(logs, ct.Name))
		ct.Logs = fsOf(root, log.Bytes, log.Inodes)
		if ct.Rootfs = c.rootfs(ctx, &p.Containers[i]); ct.Rootfs != nil {
			add(*ct.Rootfs.UsedBytes+log.Bytes, *ct.Rootfs.InodesUsed+log.Inodes)
		}
	}
	own := c.folders.logsIn(logs)
	add(own.Bytes, own.Inodes)
	dir := c.folders.podDir(p.UID)
	hosts := c.folders.hostsFile(dir)
	add(hosts.Bytes, hosts.Inodes)
	out.VolumeStats = c.volumes(ctx, c.podOf(p), filepath.Join(dir, "volumes"), add)
	out.EphemeralStorage = fsOf(root, used, inodes)
}

// hostsFile returns the usage of the pod's hosts file; dir is the pod's directory.
func (d folders) hostsFile(dir string) Size {
	st, err := d.root.Lstat(filepath.Join(dir, "etc-hosts"))
	if err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
		return Size{}
	}
	return Size{uint64(st.Size), 1}
}

// rootfs returns the usage of a container's writable layer; nil for a snapshotter without overlays.
// The runtime's own numbers are as old as its statistics period, which is an hour here.
func (c *Collector) rootfs(ctx context.Context, ct *Container) *summary.FsStats {
	if ct.Reading == nil {
		return nil
	}
	upper := c.layers.upperDir(ctx, c.layers.current(), ct.ID, ct.Reading.Path)
	if upper == "" {
		return nil
	}
	got, at, ok := c.sizes.get(ctx, upper, layerAge)
	if !ok {
		return nil
	}
	f, err := c.folders.statfs(upper)
	if err != nil {
		return nil
	}
	out := fsOf(f, got.Bytes, got.Inodes)
	out.Time = metav1.NewTime(at)
	return out
}

// walkedPlugins are the volumes that are measured by a walk.
var walkedPlugins = map[string]bool{
	"kubernetes.io~empty-dir": true, "kubernetes.io~configmap": true, "kubernetes.io~secret": true, "kubernetes.io~downward-api": true,
	"kubernetes.io~projected": true,
}

// volumes returns the pod's volumes, those that count as ephemeral storage first, and sums the
// latter.
func (c *Collector) volumes(ctx context.Context, p *v1.Pod, dir string, add func(bytes, inodes uint64)) []summary.VolumeStats {
	period, ok := c.claimed.period()
	if !ok {
		return nil
	}
	plugins, err := c.folders.root.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	var ephemeral, rest []summary.VolumeStats
	for i := range p.Spec.Volumes {
		v := &p.Spec.Volumes[i]
		if isQueried(v) {
			if u, at, ok := c.claimed.uses.get(ctx, volumeKey{p.UID, v.Name}, period); ok {
				rest = append(rest, volumeStats(u, p, v, at))
			}
			continue
		}
		at := slices.IndexFunc(plugins, func(e os.DirEntry) bool {
			_, err := c.folders.root.Lstat(filepath.Join(dir, e.Name(), v.Name))
			return err == nil
		})
		if at < 0 {
			continue
		}
		fs := c.volume(ctx, filepath.Join(dir, plugins[at].Name(), v.Name), plugins[at].Name(), v, period)
		if fs == nil {
			continue
		}
		s := summary.VolumeStats{FsStats: *fs, Name: v.Name}
		if IsEphemeral(v) {
			ephemeral = append(ephemeral, s)
			add(*fs.UsedBytes, *fs.InodesUsed)
			continue
		}
		rest = append(rest, s)
	}
	return append(ephemeral, rest...)
}

func (c *Collector) volume(ctx context.Context, path, plugin string, v *v1.Volume, period time.Duration) *summary.FsStats {
	if !walkedPlugins[plugin] {
		return nil
	}
	f, err := c.folders.statfs(path)
	if err != nil {
		return nil
	}
	if v.EmptyDir == nil {
		period = contentAge
	}
	got, at, ok := c.sizes.get(ctx, path, period)
	if !ok {
		return nil
	}
	out := fsOf(f, got.Bytes, got.Inodes)
	out.Time = metav1.NewTime(at)
	return out
}

// claimOf returns the claim of a volume, if any.
func claimOf(p *v1.Pod, v *v1.Volume) *summary.PVCReference {
	switch {
	case v.PersistentVolumeClaim != nil:
		return &summary.PVCReference{Name: v.PersistentVolumeClaim.ClaimName, Namespace: p.Namespace}
	case v.Ephemeral != nil:
		return &summary.PVCReference{Name: p.Name + "-" + v.Name, Namespace: p.Namespace}
	}
	return nil
}
