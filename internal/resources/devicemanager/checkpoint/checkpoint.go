// Package checkpoint is the format of the device manager's checkpoint, kubelet_internal_checkpoint,
// as the kubelet writes it, so that agent and kubelet can replace each other.
//
// Owns: the format and its checksum. The checksum covers a text with the names of this package and
// of its types, so these names are part of the format.
// Reads: nothing.
// Never: accesses a file.
package checkpoint

import (
	"encoding/json"
	"fmt"
	"hash/fnv"

	"k8s.io/utils/dump"
)

// DevicesPerNUMA are device IDs by NUMA node; -1 holds devices without a NUMA node. A device near
// several nodes is listed under each.
type DevicesPerNUMA map[int64][]string

// PodDevicesEntry is one container's allocation of one resource.
type PodDevicesEntry struct {
	PodUID        string
	ContainerName string
	ResourceName  string
	DeviceIDs     DevicesPerNUMA
	// AllocResp is the plugin's ContainerAllocateResponse (v1beta1) as protobuf; nil: no response
	// yet.
	AllocResp []byte
}

// checkpointData must have this name: it is part of the checksum.
type checkpointData struct {
	PodDeviceEntries []PodDevicesEntry
	// RegisteredDevices are the IDs of the healthy devices of each resource.
	RegisteredDevices map[string][]string
}

// Data is the content of the checkpoint.
type Data = checkpointData

type file struct {
	Data     Data
	Checksum uint64
}

// Encode encodes the checkpoint.
func Encode(d Data) ([]byte, error) { return json.Marshal(file{Data: d, Checksum: checksum(d)}) }

// Decode decodes a checkpoint of this package or of the kubelet. It returns an error if the JSON is
// invalid or the checksum does not match.
func Decode(content []byte) (Data, error) {
	var f file
	if err := json.Unmarshal(content, &f); err != nil {
		return Data{}, err
	}
	if sum := checksum(f.Data); sum != f.Checksum {
		return Data{}, fmt.Errorf("its checksum is %d, that of its content %d", f.Checksum, sum)
	}
	return f.Data, nil
}

func checksum(d Data) uint64 {
	h := fnv.New32a()
	_, _ = h.Write([]byte(dump.ForHash(d))) // never fails
	return uint64(h.Sum32())
}
