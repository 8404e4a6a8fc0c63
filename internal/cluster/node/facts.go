package node

import (
	"net/netip"

	v1 "k8s.io/api/core/v1"
)

// Settings are what the configuration says about the Node. They do not change while the agent runs.
type Settings struct {
	// Name of the Node, as the API server knows it.
	Name string
	// KubeletVersion is nodeInfo.kubeletVersion, as "v1.36.3+berth.0.1".
	KubeletVersion string
	// KubeletPort is the port of the HTTPS API; 0 if there is none.
	KubeletPort int32
	// RegisterNode is KubeletConfiguration's registerNode: whether the Node is created if it is
	// missing.
	RegisterNode bool
	// Labels are those of --node-labels; they override what the agent sets itself.
	Labels map[string]string
	// Taints are KubeletConfiguration's registerWithTaints.
	Taints []v1.Taint
	// ProviderID is KubeletConfiguration's providerID.
	ProviderID string
	// ExternalCloudProvider says that --cloud-provider is external: it finds the addresses and
	// lifts the taint.
	ExternalCloudProvider bool
	// NodeIPs are those of --node-ip: none, one, or one of each family. An unspecified one ("::")
	// only prefers its family.
	NodeIPs []netip.Addr
	// ControllerAttachDetach is KubeletConfiguration's enableControllerAttachDetach.
	ControllerAttachDetach bool
	// MaxPods and PodsPerCore are the fields of KubeletConfiguration; PodsPerCore 0 is no limit by
	// cores.
	MaxPods, PodsPerCore int
	// LocalStorageCapacityIsolation is the field of KubeletConfiguration: whether ephemeral-storage
	// is reported.
	LocalStorageCapacityIsolation bool
	// Reservation is what of the capacity is not for pods.
	Reservation Reservation
	// MaxImages is KubeletConfiguration's nodeStatusMaxImages; negative is no limit.
	MaxImages int
	// DeclaredFeatures are reported as status.declaredFeatures (KEP-5328), sorted.
	DeclaredFeatures []string
}

// Facts is everything that the Node's status tells, at one moment. What could not be found out is
// zero, and leaves what the Node says already as it is.
type Facts struct {
	Machine   Machine
	Addresses []v1.NodeAddress
	Runtime   RuntimeState
	// Images on the node, in any order.
	Images []v1.ContainerImage
	// Problems that make the node not ready, besides those of the facts themselves.
	Problems []error
	Pressure Pressure
	// Devices are the resources of device plugins.
	Devices Devices
	// VolumesInUse are attachable volumes that must not be detached; nil: it is not known yet, and
	// what is written of them stays.
	VolumesInUse []v1.UniqueVolumeName
}

// Pressure says what the node is short of.
type Pressure struct{ Memory, Disk, PID bool }

// Devices are the extended resources that device plugins offer. A resource whose plugin is gone
// stays, as 0.
type Devices struct {
	Capacity    v1.ResourceList
	Allocatable v1.ResourceList
}
