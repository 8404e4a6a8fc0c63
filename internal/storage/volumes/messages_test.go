package volumes

import (
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"

	"berth/internal/record/events/messagestest"
)

// The tests of the package produce each of its messages that programs match.
func TestMain(m *testing.M) { os.Exit(messagestest.Main(m, "internal/storage/volumes")) }

// A driver's secret that cannot be read is named, and the driver is not called.
func TestCSISecretsThatAreMissing(t *testing.T) {
	d := newDriven(t, nil)
	pv := d.claim("c")
	want := func(message string) {
		t.Helper()
		_, err := d.setup(t, d.user("one", "c"))
		if err == nil {
			t.Fatal("the volume is mounted")
		}
		if diff := cmp.Diff(message, err.Error()); diff != "" {
			t.Errorf("error (-want +got):\n%s", diff)
		}
	}
	pv.Spec.CSI.NodeStageSecretRef = &v1.SecretReference{Namespace: "keys", Name: "stage"}
	want(`MountVolume.MountDevice failed for volume "pv-c" : kubernetes.io/csi: failed to find the secret stage in the namespace keys with error: secrets "stage" not found`)
	pv.Spec.CSI.NodeStageSecretRef = nil
	pv.Spec.CSI.NodePublishSecretRef = &v1.SecretReference{Namespace: "keys", Name: "publish"}
	want(`MountVolume.SetUp failed for volume "pv-c" : kubernetes.io/csi: fetching NodePublishSecretRef keys/publish failed: kubernetes.io/csi: failed to find the secret publish in the namespace keys with error: secrets "publish" not found`)
}
