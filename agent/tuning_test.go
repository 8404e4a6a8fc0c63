package agent

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/utils/ptr"

	"berth/internal/host/tuning"
)

// Nothing of the machine is changed but by a KubeletConfiguration.
func TestTuning(t *testing.T) {
	if diff := cmp.Diff(tuning.Settings{}, settingsOf(&Config{}).tuning); diff != "" {
		t.Errorf("run mode (-want +got):\n%s", diff)
	}
	k := loadKubelet(t, "")
	want := tuning.Settings{Kernel: tuning.SetKernel, OOMScore: ptr.To(-999), OpenFiles: 1_000_000}
	if diff := cmp.Diff(want, settingsOf(&Config{Kubelet: k}).tuning); diff != "" {
		t.Errorf("the defaults (-want +got):\n%s", diff)
	}
	k.ProtectKernelDefaults, k.OOMScoreAdj, k.MaxOpenFiles, k.KubeletCgroups, k.SystemCgroups = true, ptr.To[int32](0), 5, "/kube", "/system"
	want = tuning.Settings{Kernel: tuning.DemandKernel, OOMScore: ptr.To(0), OpenFiles: 5, AgentCgroup: "/kube", SystemCgroup: "/system"}
	if diff := cmp.Diff(want, settingsOf(&Config{Kubelet: k}).tuning); diff != "" {
		t.Errorf("what is set (-want +got):\n%s", diff)
	}
}

func TestSwaps(t *testing.T) {
	const title = "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n"
	for content, want := range map[string]bool{"": false, title: false, title + "/dev/vda2 partition 1048572 0 -2\n": true} {
		if got := swaps([]byte(content)); got != want {
			t.Errorf("%q: got %v", content, got)
		}
	}
}
