package eviction

import v1 "k8s.io/api/core/v1"

// Signal is the cause of an eviction, as in the configuration and the metric kubelet_evictions.
type Signal string

// The signals of node pressure (Kubernetes documentation, "Node-pressure Eviction").
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

// The signals of local storage limits.
const (
	EmptyDirLimit  Signal = "emptydirfs.limit"
	PodLimit       Signal = "ephemeralpodfs.limit"
	ContainerLimit Signal = "ephemeralcontainerfs.limit"
)

// resources that a node runs short of, as named in events.
const (
	memory  = v1.ResourceMemory
	storage = v1.ResourceEphemeralStorage
	inodes  = v1.ResourceName("inodes")
	pids    = v1.ResourceName("pids")
)

// signals are in the order of relief: memory runs out fastest.
var signals = []struct {
	signal    Signal
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

// order returns the index of the signal, -1 if it does not exist.
func (s Signal) order() int {
	for i := range signals {
		if signals[i].signal == s {
			return i
		}
	}
	return -1
}

func (s Signal) condition() v1.NodeConditionType { return signals[s.order()].condition }

func (s Signal) resource() v1.ResourceName { return signals[s.order()].resource }
