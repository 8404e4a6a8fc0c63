package volumes

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	mount "k8s.io/mount-utils"
	"k8s.io/utils/ptr"

	"berth/internal/beneath"
	"berth/internal/crispec"
	"berth/internal/pod"
)

// Directory names of volume types that are mounted from elsewhere.
const (
	localPlugin = "kubernetes.io~local-volume"
	nfsPlugin   = "kubernetes.io~nfs"
)

// mountOptionsAnnotation is what mountOptions was before it was a field (Kubernetes documentation, "Persistent Volumes", Mount Options).
const mountOptionsAnnotation = "volume.beta.kubernetes.io/mount-options"

// setupBound makes a persistent volume present for the pod.
func (m *Manager) setupBound(ctx context.Context, p *v1.Pod, podDir string, b bound) outcome {
	if !beneath.IsElement(b.Name) {
		return outcome{err: errors.New("the volume's name is not a file name")}
	}
	if isBlock(b) {
		return m.mapBound(ctx, p, podDir, b)
	}
	if err := m.checkNodeAffinity(b.PersistentVolume); err != nil {
		return outcome{step: "NodeAffinity check", err: err}
	}
	options := mountOptions(b.PersistentVolume)
	switch src := &b.Spec.PersistentVolumeSource; {
	case src.HostPath != nil && len(options) > 0:
		return outcome{step: "MountOptionSupport check", err: errors.New("mount options are not supported for this volume type")}
	case src.HostPath != nil:
		o := setupHostPath(src.HostPath)
		o.mounted.ReadOnly = b.readOnly
		return o
	case src.Local != nil:
		return m.setupLocal(ctx, p, podDir, b, options)
	case src.CSI != nil:
		return m.setupCSI(ctx, p, podDir, persistentCSI(b))
	case src.NFS != nil:
		return m.setupNFS(ctx, podDir, b.Name, src.NFS, b.readOnly, options)
	default:
		return outcome{err: fmt.Errorf("persistent volumes of type %s are not supported yet", sourceName(src))}
	}
}

// mountOptions returns how the volume is to be mounted.
func mountOptions(pv *v1.PersistentVolume) []string {
	if old, ok := pv.Annotations[mountOptionsAnnotation]; ok {
		return strings.Split(old, ",")
	}
	return pv.Spec.MountOptions
}

// setupLocal shows a directory of this machine. Its files become the fsGroup's of the first pod that has it; later ones take it as it is.
func (m *Manager) setupLocal(ctx context.Context, p *v1.Pod, podDir string, b bound, options []string) outcome {
	source := b.Spec.Local.Path
	if slices.Contains(strings.Split(source, "/"), "..") {
		return outcome{err: fmt.Errorf("local volume path %q: must not contain \"..\"", source)}
	}
	st, err := os.Stat(source)
	switch {
	case err != nil:
		return outcome{step: "NewMounter initialization", err: fmt.Errorf("path %q does not exist: %w", source, err)}
	case st.Mode()&fs.ModeDevice != 0 && st.Mode()&fs.ModeCharDevice == 0:
		return m.setupLocalDevice(ctx, p, podDir, b, options)
	case !st.IsDir():
		return outcome{err: fmt.Errorf("path %q: only directory and block device are supported", source)}
	}
	refs, err := m.mounter.GetMountRefs(source)
	if err != nil {
		return outcome{err: fmt.Errorf("mounts of %q: %w", source, err)}
	}
	first := m.isFirst(p.UID, source) && !slices.ContainsFunc(refs, m.isOfPod)
	how := []string{"bind"}
	if b.readOnly {
		how = append(how, "ro")
	}
	dir := filepath.Join(podDir, "volumes", localPlugin, b.Name)
	fresh, err := m.ensureMount(ctx, dir, mountSource{source: source, options: append(how, options...)})
	if err != nil {
		return outcome{err: err}
	}
	if fresh {
		m.ownLocal(p, dir, b, first)
	}
	return outcome{mounted: crispec.Volume{HostPath: dir, ReadOnly: b.readOnly, SELinuxRelabel: !b.readOnly}, fresh: fresh}
}

