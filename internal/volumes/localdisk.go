package volumes

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"berth/internal/crispec"
)

// mapDisk makes a disk of this machine present for the pod: a bind mount of it, which is the pod's own and is held by a loop device, and
// a link in the pod's folder.
func (k *locals) mapDisk(v *volume) (outcome, error) {
	refuse := func(step string, err error) (outcome, error) {
		return outcome{}, &Error{Class: MapFailed, Step: step, Err: err}
	}
	src := v.bound.Spec.Local
	if slices.Contains(strings.Split(src.Path, "/"), "..") {
		return refuse("", fmt.Errorf("local volume path %q: must not contain \"..\"", src.Path))
	}
	device, number, err := k.findDisk(src.Path)
	if err != nil {
		return refuse("NewBlockVolumeMapper initialization", err)
	}
	fresh, err := k.bindDisk(device, number, filepath.Join(k.disksDir(), v.name(), string(v.pod.UID)))
	if err != nil {
		return refuse("MapBlockVolume", err)
	}
	link := filepath.Join(v.podDir, devicesDir, localPlugin, v.name())
	if err := k.files.EnsureLink(device, link); err != nil {
		return refuse("MapBlockVolume", err)
	}
	return outcome{mounted: crispec.Volume{HostPath: link, ReadOnly: v.isReadOnly()}, fresh: fresh}, nil
}

// disksDir is where the disks of this machine are bound, by volume and pod.
func (k *locals) disksDir() string {
	return filepath.Join(k.root, "plugins", localPlugin, devicesDir)
}
