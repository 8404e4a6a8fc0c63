package volumes

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"

	csiapi "github.com/container-storage-interface/spec/lib/go/csi"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	mount "k8s.io/mount-utils"
	"k8s.io/utils/ptr"

	"berth/internal/storage/csi"
)

// publish runs all steps up to NodePublishVolume, and returns the step that failed.
func (c *csiKind) publish(ctx context.Context, v csiVolume) (step string, err error) {
	driver, err := c.drivers.forPod(v.pod.UID, v.id.driver)
	if err != nil {
		return "MountDevice", err
	}
	if err := checkLifecycle(v); err != nil {
		return "SetUp", err
	}
	attached, err := c.attacher.metadata(ctx, v)
	if err != nil {
		return "WaitForAttach", err
	}
	if v.capabilities, err = driver.Capabilities(ctx); err != nil {
		return "MountDevice", csiError("capabilities of the driver: %w", err)
	}
	r := &csiapi.NodePublishVolumeRequest{
		VolumeId: v.id.handle, PublishContext: attached, TargetPath: c.dirs.target(v), Readonly: v.readOnly,
		VolumeCapability: capabilityOf(v), VolumeContext: maps.Clone(v.attributes),
	}
	if v.block {
		return c.blocks.publish(ctx, driver, v, r)
	}
	if v.pv != nil && v.capabilities[csiapi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME] {
		r.StagingTargetPath = c.dirs.stagePath(v.id)
		if err := c.stage(ctx, driver, v, r); err != nil {
			return "MountDevice", err
		}
	}
	if err := c.drivers.describePod(ctx, v, r); err != nil {
		return "SetUp", err
	}
	dir := publishDir(v.podDir, v.specName)
	data := v.data(c.config.NodeName)
	data.Label = v.label
	existed, err := c.dirs.writeData(dir, data)
	if err == nil {
		if err = driver.Publish(ctx, r); err == nil {
			c.applyFSGroup(v, r)
			return "", nil
		}
		err = csiError("mounter.SetUpAt failed: %w", err)
	}
	// Possible mounts are unpublished when the pod is deleted; existing ones stay.
	if !existed && !csi.IsUncertain(err) {
		err = errors.Join(err, c.dirs.removeMounted(dir, "mount"))
	}
	return "SetUp", err
}

// checkLifecycle rejects a volume whose lifecycle mode the driver does not support.
func checkLifecycle(v csiVolume) error {
	switch {
	case v.object == nil && v.pv == nil:
		return csiError("volume mode %q not supported by driver %s (no CSIDriver object)", v.lifecycle(), v.id.driver)
	case v.object == nil || slices.Contains(v.object.Spec.VolumeLifecycleModes, v.lifecycle()):
		return nil
	case len(v.object.Spec.VolumeLifecycleModes) == 0 && v.pv != nil: // the default
		return nil
	}
	return csiError("volume mode %q not supported by driver %s (only supports %q)", v.lifecycle(), v.id.driver, v.object.Spec.VolumeLifecycleModes)
}

// stage has the driver stage the volume, unless this agent has staged it.
func (c *csiKind) stage(ctx context.Context, driver *csi.Driver, v csiVolume, published *csiapi.NodePublishVolumeRequest) error {
	var staged bool
	c.state.locked(func() { staged = c.state.staged[v.id] })
	if staged {
		return nil
	}
	secrets, err := c.drivers.secret(ctx, v.stageSecret)
	if err != nil {
		return err
	}
	path := c.dirs.stagePath(v.id)
	if err := c.host.files.Ensure(path, 0o750, 0o750); err != nil {
		return csiError("make the directory to stage in: %w", err)
	}
	c.state.locked(func() { c.state.staged[v.id] = false })
	existed, err := c.dirs.writeData(c.dirs.stageDir(v.id), csiData{DriverName: v.id.driver, VolumeHandle: v.id.handle, Label: v.label})
	if err == nil {
		err = driver.Stage(ctx, &csiapi.NodeStageVolumeRequest{
			VolumeId: v.id.handle, PublishContext: published.PublishContext, StagingTargetPath: path, VolumeCapability: published.VolumeCapability,
			Secrets: secrets, VolumeContext: v.attributes,
		})
	}
	if err == nil {
		c.state.locked(func() { c.state.staged[v.id] = true })
		return nil
	}
	if !existed && !csi.IsUncertain(err) {
		if e := c.dirs.removeMounted(c.dirs.stageDir(v.id), "globalmount"); e != nil {
			return csiError("attacher.MountDevice failed: %w", errors.Join(err, e))
		}
		c.state.locked(func() { delete(c.state.staged, v.id) })
	}
	return csiError("attacher.MountDevice failed: %w", err)
}

