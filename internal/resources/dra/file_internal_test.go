package dra

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"

	"berth/internal/pod"
)

// What a kubelet wrote, as it is shown in bug reports.
const kubeletsEmpty = `{"Data":"{\"kind\":\"DRACheckpoint\",\"apiVersion\":\"checkpoint.dra.kubelet.k8s.io/v1\",\"ClaimInfoStateList\":[]}","Checksum":2361995144}`

func someClaims() map[types.NamespacedName]*claim {
	return map[types.NamespacedName]*claim{
		{Namespace: "n", Name: "b"}: {uid: "ub", pods: map[pod.UID]origin{"p": ofAnEarlier, "q": ofAnEarlier}, drivers: map[string]prepared{
			"one": {devices: []Device{
				{Driver: "one", Pool: "pool", Name: "d0", ShareID: new("s"), Requests: []string{"r", "r/s"}, CDI: []string{"v/c=1", "v/c=2"}},
				{Driver: "one", Pool: "pool", Name: "d1"},
			}},
			"two": {},
		}, earlier: true},
		{Namespace: "n", Name: "a"}: {uid: "ua", pods: map[pod.UID]origin{"p": ofAnEarlier}, drivers: map[string]prepared{}, earlier: true},
	}
}

func TestFileOfClaims(t *testing.T) {
	empty, err := encodeClaims(nil)
	if err != nil || string(empty) != kubeletsEmpty {
		t.Errorf("file of no claims: %s, %v, want %s", empty, err, kubeletsEmpty)
	}
	file, err := encodeClaims(someClaims())
	if err != nil {
		t.Fatal(err)
	}
	const want = `{"Data":"{\"kind\":\"DRACheckpoint\",\"apiVersion\":\"checkpoint.dra.kubelet.k8s.io/v1\",\"ClaimInfoStateList\":[` +
		`{\"ClaimUID\":\"ua\",\"ClaimName\":\"a\",\"Namespace\":\"n\",\"PodUIDs\":{\"p\":{}},\"DriverState\":{}},` +
		`{\"ClaimUID\":\"ub\",\"ClaimName\":\"b\",\"Namespace\":\"n\",\"PodUIDs\":{\"p\":{},\"q\":{}},\"DriverState\":{` +
		`\"one\":{\"Devices\":[{\"PoolName\":\"pool\",\"DeviceName\":\"d0\",\"ShareID\":\"s\",\"RequestNames\":[\"r\",\"r/s\"],\"CDIDeviceIDs\":[\"v/c=1\",\"v/c=2\"]},` +
		`{\"PoolName\":\"pool\",\"DeviceName\":\"d1\",\"ShareID\":null,\"RequestNames\":null,\"CDIDeviceIDs\":null}]},\"two\":{\"Devices\":[]}}}]}","Checksum":`
	if !strings.HasPrefix(string(file), want) {
		t.Errorf("file:\n%s\nwant:\n%s", file, want)
	}
	read, err := decodeClaims(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(someClaims(), read, cmp.AllowUnexported(claim{}, prepared{})); diff != "" {
		t.Errorf("read (-want +got):\n%s", diff)
	}
}

func TestFileThatCannotBeRead(t *testing.T) {
	claims := `{"kind":"DRACheckpoint","apiVersion":"checkpoint.dra.kubelet.k8s.io/v1","ClaimInfoStateList":[{"ClaimName":"a"}]}`
	for name, test := range map[string]struct{ content, want string }{
		"nothing":       {"", "unexpected end of JSON input"},
		"torn":          {kubeletsEmpty[:60], "unexpected end of JSON input"},
		"checksum":      {strings.Replace(kubeletsEmpty, "144}", "145}", 1), "its checksum is 2361995145, and that of its content 2361995144"},
		"other content": {strings.Replace(kubeletsEmpty, "[]", "{}", 1), "its checksum is 2361995144, and that of its content "},
		"version":       {`{"Data":"{\"kind\":\"DRACheckpoint\",\"apiVersion\":\"v9\"}","Checksum":559476027}`, `it is a "DRACheckpoint" of version "v9", and DRACheckpoint of checkpoint.dra.kubelet.k8s.io/v1 is known`},
		"no UID":        {envelopeOf(t, claims), `the claim "/a" with UID "" is there twice, or lacks one of the two`},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "dra_manager_state")
			if err := os.WriteFile(path, []byte(test.content), 0o600); err != nil {
				t.Fatal(err)
			}
			err := newClaimCache(path).load()
			begin := "read which pods use which claims: " + path + ": " + test.want
			if err == nil || !strings.HasPrefix(err.Error(), begin) || !strings.HasSuffix(err.Error(), "; drain the node and remove the file") {
				t.Errorf("error = %v, want %s", err, begin)
			}
			if _, err := os.Stat(path); err != nil {
				t.Error("the file is gone")
			}
		})
	}
}
