package podresources

import (
	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/cpuset"

	"berth/internal/pod"
)

// Pods are the pods of this node, without mirror pods.
type Pods interface {
	// Active returns the admitted pods that have not terminated, in any order.
	Active() []*v1.Pod
	// List returns all known pods, including terminated and rejected ones, in any order.
	List() []*v1.Pod
	// GetByFullName returns a known pod.
	GetByFullName(name pod.FullName) (*v1.Pod, bool)
}

// Devices are the devices of device plugins. Allocations of terminated pods are released, so
// responses do not contain them.
type Devices interface {
	// Devices returns the devices of the container.
	Devices(uid pod.UID, container string) []Device
	// Healthy returns the healthy devices of the node, including allocated ones.
	Healthy() []Device
}

// Device is one device of a resource.
type Device struct {
	// Resource is the extended resource, such as example.com/gpu.
	Resource v1.ResourceName
	// ID is the plugin's ID of the device.
	ID string
	// Nodes are the NUMA nodes of the device, if reported.
	Nodes []int
}

// CPUs are the CPUs of the machine.
type CPUs interface {
	// Exclusive returns the exclusive CPUs of the container; the set may be empty.
	Exclusive(uid pod.UID, container string) cpuset.CPUSet
	// Allocatable returns the CPUs that can be exclusive, including allocated ones; empty with the
	// policy none.
	Allocatable() cpuset.CPUSet
}

// Memory is memory and hugepages that are allocated by NUMA node.
type Memory interface {
	// Blocks returns the allocation of the container.
	Blocks(uid pod.UID, container string) []Block
	// Allocatable returns the allocatable memory, including allocated memory.
	Allocatable() []Block
}

// Block is an amount of memory on NUMA nodes.
type Block struct {
	// Type is memory or hugepages-<size>.
	Type v1.ResourceName
	// Bytes is the size in bytes.
	Bytes uint64
	// Nodes are the NUMA nodes of the memory.
	Nodes []int
}

// Claims are the claims of dynamic resource allocation.
type Claims interface {
	// Claims returns the container's claims, with its devices of each.
	Claims(p *v1.Pod, c *v1.Container) []Claim
}

// Claim is a ResourceClaim with a container's devices of it.
type Claim struct {
	Namespace, Name string
	Devices         []ClaimedDevice
}

// ClaimedDevice is a device that is allocated to a claim.
type ClaimedDevice struct {
	Driver, Pool, Name string
	// Share distinguishes the shares of a device; nil: the device is not shared.
	Share *string
	// CDI are the device's own qualified CDI names.
	CDI []string
}