// setupLocalDevice mounts the filesystem on a disk of this machine; if there is none, the first pod makes it.
//
// Differs from the kubelet: each pod mounts the filesystem itself, rather than a part of one mount below plugins. To the kernel it is the
// same filesystem, and there is nothing to be taken down after the last pod.
func (m *Manager) setupLocalDevice(ctx context.Context, p *v1.Pod, podDir string, b bound, options []string) outcome {
	source := b.Spec.Local.Path
	points, err := m.mounter.List()
	if err != nil {
		return outcome{err: fmt.Errorf("mounts of %q: %w", source, err)}
	}
	first := m.isFirst(p.UID, source) && !slices.ContainsFunc(points, func(mp mount.MountPoint) bool {
		return mp.Device == source && m.isOfPod(mp.Path)
	})
	dir := filepath.Join(podDir, "volumes", localPlugin, b.Name)
	// Never read-only: the pods of one filesystem have it in one way. A pod that may only read is given it so.
	fresh, err := m.ensureMount(ctx, dir, mountSource{source: source, fsType: ptr.Deref(b.Spec.Local.FSType, "ext4"), options: options, format: first})
	if err != nil {
		return outcome{step: "MountDevice", err: err}
	}
	if fresh {
		m.ownLocal(p, dir, b, first)
	}
	if err := m.growLocal(ctx, p, dir, b); err != nil {
		return outcome{step: "Setup failed while expanding volume", err: err}
	}
	return outcome{mounted: crispec.Volume{HostPath: dir, ReadOnly: b.readOnly, SELinuxRelabel: !b.readOnly}, fresh: fresh}
}

// ownLocal gives a volume that was mounted to the pod's fsGroup, if the pod is the first that has it.
func (m *Manager) ownLocal(p *v1.Pod, dir string, b bound, first bool) {
	gid := fsGroup(p)
	if gid == nil || b.readOnly {
		return
	}
	if first {
		m.ownVolume(p, dir)
		return
	}
	if have := m.groupOf(dir); have != *gid {
		m.event(p, v1.EventTypeWarning, "AlreadyMountedVolume",
			fmt.Sprintf("The requested fsGroup is %d, but the volume %s has GID %d. The volume may not be shareable.", *gid, b.Name, have))
	}
}

// isFirst reports whether no other pod had the directory before, as far as this agent knows.
func (m *Manager) isFirst(uid pod.UID, source string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, had := m.firsts[source]; !had {
		m.firsts[source] = uid
	}
	return m.firsts[source] == uid
}

// isOfPod reports whether something is mounted there for a pod.
func (m *Manager) isOfPod(path string) bool {
	return strings.HasPrefix(path, filepath.Join(m.root, "pods")+"/")
}

// groupOf returns the group of the root of a volume.
func (m *Manager) groupOf(dir string) int64 {
	f, err := m.files.Open(dir)
	if err != nil {
		return 0
	}
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return 0
	}
	return int64(st.Gid)
}

// mountSource is what is mounted, and how.
type mountSource struct {
	source, fsType string
	options        []string
	format         bool // a disk without a filesystem gets one
}

// ensureMount mounts the source at dir, unless something is mounted there, and reports whether it did. A mount that fails, or is given up because ctx is
// done, leaves nothing.
func (m *Manager) ensureMount(ctx context.Context, dir string, s mountSource) (fresh bool, err error) {
	// What is mounted is not opened: its server may not answer.
	if err := m.files.Ensure(filepath.Dir(dir), 0o750, 0o750); err != nil {
		return false, err
	}
	mounted, err := m.isMounted(dir)
	if err != nil || mounted {
		return false, err
	}
	if err := m.files.Ensure(dir, 0o750, 0o750); err != nil {
		return false, err
	}
	if err = m.mount(ctx, dir, s); err == nil {
		return true, nil
	}
	if half, e := m.isMounted(dir); e == nil && half {
		err = errors.Join(err, m.unmount(dir, s.fsType))
	}
	err = errors.Join(err, m.files.RemoveEmpty(dir))
	return false, fmt.Errorf("mount %s: %w", s.source, err)
}

func (m *Manager) mount(ctx context.Context, dir string, s mountSource) error {
	if s.format {
		return mount.NewSafeFormatAndMount(m.mounter, m.exec).FormatAndMount(s.source, dir, s.fsType, s.options)
	}
	if r, ok := m.mounter.(remote); ok && isRemote(s.fsType) {
		return r.MountRemote(ctx, s.source, dir, s.fsType, s.options)
	}
	return m.mounter.MountSensitiveWithoutSystemd(s.source, dir, s.fsType, s.options, nil)
}
