package csitest

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	csiapi "github.com/container-storage-interface/spec/lib/go/csi"
)

type nodeServer struct {
	csiapi.UnimplementedNodeServer
	driver *Driver
}

func (s nodeServer) data(volume string) string { return filepath.Join(s.driver.Dir, "data", volume) }

// NodeGetInfo returns the node's ID, volume limit and topology.
func (s nodeServer) NodeGetInfo(context.Context, *csiapi.NodeGetInfoRequest) (*csiapi.NodeGetInfoResponse, error) {
	r := &csiapi.NodeGetInfoResponse{NodeId: s.driver.NodeID, MaxVolumesPerNode: s.driver.MaxVolumes}
	if s.driver.Topology != nil {
		r.AccessibleTopology = &csiapi.Topology{Segments: s.driver.Topology}
	}
	return r, nil
}

// NodeGetCapabilities returns the driver's capabilities.
func (s nodeServer) NodeGetCapabilities(context.Context, *csiapi.NodeGetCapabilitiesRequest) (*csiapi.NodeGetCapabilitiesResponse, error) {
	r := &csiapi.NodeGetCapabilitiesResponse{}
	can := map[csiapi.NodeServiceCapability_RPC_Type]bool{
		csiapi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME: s.driver.Stages,
		csiapi.NodeServiceCapability_RPC_VOLUME_MOUNT_GROUP:   s.driver.Groups,
		csiapi.NodeServiceCapability_RPC_EXPAND_VOLUME:        s.driver.Expands,
		csiapi.NodeServiceCapability_RPC_GET_VOLUME_STATS:     true,
		csiapi.NodeServiceCapability_RPC_VOLUME_CONDITION:     s.driver.Conditions,
	}
	for rpc, has := range can {
		if has {
			r.Capabilities = append(r.Capabilities, &csiapi.NodeServiceCapability{
				Type: &csiapi.NodeServiceCapability_Rpc{Rpc: &csiapi.NodeServiceCapability_RPC{Type: rpc}},
			})
		}
	}
	return r, nil
}

// NodeStageVolume mounts the volume's data.
func (s nodeServer) NodeStageVolume(ctx context.Context, r *csiapi.NodeStageVolumeRequest) (*csiapi.NodeStageVolumeResponse, error) {
	c := Call{Method: "NodeStageVolume", Volume: r.VolumeId, Staging: r.StagingTargetPath, Context: r.VolumeContext, PublishContext: r.PublishContext, Secrets: r.Secrets}
	c.setCapability(r.VolumeCapability)
	err := s.driver.handle(ctx, c, func() error {
		if c.Block {
			return os.WriteFile(filepath.Join(r.StagingTargetPath, "staged"), nil, 0o600)
		}
		if s.driver.Memory {
			return s.driver.mountMemory(r.StagingTargetPath, c.Flags)
		}
		return s.driver.bind(s.data(r.VolumeId), r.StagingTargetPath)
	})
	return &csiapi.NodeStageVolumeResponse{}, err
}

// NodePublishVolume mounts the staged volume, or the volume's data, for a pod.
func (s nodeServer) NodePublishVolume(ctx context.Context, r *csiapi.NodePublishVolumeRequest) (*csiapi.NodePublishVolumeResponse, error) {
	c := Call{
		Method: "NodePublishVolume", Volume: r.VolumeId, Staging: r.StagingTargetPath, Target: r.TargetPath, ReadOnly: r.Readonly,
		Context: r.VolumeContext, PublishContext: r.PublishContext, Secrets: r.Secrets,
	}
	c.setCapability(r.VolumeCapability)
	err := s.driver.handle(ctx, c, func() error {
		if c.Block {
			return s.driver.bindDevice(r.TargetPath)
		}
		source := r.StagingTargetPath
		if !s.driver.Stages || source == "" {
			source = s.data(r.VolumeId)
		}
		if err := os.Mkdir(r.TargetPath, 0o750); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		if r.Readonly {
			return s.driver.bind(source, r.TargetPath, "ro")
		}
		return s.driver.bind(source, r.TargetPath)
	})
	return &csiapi.NodePublishVolumeResponse{}, err
}

