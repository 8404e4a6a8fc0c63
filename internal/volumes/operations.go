package volumes

import (
	"context"
	"strings"
	"time"
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
func (h *host) operated(ctx context.Context, plugin string, o Operation, took time.Duration, err error) {
	if err == nil || ctx.Err() == nil {
		h.told(plugin, o, took, err)
	}
}

// pluginName returns the name of the volume type that has the folder.
func pluginName(folder string) string { return strings.ReplaceAll(folder, "~", "/") }

// csiPluginName returns the name of the type of the driver's volumes.
func csiPluginName(driver string) string { return pluginName(csiPlugin) + ":" + driver }
