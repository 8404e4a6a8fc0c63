package dra

import (
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"maps"
	"os"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"berth/internal/pod"
)

// Kind and version of the claim checkpoint.
const (
	fileKind    = "DRACheckpoint"
	fileVersion = "checkpoint.dra.kubelet.k8s.io/v1"
)

// envelope is the file: a JSON document as a string, and its CRC-32 (IEEE).
type envelope struct {
	Data     string
	Checksum uint32
}

type document struct {
	Kind       string      `json:"kind"`
	APIVersion string      `json:"apiVersion"`
	Claims     []claimForm `json:"ClaimInfoStateList"`
}

type claimForm struct {
	ClaimUID    types.UID
	ClaimName   string
	Namespace   string
	PodUIDs     map[pod.UID]struct{}
	DriverState map[string]driverForm
}

type driverForm struct{ Devices []deviceForm }

type deviceForm struct {
	PoolName     string
	DeviceName   string
	ShareID      *string
	RequestNames []string
	CDIDeviceIDs []string
}

// encodeClaims returns the content of the claim checkpoint, sorted by claim.
func encodeClaims(claims map[types.NamespacedName]*claim) ([]byte, error) {
	d := document{Kind: fileKind, APIVersion: fileVersion, Claims: []claimForm{}}
	for _, key := range slices.SortedFunc(maps.Keys(claims), compareKeys) {
		c := claims[key]
		f := claimForm{ClaimUID: c.uid, ClaimName: key.Name, Namespace: key.Namespace, PodUIDs: map[pod.UID]struct{}{}, DriverState: map[string]driverForm{}}
		for uid := range c.pods {
			f.PodUIDs[uid] = struct{}{}
		}
		for driver, p := range c.drivers {
			devices := []deviceForm{}
			for _, v := range p.devices {
				devices = append(devices, deviceForm{PoolName: v.Pool, DeviceName: v.Name, ShareID: v.ShareID, RequestNames: v.Requests, CDIDeviceIDs: v.CDI})
			}
			f.DriverState[driver] = driverForm{devices}
		}
		d.Claims = append(d.Claims, f)
	}
	data, err := json.Marshal(d)
	if err != nil {
		return nil, err
	}
	return json.Marshal(envelope{Data: string(data), Checksum: crc32.ChecksumIEEE(data)})
}

// decodeClaims decodes a claim checkpoint of this package or of a kubelet.
func decodeClaims(content []byte) (map[types.NamespacedName]*claim, error) {
	var e envelope
	if err := json.Unmarshal(content, &e); err != nil {
		return nil, err
	}
	if sum := crc32.ChecksumIEEE([]byte(e.Data)); sum != e.Checksum {
		return nil, fmt.Errorf("its checksum is %d, and that of its content %d", e.Checksum, sum)
	}
	var d document
	if err := json.Unmarshal([]byte(e.Data), &d); err != nil {
		return nil, err
	}
	if d.Kind != fileKind || d.APIVersion != fileVersion {
		return nil, fmt.Errorf("it is a %q of version %q, and %s of %s is known", d.Kind, d.APIVersion, fileKind, fileVersion)
	}
	out := map[types.NamespacedName]*claim{}
	for _, f := range d.Claims {
		key := types.NamespacedName{Namespace: f.Namespace, Name: f.ClaimName}
		if f.ClaimName == "" || f.ClaimUID == "" || out[key] != nil {
			return nil, fmt.Errorf("the claim %q with UID %q is there twice, or lacks one of the two", key, f.ClaimUID)
		}
		c := &claim{uid: f.ClaimUID, pods: map[pod.UID]origin{}, drivers: map[string]prepared{}, earlier: true}
		for uid := range f.PodUIDs {
			c.pods[uid] = ofAnEarlier
		}
		for driver, s := range f.DriverState {
			var devices []Device
			for _, v := range s.Devices {
				devices = append(devices, Device{Driver: driver, Pool: v.PoolName, Name: v.DeviceName, ShareID: v.ShareID, Requests: v.RequestNames, CDI: v.CDIDeviceIDs})
			}
			c.drivers[driver] = prepared{devices: devices}
		}
		out[key] = c
	}
	return out, nil
}

func (cc *claimCache) load() error {
	content, err := os.ReadFile(cc.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read which pods use which claims: %w", err)
	}
	claims, err := decodeClaims(content)
	if err != nil {
		return fmt.Errorf("read which pods use which claims: %s: %w; drain the node and remove the file", cc.path, err)
	}
	cc.mu.Lock()
	cc.claims = claims
	cc.mu.Unlock()
	return nil
}
