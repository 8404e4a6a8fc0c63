package podresources

import (
	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/cpuset"

	"berth/internal/pod"
)

// Pods are the pods of this node. Mirrors are none of them.
type Pods interface {
	// Active returns the pods that were admitted and have not ended, in any order.
	Active() []*v1.Pod
	// List returns all pods that are known, ended and refused ones too, in any order.
	List() []*v1.Pod
	// GetByFullName returns a known pod.
	GetByFullName(name pod.FullName) (*v1.Pod, bool)
}

// Devices are what device plugins offer. What a container was given is no longer there when its pod
// has ended, so that no answer shows what belongs to nobody.
type Devices interface {
	// Devices returns those that the container has.
	Devices(uid pod.UID, container string) []Device
	// Healthy returns those of the node that are healthy, whether or not somebody has them.
	Healthy() []Device
}

// Device is one device of a resource.
type Device struct {
	// Resource is the extended resource, such as example.com/gpu.
	Resource v1.ResourceName
	// ID is the plugin's name for the device.
	ID string
	// Nodes are the NUMA nodes that the device is near; none: it did not say.
	Nodes []int
}

// CPUs are the processors of the machine.
type CPUs interface {
	// Exclusive returns the CPUs that the container alone uses; none: it shares.
	Exclusive(uid pod.UID, container string) cpuset.CPUSet
	// Allocatable returns the CPUs that containers could have for themselves, whether or not one
	// has them; none with the policy none.
	Allocatable() cpuset.CPUSet
}

// Memory is memory and huge pages, as far as they are given by NUMA node.
type Memory interface {
	// Blocks returns what the container was given.
	Blocks(uid pod.UID, container string) []Block
	// Allocatable returns what containers could be given, whether or not one has it.
	Allocatable() []Block
}

// Block is an amount of memory on NUMA nodes.
type Block struct {
	// Type is memory, or hugepages-<size>.
	Type v1.ResourceName
	// Bytes is how much.
	Bytes uint64
	// Nodes are the NUMA nodes that it lies on.
	Nodes []int
}

// Claims are the devices of dynamic resource allocation.
type Claims interface {
	// Claims returns the claims that the container uses, with the devices that it has of each.
	Claims(p *v1.Pod, c *v1.Container) []Claim
}

// Claim is a ResourceClaim, and what a container has of it.
type Claim struct {
	Namespace, Name string
	Devices         []ClaimedDevice
}

// ClaimedDevice is a device that was allocated to a claim.
type ClaimedDevice struct {
	Driver, Pool, Name string
	// Share tells the users of a shared device apart; nil: it is not shared.
	Share *string
	// CDI are the device's own qualified CDI names.
	CDI []string
}
