// Package checkpoint is the form of the file in which a node agent keeps who has which devices:
// kubelet_internal_checkpoint, as the kubelet writes it, so that each can go on where the other
// ended.
//
// Owns: the form, and its checksum. The checksum is over a text with the names of this package and
// of its types, so that these names are part of the form.
// Reads: nothing.
// Never: touches a file.
package checkpoint

import (
	"encoding/json"
	"fmt"
	"hash/fnv"

	"k8s.io/utils/dump"
)

// DevicesPerNUMA are the IDs of devices by NUMA node; -1 has those that lie near none. A device
// that lies near several is listed under each.
type DevicesPerNUMA map[int64][]string

// PodDevicesEntry is what one container has of one resource.
type PodDevicesEntry struct {
	PodUID        string
	ContainerName string
	ResourceName  string
	DeviceIDs     DevicesPerNUMA
	// AllocResp is the plugin's ContainerAllocateResponse (v1beta1), as protobuf; nil: it has not
	// answered.
	AllocResp []byte
}

// checkpointData has its name from the checksum.
type checkpointData struct {
	PodDeviceEntries []PodDevicesEntry
	// RegisteredDevices are the IDs of the healthy devices of each resource.
	RegisteredDevices map[string][]string
}

// Data is what the file says.
type Data = checkpointData

type file struct {
	Data     Data
	Checksum uint64
}

// Encode returns the content of the file.
func Encode(d Data) ([]byte, error) { return json.Marshal(file{Data: d, Checksum: checksum(d)}) }

// Decode reads what Encode wrote, or the kubelet. It fails for what is not JSON of this form, and
// for a checksum that is wrong.
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
	_, _ = h.Write([]byte(dump.ForHash(d))) // which cannot fail
	return uint64(h.Sum32())
}