// NodeUnpublishVolume undoes NodePublishVolume.
func (s nodeServer) NodeUnpublishVolume(ctx context.Context, r *csiapi.NodeUnpublishVolumeRequest) (*csiapi.NodeUnpublishVolumeResponse, error) {
	err := s.driver.handle(ctx, Call{Method: "NodeUnpublishVolume", Volume: r.VolumeId, Target: r.TargetPath}, func() error {
		if err := s.driver.unbind(r.TargetPath); err != nil {
			return err
		}
		if err := os.Remove(r.TargetPath); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	})
	return &csiapi.NodeUnpublishVolumeResponse{}, err
}

// NodeUnstageVolume undoes NodeStageVolume.
func (s nodeServer) NodeUnstageVolume(ctx context.Context, r *csiapi.NodeUnstageVolumeRequest) (*csiapi.NodeUnstageVolumeResponse, error) {
	err := s.driver.handle(ctx, Call{Method: "NodeUnstageVolume", Volume: r.VolumeId, Staging: r.StagingTargetPath}, func() error { return s.driver.unbind(r.StagingTargetPath) })
	return &csiapi.NodeUnstageVolumeResponse{}, err
}

// NodeExpandVolume returns the requested size.
func (s nodeServer) NodeExpandVolume(ctx context.Context, r *csiapi.NodeExpandVolumeRequest) (*csiapi.NodeExpandVolumeResponse, error) {
	c := Call{Method: "NodeExpandVolume", Volume: r.VolumeId, Staging: r.StagingTargetPath, Target: r.VolumePath, Bytes: r.GetCapacityRange().GetRequiredBytes(), Secrets: r.Secrets}
	c.setCapability(r.VolumeCapability)
	err := s.driver.handle(ctx, c, func() error { return nil })
	return &csiapi.NodeExpandVolumeResponse{CapacityBytes: r.GetCapacityRange().GetRequiredBytes()}, err
}

// NodeGetVolumeStats reports 1 of 4 MiB and three of ten inodes as used.
func (s nodeServer) NodeGetVolumeStats(ctx context.Context, r *csiapi.NodeGetVolumeStatsRequest) (*csiapi.NodeGetVolumeStatsResponse, error) {
	err := s.driver.handle(ctx, Call{Method: "NodeGetVolumeStats", Volume: r.VolumeId, Target: r.VolumePath}, func() error { return nil })
	out := &csiapi.NodeGetVolumeStatsResponse{Usage: []*csiapi.VolumeUsage{
		{Unit: csiapi.VolumeUsage_BYTES, Total: 4 << 20, Used: 1 << 20, Available: 3 << 20},
		{Unit: csiapi.VolumeUsage_INODES, Total: 10, Used: 3, Available: 7},
	}}
	if s.driver.Conditions {
		wrong, _ := os.ReadFile(filepath.Join(s.driver.Dir, "condition", r.VolumeId))
		out.VolumeCondition = &csiapi.VolumeCondition{Abnormal: len(wrong) > 0, Message: string(wrong)}
	}
	return out, err
}

// setCapability records the volume capability.
func (c *Call) setCapability(v *csiapi.VolumeCapability) {
	c.Mode, c.Block = v.GetAccessMode().GetMode().String(), v.GetBlock() != nil
	c.FSType, c.Flags, c.Group = v.GetMount().GetFsType(), v.GetMount().GetMountFlags(), v.GetMount().GetVolumeMountGroup()
}

// bindDevice binds the disk to target, unless something is mounted there.
func (d *Driver) bindDevice(target string) error {
	f, err := os.OpenFile(target, os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	mounted, err := d.Mounter.IsMountPoint(target)
	if err != nil || mounted {
		return err
	}
	return d.Mounter.Mount(d.Device, target, "", []string{"bind"})
}

// bind bind-mounts source at target, unless something is mounted there.
func (d *Driver) bind(source, target string, options ...string) error {
	if err := os.MkdirAll(source, 0o755); err != nil {
		return err
	}
	mounted, err := d.Mounter.IsMountPoint(target)
	if err != nil || mounted {
		return err
	}
	return d.Mounter.Mount(source, target, "", append([]string{"bind"}, options...))
}

// mountMemory mounts an in-memory file system, unless something is mounted there.
func (d *Driver) mountMemory(target string, options []string) error {
	mounted, err := d.Mounter.IsMountPoint(target)
	if err != nil || mounted {
		return err
	}
	return d.Mounter.Mount("tmpfs", target, "tmpfs", options)
}

func (d *Driver) unbind(target string) error {
	mounted, err := d.Mounter.IsMountPoint(target)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil || !mounted {
		return err
	}
	return d.Mounter.Unmount(target)
}
