package validation

import (
	"maps"
	"net"
	"regexp"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
)

const (
	maxCSIDriver     = 63 // CSI specification, GetPluginInfo: name
	maxQuobyteTenant = 64 // QuobyteVolumeSource.tenant
)

// validateDriver checks a volume of a type with its own driver.
func validateDriver(v *v1.VolumeSource, kind string, path *field.Path) field.ErrorList {
	switch kind {
	case "nfs":
		errs := required(path.Child("server"), v.NFS.Server)
		errs = append(errs, required(path.Child("path"), v.NFS.Path)...)
		if !strings.HasPrefix(v.NFS.Path, "/") {
			errs = append(errs, field.Invalid(path.Child("path"), v.NFS.Path, "must be an absolute path"))
		}
		return errs
	case "iscsi":
		return validateISCSI(v.ISCSI, path)
	case "fc":
		return validateFC(v.FC, path)
	case "csi":
		return validateCSI(v.CSI, path)
	case "gitRepo":
		return append(required(path.Child("repository"), v.GitRepo.Repository), validateLocalPath(v.GitRepo.Directory, path.Child("directory"))...)
	case "flexVolume":
		return validateFlexVolume(v.FlexVolume, path)
	case "glusterfs":
		return append(required(path.Child("endpoints"), v.Glusterfs.EndpointsName), required(path.Child("path"), v.Glusterfs.Path)...)
	case "cephfs":
		return required(path.Child("monitors"), len(v.CephFS.Monitors))
	case "rbd":
		return append(required(path.Child("monitors"), len(v.RBD.CephMonitors)), required(path.Child("image"), v.RBD.RBDImage)...)
	case "quobyte":
		return validateQuobyte(v.Quobyte, path)
	case "flocker":
		return validateFlocker(v.Flocker, path)
	case "storageos":
		return validateStorageOS(v.StorageOS, path)
	default:
		return validateCloudDisk(v, kind, path)
	}
}

// validateCloudDisk checks volumes of cloud providers.
func validateCloudDisk(v *v1.VolumeSource, kind string, path *field.Path) field.ErrorList {
	switch kind {
	case "gcePersistentDisk":
		return append(required(path.Child("pdName"), v.GCEPersistentDisk.PDName), validatePartition(v.GCEPersistentDisk.Partition, path)...)
	case "awsElasticBlockStore":
		return append(required(path.Child("volumeID"), v.AWSElasticBlockStore.VolumeID), validatePartition(v.AWSElasticBlockStore.Partition, path)...)
	case "azureFile":
		return append(required(path.Child("secretName"), v.AzureFile.SecretName), required(path.Child("shareName"), v.AzureFile.ShareName)...)
	case "azureDisk":
		return validateAzureDisk(v.AzureDisk, path)
	case "cinder":
		return append(required(path.Child("volumeID"), v.Cinder.VolumeID), validateSecretRef(v.Cinder.SecretRef, path.Child("secretRef"))...)
	case "vsphereVolume":
		return required(path.Child("volumePath"), v.VsphereVolume.VolumePath)
	case "photonPersistentDisk":
		return required(path.Child("pdID"), v.PhotonPersistentDisk.PdID)
	case "portworxVolume":
		return required(path.Child("volumeID"), v.PortworxVolume.VolumeID)
	case "scaleIO":
		errs := required(path.Child("gateway"), v.ScaleIO.Gateway)
		errs = append(errs, required(path.Child("system"), v.ScaleIO.System)...)
		return append(errs, required(path.Child("volumeName"), v.ScaleIO.VolumeName)...)
	}
	return nil
}

func validateSecretRef(r *v1.LocalObjectReference, path *field.Path) field.ErrorList {
	if r == nil {
		return nil
	}
	return required(path.Child("name"), r.Name)
}

func validatePartition(n int32, path *field.Path) field.ErrorList {
	if n < 0 || n > 255 {
		return field.ErrorList{field.Invalid(path.Child("partition"), n, validation.InclusiveRangeError(1, 255))}
	}
	return nil
}

func validateLUN(n int32, path *field.Path) field.ErrorList {
	if n < 0 || n > 255 {
		return field.ErrorList{field.Invalid(path.Child("lun"), n, validation.InclusiveRangeError(0, 255))}
	}
	return nil
}

// The forms of an iSCSI name (RFC 3720, section 3.2.6.3; NAA names have 16 or 32 digits).
var iscsiName = regexp.MustCompile(`^(iqn\.\d{4}-\d{2}\.[a-zA-Z0-9.-]+:[^,;*&$|\s]+|eui\.[a-fA-F0-9]{16}|naa\.([a-fA-F0-9]{16}|[a-fA-F0-9]{32}))$`)

func validateISCSI(s *v1.ISCSIVolumeSource, path *field.Path) field.ErrorList {
	errs := required(path.Child("targetPortal"), s.TargetPortal)
	errs = append(errs, required(path.Child("iqn"), s.IQN)...)
	if s.IQN != "" && !iscsiName.MatchString(s.IQN) {
		errs = append(errs, field.Invalid(path.Child("iqn"), s.IQN, "must be valid format starting with iqn, eui, or naa"))
	}
	errs = append(errs, validateLUN(s.Lun, path)...)
	if (s.DiscoveryCHAPAuth || s.SessionCHAPAuth) && s.SecretRef == nil {
		errs = append(errs, field.Required(path.Child("secretRef"), ""))
	}
	if n := s.InitiatorName; n != nil && !iscsiName.MatchString(*n) {
		errs = append(errs, field.Invalid(path.Child("initiatorName"), *n, "must be valid format starting with iqn, eui, or naa"))
	}
	return errs
}

