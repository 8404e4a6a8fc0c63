package volumes

import (
	"context"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
)

// Operation is something that is done with one volume, under the kubelet's name for it (Kubernetes community, "Volume operation metrics").
type Operation string

// The operations. What all pods share of a volume is made by MountVolume and MapVolume, with what the first pod has of it.
const (
	MountVolume    Operation = "volume_mount"
	MapVolume      Operation = "map_volume" // of a disk, like each Map and Unmap
	UnmountVolume  Operation = "volume_unmount"
	UnmapVolume    Operation = "unmap_volume"
	UnmountDevice  Operation = "unmount_device" // takes down what all pods shared
	UnmapDevice    Operation = "unmap_device"
	VerifyAttached Operation = "verify_controller_attached_volume"
	ExpandVolume   Operation = "volume_fs_resize" // by the driver, also in the course of MountVolume or MapVolume
)

// operated tells of an operation that has ended, unless it was cut off.
func (m *Manager) operated(ctx context.Context, plugin string, o Operation, took time.Duration, err error) {
	if err == nil || ctx.Err() == nil {
		m.told(plugin, o, took, err)
	}
}

// pluginName returns the name of the volume type that has the folder.
func pluginName(folder string) string { return strings.ReplaceAll(folder, "~", "/") }

// csiPluginName returns the name of the type of the driver's volumes.
func csiPluginName(driver string) string { return pluginName(csiPlugin) + ":" + driver }

// pluginOf returns the name of the volume's type, which for a claim is that of what it is bound to.
func pluginOf(v *v1.Volume, b bound) string {
	kind, isPayload := payloadKindOf(v)
	isBound := b.PersistentVolume != nil
	switch {
	case isPayload:
		return pluginName(kind.plugin)
	case v.HostPath != nil, isBound && b.Spec.HostPath != nil:
		return "kubernetes.io/host-path"
	case v.NFS != nil, isBound && b.Spec.NFS != nil:
		return pluginName(nfsPlugin)
	case v.CSI != nil:
		return csiPluginName(v.CSI.Driver)
	case isBound && b.Spec.CSI != nil:
		return csiPluginName(b.Spec.CSI.Driver)
	case isBound && b.Spec.Local != nil:
		return pluginName(localPlugin)
	}
	if _, ok := emptyDirOf(v); ok {
		return pluginName(emptyDirPlugin)
	}
	return "<n/a>"
}
