package checkpoint

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// published are files of kubelets, as people showed them in public: one without an entry, one with
// a device near no NUMA node, one with devices near one.
var published = []string{
	`{"Data":{"PodDeviceEntries":null,"RegisteredDevices":{"nvidia.com/gpu":["GPU-0650a168-e770-3ea8-8ac3-8a1d419763e0"]}},"Checksum":3952659280}`,
	`{"Data":{"PodDeviceEntries":[{"PodUID":"bf52b2cd-b611-4e79-86b1-280b283185c3","ContainerName":"check","ResourceName":"nvidia.com/gpu",` +
		`"DeviceIDs":{"-1":["tegra"]},"AllocResp":"Ch8KFk5WSURJQV9WSVNJQkxFX0RFVklDRVMSBXRlZ3Jh"}],"RegisteredDevices":{"nvidia.com/gpu":["tegra"]}},"Checksum":3660592824}`,
	`{"Data":{"PodDeviceEntries":[{"PodUID":"9a15d2b5-c152-46b9-96e0-d57032629e1f","ContainerName":"app","ResourceName":"nvidia.com/gpu",` +
		`"DeviceIDs":{"1":["GPU-9b341c59-f96b-ba85-c137-78c3652fea65","GPU-c1e9f249-b37b-81c2-a8d9-ba5ca0294841"]},` +
		`"AllocResp":"CmsKFk5WSURJQV9WSVNJQkxFX0RFVklDRVMSUUdQVS1jMWU5ZjI0OS1iMzdiLTgxYzItYThkOS1iYTVjYTAyOTQ4NDEsR1BVLTliMzQxYzU5LWY5NmItYmE4NS1jMTM3LTc4Yz` +
		`M2NTJmZWE2NRokCg4vZGV2L252aWRpYWN0bBIOL2Rldi9udmlkaWFjdGwaAnJ3GiYKDy9kZXYvbnZpZGlhLXV2bRIPL2Rldi9udmlkaWEtdXZtGgJydxoyChUvZGV2L252aWRpYS11dm0tdG9v` +
		`bHMSFS9kZXYvbnZpZGlhLXV2bS10b29scxoCcncaLgoTL2Rldi9udmlkaWEtbW9kZXNldBITL2Rldi9udmlkaWEtbW9kZXNldBoCcncaIAoML2Rldi9udmlkaWExEgwvZGV2L252aWRpYTEaAn` +
		`J3GiAKDC9kZXYvbnZpZGlhMhIML2Rldi9udmlkaWEyGgJydw=="}],"RegisteredDevices":{"nvidia.com/gpu":["GPU-77a702db-e37f-3a74-d46d-c5713f66058c",` +
		`"GPU-9b341c59-f96b-ba85-c137-78c3652fea65","GPU-c1e9f249-b37b-81c2-a8d9-ba5ca0294841"]}},"Checksum":2530956716}`,
}

func TestFilesOfKubelets(t *testing.T) {
	for i, text := range published {
		d, err := Decode([]byte(text))
		if err != nil {
			t.Errorf("file %d: %v", i, err)
		}
		again, err := Encode(d)
		if err != nil || string(again) != text {
			t.Errorf("file %d, written again: %v\n%s", i, err, again)
		}
	}
}

// Nothing and something empty are different in the checksum, and stay so.
func TestEmptyAndNil(t *testing.T) {
	for _, d := range []Data{
		{},
		{PodDeviceEntries: []PodDevicesEntry{}, RegisteredDevices: map[string][]string{}},
		{RegisteredDevices: map[string][]string{"a": nil, "b": {}}},
		{PodDeviceEntries: []PodDevicesEntry{{PodUID: "u"}, {AllocResp: []byte{}, DeviceIDs: DevicesPerNUMA{}}, {DeviceIDs: DevicesPerNUMA{-1: nil, 3: {"<a>", "b&\u2028"}}}}},
	} {
		text, err := Encode(d)
		if err != nil {
			t.Fatal(err)
		}
		got, err := Decode(text)
		if err != nil {
			t.Errorf("%s: %v", text, err)
		}
		if diff := cmp.Diff(d, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", text, diff)
		}
	}
}

func TestFilesThatAreRefused(t *testing.T) {
	for content, want := range map[string]string{
		"":     "unexpected end of JSON input",
		"{}":   "its checksum is 0, that of its content",
		"[]":   "cannot unmarshal array",
		"null": "its checksum is 0",
		strings.Replace(published[0], "GPU-0", "GPU-1", 1):                 "its checksum is 3952659280, that of its content ",
		strings.Replace(published[0], `["GPU`, `{"0":["GPU`, 1):            "unexpected end",
		`{"Data":{"PodDeviceEntries":[{"DeviceIDs":["a"]}]},"Checksum":1}`: "cannot unmarshal array",
	} {
		if _, err := Decode([]byte(content)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.40q: %v, want %s", content, err, want)
		}
	}
}
