package eviction

import v1 "k8s.io/api/core/v1"

// Signal is what a pod is evicted for, as the configuration and the metric kubelet_evictions name
// it.
type Signal string

// The signals of a node that runs short (Kubernetes documentation, "Node-pressure Eviction").
const (
	MemoryAvailable            Signal = "memory.available"
	AllocatableMemoryAvailable Signal = "allocatableMemory.available"
	NodeFsAvailable            Signal = "nodefs.available"
	NodeFsInodesFree           Signal = "nodefs.inodesFree"
	ImageFsAvailable           Signal = "imagefs.available"
	ImageFsInodesFree          Signal = "imagefs.inodesFree"
	ContainerFsAvailable       Signal = "containerfs.available"
	ContainerFsInodesFree      Signal = "containerfs.inodesFree"
	PIDAvailable               Signal = "pid.available"
)

// The signals of limits of local storage.
const (
	EmptyDirLimit  Signal = "emptydirfs.limit"
	PodLimit       Signal = "ephemeralpodfs.limit"
	ContainerLimit Signal = "ephemeralcontainerfs.limit"
)

// resources that a node runs short of, as events name them.
const (
	memory  = v1.ResourceMemory
	storage = v1.ResourceEphemeralStorage
	inodes  = v1.ResourceName("inodes")
	pids    = v1.ResourceName("pids")
)

// signals are in the order in which they are relieved: memory is lost fastest.
var signals = []struct {
	Signal
	condition v1.NodeConditionType
	resource  v1.ResourceName
}{
	{MemoryAvailable, v1.NodeMemoryPressure, memory},
	{AllocatableMemoryAvailable, v1.NodeMemoryPressure, memory},
	{PIDAvailable, v1.NodePIDPressure, pids},
	{NodeFsAvailable, v1.NodeDiskPressure, storage},
	{NodeFsInodesFree, v1.NodeDiskPressure, inodes},
	{ImageFsAvailable, v1.NodeDiskPressure, storage},
	{ImageFsInodesFree, v1.NodeDiskPressure, inodes},
	{ContainerFsAvailable, v1.NodeDiskPressure, storage},
	{ContainerFsInodesFree, v1.NodeDiskPressure, inodes},
}

// order returns the place of the signal among all, -1 if there is none of that name.
func (s Signal) order() int {
	for i := range signals {
		if signals[i].Signal == s {
			return i
		}
	}
	return -1
}

// condition is that of a node for which the signal's thresholds are met.
func (s Signal) condition() v1.NodeConditionType { return signals[s.order()].condition }

// resource is what the node is short of.
func (s Signal) resource() v1.ResourceName { return signals[s.order()].resource }
