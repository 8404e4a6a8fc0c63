package volumes

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	mount "k8s.io/mount-utils"
	"k8s.io/utils/ptr"

	"berth/internal/pod"
	"berth/internal/runtime/crispec"
)

const localPlugin = "kubernetes.io~local-volume"

// locals are directories and disks of this machine, from local persistent volumes.
type locals struct {
	host    *host
	disks   *disks
	resizes *resizes
	locks   *volumeLocks

	mu sync.Mutex
	// firsts has the first pod that used each local directory; guarded by mu.
	firsts map[string]pod.UID
}

// setup bind-mounts a local directory. Its files are given to the fsGroup of the first pod; later
// pods do not change it.
func (k *locals) setup(ctx context.Context, v *volume) (outcome, error) {
	if v.isBlock() {
		return k.mapDisk(v)
	}
	source := v.bound.Spec.Local.Path
	if slices.Contains(strings.Split(source, "/"), "..") {
		return outcome{}, fmt.Errorf("local volume path %q: must not contain \"..\"", source)
	}
	st, err := os.Stat(source)
	switch {
	case err != nil:
		return outcome{}, &Error{Step: "NewMounter initialization", Err: fmt.Errorf("path %q does not exist: %w", source, err)}
	case st.Mode()&fs.ModeDevice != 0 && st.Mode()&fs.ModeCharDevice == 0:
		return k.setupDevice(ctx, v)
	case !st.IsDir():
		return outcome{}, fmt.Errorf("path %q: only directory and block device are supported", source)
	}
	refs, err := k.host.mounter.GetMountRefs(source)
	if err != nil {
		return outcome{}, fmt.Errorf("mounts of %q: %w", source, err)
	}
	first := k.isFirst(v.pod.UID, source) && !slices.ContainsFunc(refs, k.host.isOfPod)
	options := []string{"bind"}
	if v.isReadOnly() {
		options = append(options, "ro")
	}
	s := mountSource{source: source, options: append(options, mountOptions(v.bound.PersistentVolume)...)}
	fresh, err := k.host.ensureMount(ctx, v.dir(), s)
	if err != nil {
		return outcome{}, err
	}
	switch {
	case fresh && first:
		k.applyFSGroup(v)
	case fresh:
		k.checkGroup(v)
	}
	return outcome{mounted: k.mounted(v), fresh: fresh}, nil
}

// setupDevice mounts the filesystem on a local disk; for the first pod, it formats an empty disk.
//
// Differs from the kubelet: each pod mounts the filesystem directly, rather than a bind mount of
// one mount below plugins. To the kernel it is the same filesystem, and there is nothing to unmount
// after the last pod.
func (k *locals) setupDevice(ctx context.Context, v *volume) (outcome, error) {
	src, options := v.bound.Spec.Local, mountOptions(v.bound.PersistentVolume)
	points, err := k.host.mounter.List()
	if err != nil {
		return outcome{}, fmt.Errorf("mounts of %q: %w", src.Path, err)
	}
	first := k.isFirst(v.pod.UID, src.Path) && !slices.ContainsFunc(points, func(mp mount.MountPoint) bool {
		return mp.Device == src.Path && k.host.isOfPod(mp.Path)
	})
	// Never read-only: all mounts of one filesystem share that option. Read-only pods get read-only
	// bind mounts.
	s := mountSource{source: src.Path, fsType: ptr.Deref(src.FSType, "ext4"), options: options, format: first}
	fresh, err := k.host.ensureMount(ctx, v.dir(), s)
	if err != nil {
		return outcome{}, &Error{Step: "MountDevice", Err: err}
	}
	switch {
	case fresh && first:
		k.applyFSGroup(v)
	case fresh:
		k.checkGroup(v)
	}
	if err := k.grow(ctx, v); err != nil {
		return outcome{}, &Error{Step: "Setup failed while expanding volume", Err: err}
	}
	return outcome{mounted: k.mounted(v), fresh: fresh}, nil
}

