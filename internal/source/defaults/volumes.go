package defaults

import (
	v1 "k8s.io/api/core/v1"
)

const (
	// defaultFileMode is the mode of files in secret, configMap, downwardAPI and projected volumes
	// (their field defaultMode).
	defaultFileMode int32 = 0o644
	// defaultTokenSeconds is the lifetime of projected service account tokens
	// (ServiceAccountTokenProjection.expirationSeconds).
	defaultTokenSeconds int64 = 3600
)

// setVolumeDefaults sets the defaults of one volume. A volume without a type is an emptyDir
// (kubernetes.io/docs/concepts/storage/volumes).
func setVolumeDefaults(v *v1.VolumeSource) {
	if *v == (v1.VolumeSource{}) {
		v.EmptyDir = &v1.EmptyDirVolumeSource{}
	}
	if v.Secret != nil {
		setDefaultPtr(&v.Secret.DefaultMode, defaultFileMode)
	}
	if v.ConfigMap != nil {
		setDefaultPtr(&v.ConfigMap.DefaultMode, defaultFileMode)
	}
	if v.DownwardAPI != nil {
		setDefaultPtr(&v.DownwardAPI.DefaultMode, defaultFileMode)
		setDownwardDefaults(v.DownwardAPI.Items)
	}
	if v.Projected != nil {
		setDefaultPtr(&v.Projected.DefaultMode, defaultFileMode)
		for i := range v.Projected.Sources {
			setProjectionDefaults(&v.Projected.Sources[i])
		}
	}
	if v.HostPath != nil {
		setDefaultPtr(&v.HostPath.Type, v1.HostPathUnset)
	}
	if v.Image != nil {
		setDefault(&v.Image.PullPolicy, computePullPolicy(v.Image.Reference))
	}
	if v.Ephemeral != nil && v.Ephemeral.VolumeClaimTemplate != nil {
		setDefaultPtr(&v.Ephemeral.VolumeClaimTemplate.Spec.VolumeMode, v1.PersistentVolumeFilesystem)
	}
	setDriverDefaults(v)
}

func setProjectionDefaults(p *v1.VolumeProjection) {
	if p.DownwardAPI != nil {
		setDownwardDefaults(p.DownwardAPI.Items)
	}
	if p.ServiceAccountToken != nil {
		setDefaultPtr(&p.ServiceAccountToken.ExpirationSeconds, defaultTokenSeconds)
	}
}

func setDownwardDefaults(items []v1.DownwardAPIVolumeFile) {
	for i := range items {
		setFieldRefDefaults(items[i].FieldRef)
	}
}

// setDriverDefaults sets the defaults of volume types with their own driver.
func setDriverDefaults(v *v1.VolumeSource) {
	if v.ISCSI != nil {
		setDefault(&v.ISCSI.ISCSIInterface, "default")
	}
	if v.RBD != nil {
		setDefault(&v.RBD.RBDPool, "rbd")
		setDefault(&v.RBD.RadosUser, "admin")
		setDefault(&v.RBD.Keyring, "/etc/ceph/keyring")
	}
	if v.ScaleIO != nil {
		setDefault(&v.ScaleIO.StorageMode, "ThinProvisioned")
		setDefault(&v.ScaleIO.FSType, "xfs")
	}
	if v.AzureDisk != nil {
		setDefaultPtr(&v.AzureDisk.CachingMode, v1.AzureDataDiskCachingReadWrite)
		setDefaultPtr(&v.AzureDisk.Kind, v1.AzureSharedBlobDisk)
		setDefaultPtr(&v.AzureDisk.FSType, "ext4")
		setDefaultPtr(&v.AzureDisk.ReadOnly, false)
	}
}