// capabilityOf returns the CSI capability with which the volume is used.
func capabilityOf(v csiVolume) *csiapi.VolumeCapability {
	mode := &csiapi.VolumeCapability_AccessMode{Mode: accessMode(v.accessModes, v.capabilities)}
	if v.block {
		return &csiapi.VolumeCapability{AccessMode: mode, AccessType: &csiapi.VolumeCapability_Block{Block: &csiapi.VolumeCapability_BlockVolume{}}}
	}
	m := &csiapi.VolumeCapability_MountVolume{FsType: v.fsType, MountFlags: v.mountOptions}
	if v.label != "" {
		m.MountFlags = append(slices.Clone(v.mountOptions), fmt.Sprintf("context=%q", v.label))
	}
	if gid := fsGroup(v.pod); gid != nil && v.capabilities[csiapi.NodeServiceCapability_RPC_VOLUME_MOUNT_GROUP] {
		m.VolumeMountGroup = strconv.FormatInt(*gid, 10)
	}
	return &csiapi.VolumeCapability{AccessMode: mode, AccessType: &csiapi.VolumeCapability_Mount{Mount: m}}
}

// accessMode returns the CSI equivalent of the volume's first access mode.
func accessMode(modes []v1.PersistentVolumeAccessMode, capabilities csi.Capabilities) csiapi.VolumeCapability_AccessMode_Mode {
	fine := capabilities[csiapi.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER] // one or several writers on a node
	mode := v1.ReadWriteOnce
	if len(modes) > 0 {
		mode = modes[0]
	}
	switch {
	case mode == v1.ReadOnlyMany:
		return csiapi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY
	case mode == v1.ReadWriteMany:
		return csiapi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER
	case mode == v1.ReadWriteOncePod && fine:
		return csiapi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER
	case fine:
		return csiapi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER
	}
	return csiapi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER
}

// applyFSGroup gives the volume's files to the pod's fsGroup, if the driver leaves that to the
// node.
func (c *csiKind) applyFSGroup(v csiVolume, r *csiapi.NodePublishVolumeRequest) {
	if fsGroup(v.pod) == nil || v.readOnly || r.VolumeCapability.GetMount().GetVolumeMountGroup() != "" {
		return
	}
	policy := storagev1.ReadWriteOnceWithFSTypeFSGroupPolicy
	if v.object != nil {
		policy = ptr.Deref(v.object.Spec.FSGroupPolicy, policy)
	}
	switch policy {
	case storagev1.NoneFSGroupPolicy:
		return
	case storagev1.ReadWriteOnceWithFSTypeFSGroupPolicy:
		once := slices.ContainsFunc(v.accessModes, func(a v1.PersistentVolumeAccessMode) bool { return a == v1.ReadWriteOnce || a == v1.ReadWriteOncePod })
		if v.fsType == "" || !once {
			return
		}
	}
	c.host.setVolumeOwnership(v.pod, r.TargetPath)
}

// hasSecurityLabels reports whether the mount at the path supports SELinux labels of files, so that
// the runtime can set them.
func hasSecurityLabels(path string) bool {
	points, err := mount.ParseMountInfo("/proc/self/mountinfo")
	if err != nil {
		return false
	}
	return slices.ContainsFunc(points, func(p mount.MountInfo) bool {
		return p.MountPoint == path && slices.Contains(append(slices.Clone(p.MountOptions), p.SuperOptions...), "seclabel")
	})
}
