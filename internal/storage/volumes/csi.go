package volumes

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/utils/ptr"

	"berth/internal/pod"
	"berth/internal/storage/csi"
)

// csiPlugin is the directory name of volumes of CSI drivers.
const csiPlugin = "kubernetes.io~csi"

// Drivers returns the CSI drivers that are registered on this machine.
type Drivers interface {
	// Driver returns a driver. If it is not registered, the error names it.
	Driver(name string) (*csi.Driver, error)
	// Refresh is called when this node accepts fewer volumes of the driver than reported.
	Refresh(name string)
}

type noDrivers struct{}

func (noDrivers) Driver(string) (*csi.Driver, error) {
	return nil, errors.New("there are no CSI drivers here")
}
func (noDrivers) Refresh(string) {}

// StorageObjects is the part of the API server that CSI volumes need besides claims. Objects that
// do not exist return a NotFound API error.
type StorageObjects interface {
	// CSIDriver returns the CSIDriver object, nil if there is none.
	CSIDriver(ctx context.Context, name string) (*storagev1.CSIDriver, error)
	GetVolumeAttachment(ctx context.Context, name string) (*storagev1.VolumeAttachment, error)
	// GetSecret returns the current Secret.
	GetSecret(ctx context.Context, namespace, name string) (*v1.Secret, error)
	// DriverToken returns a token of the pod's service account and its expiry. An empty audience
	// means the API server's; nil seconds mean an hour.
	DriverToken(ctx context.Context, p *v1.Pod, audience string, seconds *int64) (token string, expires time.Time, err error)
}

// CSIConfig configures CSI volumes. The zero value is for a Manager without them.
type CSIConfig struct {
	Drivers Drivers
	Objects StorageObjects
	// NodeName is the name of this machine's Node.
	NodeName string
	// ControllerAttach: a controller attaches volumes to this machine and reports it in the Node;
	// otherwise only the VolumeAttachment is checked.
	ControllerAttach bool
	// Wake wakes the worker of a pod; nil: no worker is woken.
	Wake func(pod.UID)
	// InUseChanged is called when VolumesInUse has changed; it may be nil.
	InUseChanged func()
	// RepublishPeriod is the interval of NodePublishVolume calls for drivers with
	// requiresRepublish; 0 means a minute.
	RepublishPeriod time.Duration
	// ClaimsPeriod is the interval of reading claims again, whose volumes may have grown; 0: the
	// caller wakes the pods of claims that change.
	ClaimsPeriod time.Duration
	// FileLabel returns the SELinux label of container files, "" if SELinux is disabled; nil: it
	// is.
	FileLabel func() string
	// LabelledModes are the access modes of volumes that are mounted with an SELinux label, rather
	// than relabelled.
	LabelledModes LabelledModes
	// Health enables volume health reports of drivers (feature gate CSIVolumeHealth).
	Health bool
}

type csiID struct{ driver, handle string }

// unique returns the volume's name in the Node status.
func (id csiID) unique() v1.UniqueVolumeName {
	return v1.UniqueVolumeName("kubernetes.io/csi/" + id.driver + "^" + id.handle)
}

// attachment returns the name of the volume's VolumeAttachment.
func (id csiID) attachment(node string) string { return "csi-" + hash(id.handle+id.driver+node) }

func hash(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:])
}

type csiVolume struct {
	id                         csiID
	pod                        *v1.Pod
	podDir                     string
	capabilities               csi.Capabilities          // of the driver, once they have been read
	object                     *storagev1.CSIDriver      // nil: there is none, or it was not read
	specName                   string                    // name of its directory: that of the persistent or the pod's volume
	pv                         *v1.PersistentVolume      // nil for an inline volume
	claim                      *v1.PersistentVolumeClaim // nil without pv
	readOnly                   bool
	block                      bool // the pod gets the block device, not a filesystem
	fsType                     string
	attributes                 map[string]string
	accessModes                []v1.PersistentVolumeAccessMode
	mountOptions               []string
	label                      string // SELinux label with which it is mounted; "" for none
	stageSecret, publishSecret *v1.SecretReference
	expandSecret               *v1.SecretReference
}

// csiOf returns the CSI volume of a pod's volume: that of its claim, or an inline volume, which
// lives as long as the pod.
func csiOf(v *volume) csiVolume {
	out := csiVolume{pod: v.pod, podDir: v.podDir, specName: v.name(), block: v.isBlock()}
	if b := v.bound; b != nil {
		src := b.Spec.CSI
		out.id, out.pv, out.claim, out.readOnly, out.fsType = csiID{src.Driver, src.VolumeHandle}, b.PersistentVolume, b.claim, b.readOnly, src.FSType
		out.attributes, out.accessModes, out.mountOptions = src.VolumeAttributes, b.Spec.AccessModes, b.Spec.MountOptions
		out.stageSecret, out.publishSecret, out.expandSecret = src.NodeStageSecretRef, src.NodePublishSecretRef, src.NodeExpandSecretRef
		return out
	}
	src := v.spec.CSI
	out.id, out.readOnly = csiID{src.Driver, "csi-" + hash(string(v.pod.UID)+v.spec.Name)}, ptr.Deref(src.ReadOnly, false)
	out.fsType, out.attributes, out.accessModes = ptr.Deref(src.FSType, ""), src.VolumeAttributes, []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}
	if ref := src.NodePublishSecretRef; ref != nil {
		out.publishSecret = &v1.SecretReference{Namespace: v.pod.Namespace, Name: ref.Name}
	}
	return out
}

// failed returns the error of a step of the volume's setup.
func (v *csiVolume) failed(step string, err error) *Error {
	if v.block {
		return &Error{Class: MapFailed, Step: step, Err: err}
	}
	return &Error{Step: step, Err: err}
}

func (v *csiVolume) lifecycle() storagev1.VolumeLifecycleMode {
	if v.pv == nil {
		return storagev1.VolumeLifecycleEphemeral
	}
	return storagev1.VolumeLifecyclePersistent
}
