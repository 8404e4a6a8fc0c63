package node

import (
	"net/netip"

	v1 "k8s.io/api/core/v1"
)

// Settings is the configuration of the Node. It does not change while the agent runs.
type Settings struct {
	// Name of the Node object.
	Name string
	// KubeletVersion is nodeInfo.kubeletVersion, such as "v1.36.3+berth.0.1".
	KubeletVersion string
	// KubeletPort is the port of the HTTPS API; 0 if there is none.
	KubeletPort int32
	// RegisterNode is KubeletConfiguration's registerNode: whether a missing Node is created.
	RegisterNode bool
	// Labels are those of --node-labels; they override the agent's own labels.
	Labels map[string]string
	// Taints are KubeletConfiguration's registerWithTaints.
	Taints []v1.Taint
	// ProviderID is KubeletConfiguration's providerID.
	ProviderID string
	// ExternalCloudProvider is true if --cloud-provider is external: the provider sets the
	// addresses and removes the taint.
	ExternalCloudProvider bool
	// NodeIPs are those of --node-ip: none, one, or one of each family. An unspecified address
	// ("::") only prefers its family.
	NodeIPs []netip.Addr
	// ControllerAttachDetach is KubeletConfiguration's enableControllerAttachDetach.
	ControllerAttachDetach bool
	// MaxPods and PodsPerCore are the fields of KubeletConfiguration; with PodsPerCore 0 the number
	// of cores sets no limit.
	MaxPods, PodsPerCore int
	// LocalStorageCapacityIsolation is the field of KubeletConfiguration: whether ephemeral-storage
	// is reported.
	LocalStorageCapacityIsolation bool
	// Reservation is the part of the capacity that is not allocatable.
	Reservation Reservation
	// MaxImages is KubeletConfiguration's nodeStatusMaxImages; negative means no limit.
	MaxImages int
	// DeclaredFeatures are reported as status.declaredFeatures (KEP-5328), sorted.
	DeclaredFeatures []string
}

// Facts are the inputs of the Node's status at one moment. A fact that could not be read is zero,
// and its part of the status stays unchanged.
type Facts struct {
	Machine   Machine
	Addresses []v1.NodeAddress
	Runtime   RuntimeState
	// Images on the node, in any order.
	Images []v1.ContainerImage
	// Problems make the node not ready, besides those of the facts themselves.
	Problems []error
	Pressure Pressure
	// Devices are the resources of device plugins.
	Devices Devices
	// VolumesInUse are attachable volumes that must not be detached; nil: not known yet, and the
	// reported list stays unchanged.
	VolumesInUse []v1.UniqueVolumeName
}

// Pressure reports the resources that the node is short of.
type Pressure struct{ Memory, Disk, PID bool }

// Devices are the extended resources of device plugins. A resource whose plugin is unavailable
// stays, with amount 0.
type Devices struct {
	Capacity    v1.ResourceList
	Allocatable v1.ResourceList
}
