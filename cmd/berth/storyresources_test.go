package main

import (
	"time"

	"berth/internal/resources/containermanager"
	"berth/internal/resources/devicemanager"
	"berth/internal/resources/memorymanager"
)

// storyResources are a node that shares out something of each kind, with plugins that are there,
// away and forgotten.
func storyResources() containermanager.Snapshot {
	away := time.Now().Add(-5*time.Hour - 10*time.Second)
	return containermanager.Snapshot{
		CPUs: &containermanager.CPUs{Reserved: "0", Shared: "0-1", Free: "1"},
		Memory: []memorymanager.NodeMemory{
			{Node: 0, Type: "memory", Allocatable: 3 << 30, Free: 3 << 30},
			{Node: 1, Type: "memory", Allocatable: 4 << 30, Free: 3 << 30, Group: []int{1, 2}},
			{Node: 1, Type: "hugepages-2Mi", Allocatable: 64 << 20, Free: 64 << 20},
		},
		Resources: []devicemanager.Resource{
			{Name: "example.com/gpu", Devices: 4, Healthy: 3, Given: 2, Free: 1, Plugin: "/var/lib/kubelet/device-plugins/gpu.sock"},
			{Name: "example.com/nic", Devices: 2, Given: 1, AwaySince: &away},
			{Name: "example.com/old"},
		},
		Drivers: []string{"gpu.example.com", "nic.example.com"},
		Containers: []containermanager.Holding{
			{
				Namespace: "shop", Pod: "two", UID: "u-two", Container: "writer", CPUs: "2-3",
				Memory:  []memorymanager.Block{{NUMAAffinity: []int{1}, Type: "memory", Size: 1 << 30}},
				Devices: []devicemanager.Device{{Resource: "example.com/gpu", ID: "gpu-0", Nodes: []int64{1}}, {Resource: "example.com/gpu", ID: "gpu-1"}},
				Claims:  []containermanager.Claim{{Name: "card", Devices: []string{"gpu.example.com/pool/card-7"}}},
			},
			{
				Namespace: "shop", Pod: "two", UID: "u-two", Container: "reader",
				Devices: []devicemanager.Device{{Resource: "example.com/nic", ID: "nic-0", Nodes: []int64{0, 1}}},
			},
		},
	}
}