func validateFC(s *v1.FCVolumeSource, path *field.Path) field.ErrorList {
	switch at := path.Child("targetWWNs"); {
	case len(s.TargetWWNs) == 0 && len(s.WWIDs) == 0:
		return field.ErrorList{field.Required(at, "must specify either targetWWNs or wwids, but not both")}
	case len(s.TargetWWNs) > 0 && len(s.WWIDs) > 0:
		return field.ErrorList{field.Invalid(at, s.TargetWWNs, "targetWWNs and wwids can not be specified simultaneously")}
	case len(s.WWIDs) > 0: // a WWID alone identifies the volume
		return nil
	case s.Lun == nil:
		return field.ErrorList{field.Required(path.Child("lun"), "lun is required if targetWWNs is specified")}
	}
	return validateLUN(*s.Lun, path)
}

func validateCSI(s *v1.CSIVolumeSource, path *field.Path) field.ErrorList {
	at := path.Child("driver")
	errs := required(at, s.Driver)
	if len(s.Driver) > maxCSIDriver {
		errs = append(errs, field.TooLong(at, s.Driver, maxCSIDriver))
	}
	if s.Driver != "" {
		errs = append(errs, invalid(at, s.Driver, validation.IsDNS1123Subdomain(strings.ToLower(s.Driver)))...)
	}
	if r := s.NodePublishSecretRef; r != nil {
		at := path.Child("nodePublishSecretRef", "name")
		errs = append(errs, required(at, r.Name)...)
		if r.Name != "" {
			errs = append(errs, invalid(at, r.Name, validation.IsDNS1123Subdomain(r.Name))...)
		}
	}
	return errs
}

func validateFlexVolume(s *v1.FlexVolumeSource, path *field.Path) field.ErrorList {
	errs := required(path.Child("driver"), s.Driver)
	for _, key := range slices.Sorted(maps.Keys(s.Options)) {
		domain, _, _ := strings.Cut(key, "/")
		domain = "." + strings.ToLower(domain)
		if strings.HasSuffix(domain, ".kubernetes.io") || strings.HasSuffix(domain, ".k8s.io") {
			errs = append(errs, field.Invalid(path.Child("options").Key(key), key, "the domains kubernetes.io and k8s.io are reserved"))
		}
	}
	return errs
}

func validateQuobyte(s *v1.QuobyteVolumeSource, path *field.Path) field.ErrorList {
	const pairs = "must be a host:port pair or multiple pairs separated by commas"
	var errs field.ErrorList
	if at := path.Child("registry"); s.Registry == "" {
		errs = append(errs, field.Required(at, pairs))
	} else {
		for pair := range strings.SplitSeq(s.Registry, ",") {
			if _, _, err := net.SplitHostPort(pair); err != nil {
				errs = append(errs, field.Invalid(at, s.Registry, pairs))
			}
		}
	}
	if len(s.Tenant) > maxQuobyteTenant {
		errs = append(errs, field.Required(path.Child("tenant"), "must be a UUID and may not exceed a length of 64 characters"))
	}
	return append(errs, required(path.Child("volume"), s.Volume)...)
}

func validateFlocker(s *v1.FlockerVolumeSource, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	switch {
	case s.DatasetName == "" && s.DatasetUUID == "":
		errs = append(errs, field.Required(path, "one of datasetName and datasetUUID is required"))
	case s.DatasetName != "" && s.DatasetUUID != "":
		errs = append(errs, field.Invalid(path, "resource", "datasetName and datasetUUID can not be specified simultaneously"))
	}
	if strings.Contains(s.DatasetName, "/") {
		errs = append(errs, field.Invalid(path.Child("datasetName"), s.DatasetName, "must not contain '/'"))
	}
	return errs
}

func validateStorageOS(s *v1.StorageOSVolumeSource, path *field.Path) field.ErrorList {
	errs := required(path.Child("volumeName"), s.VolumeName)
	if s.VolumeName != "" {
		errs = append(errs, invalid(path.Child("volumeName"), s.VolumeName, validation.IsDNS1123Label(s.VolumeName))...)
	}
	if s.VolumeNamespace != "" {
		errs = append(errs, invalid(path.Child("volumeNamespace"), s.VolumeNamespace, validation.IsDNS1123Label(s.VolumeNamespace))...)
	}
	return append(errs, validateSecretRef(s.SecretRef, path.Child("secretRef"))...)
}

func validateAzureDisk(s *v1.AzureDiskVolumeSource, path *field.Path) field.ErrorList {
	errs := required(path.Child("diskName"), s.DiskName)
	errs = append(errs, required(path.Child("diskURI"), s.DataDiskURI)...)
	errs = append(errs, validateChoice(s.CachingMode, path.Child("cachingMode"),
		v1.AzureDataDiskCachingNone, v1.AzureDataDiskCachingReadOnly, v1.AzureDataDiskCachingReadWrite)...)
	errs = append(errs, validateChoice(s.Kind, path.Child("kind"),
		v1.AzureSharedBlobDisk, v1.AzureDedicatedBlobDisk, v1.AzureManagedDisk)...)
	start, form := "https://", "https://{account-name}.blob.core.windows.net/{container-name}/{disk-name}.vhd"
	if ptr.Deref(s.Kind, "") == v1.AzureManagedDisk {
		start, form = "/subscriptions/", "/subscriptions/{sub-id}/resourcegroups/{group-name}/providers/microsoft.compute/disks/{disk-id}"
	}
	if !strings.HasPrefix(s.DataDiskURI, start) {
		errs = append(errs, field.NotSupported(path.Child("diskURI"), s.DataDiskURI, []string{form}))
	}
	return errs
}