func (k *locals) mounted(v *volume) crispec.Volume {
	return crispec.Volume{HostPath: v.dir(), ReadOnly: v.isReadOnly(), SELinuxRelabel: !v.isReadOnly()}
}

// applyFSGroup gives a volume that was mounted to the fsGroup of its first pod.
func (k *locals) applyFSGroup(v *volume) {
	if fsGroup(v.pod) != nil && !v.isReadOnly() {
		k.host.setVolumeOwnership(v.pod, v.dir())
	}
}

// checkGroup records an event if a shared volume belongs to another group than the pod's fsGroup.
func (k *locals) checkGroup(v *volume) {
	gid := fsGroup(v.pod)
	if gid == nil || v.isReadOnly() {
		return
	}
	if have := k.host.groupOf(v.dir()); have != *gid {
		k.host.recorder.Event(v.pod, "", v1.EventTypeWarning, "AlreadyMountedVolume",
			fmt.Sprintf("The requested fsGroup is %d, but the volume %s has GID %d. The volume may not be shareable.", *gid, v.name(), have))
	}
}

// isFirst reports whether no other pod has used the directory before, as far as this agent knows.
func (k *locals) isFirst(uid pod.UID, source string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if _, had := k.firsts[source]; !had {
		k.firsts[source] = uid
	}
	return k.firsts[source] == uid
}

// teardown unmounts the disks of the pod, including those of an earlier agent. It finds them by
// their directories; the disks themselves are not changed.
func (k *locals) teardown(ctx context.Context, uid pod.UID, _ string) error {
	volumes, err := k.host.files.ReadDir(k.disksDir())
	if err := ignoreMissing(err); err != nil {
		return err
	}
	for _, v := range volumes {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		dir, began := filepath.Join(k.disksDir(), v.Name()), time.Now()
		if _, err := k.host.files.Lstat(filepath.Join(dir, string(uid))); errors.Is(err, fs.ErrNotExist) {
			continue
		}
		err := k.disks.unbind(dir, string(uid))
		k.host.metrics.operated(ctx, pluginName(localPlugin), unmapVolume, time.Since(began), err)
		if err != nil {
			return err
		}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	maps.DeleteFunc(k.firsts, func(_ string, first pod.UID) bool { return first == uid })
	return nil
}

func (k *locals) use(_ context.Context, v *volume) (Use, error) {
	if v.isBlock() {
		return k.disks.use(filepath.Join(k.disksDir(), v.name(), string(v.pod.UID)))
	}
	return k.host.useFileSystem(v.dir())
}

// mapDisk makes a local disk available for the pod: a bind mount for each pod, held by a loop
// device, and a link in the pod's directory.
func (k *locals) mapDisk(v *volume) (outcome, error) {
	fail := func(step string, err error) (outcome, error) {
		return outcome{}, &Error{Class: MapFailed, Step: step, Err: err}
	}
	src := v.bound.Spec.Local
	if slices.Contains(strings.Split(src.Path, "/"), "..") {
		return fail("", fmt.Errorf("local volume path %q: must not contain \"..\"", src.Path))
	}
	device, number, err := k.disks.find(src.Path)
	if err != nil {
		return fail("NewBlockVolumeMapper initialization", err)
	}
	shared := filepath.Join(k.disksDir(), v.name())
	fresh, err := k.disks.bind(device, number, filepath.Join(shared, string(v.pod.UID)))
	if err != nil {
		return fail("MapBlockVolume", err)
	}
	link := filepath.Join(v.podDir, devicesDir, localPlugin, v.name())
	if err := k.host.files.EnsureLink(device, link); err != nil {
		return fail("MapBlockVolume", err)
	}
	return outcome{mounted: crispec.Volume{HostPath: link, ReadOnly: v.isReadOnly()}, fresh: fresh, shared: shared}, nil
}

// disksDir returns the directory of the bind mounts of local disks, by volume and pod.
func (k *locals) disksDir() string {
	return filepath.Join(k.host.root, "plugins", localPlugin, devicesDir)
}
