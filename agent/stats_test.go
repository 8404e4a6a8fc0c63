package agent

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/internal/config"
)

// The summary tells of each part of the node whose cgroup is named: the runtime's is named by a
// flag alone.
func TestSystemCgroups(t *testing.T) {
	k := &config.Kubelet{RuntimeCgroups: "/system.slice/containerd.service"}
	k.KubeletCgroups = "/system.slice/kubelet.service"
	want := map[string]string{"kubelet": "/system.slice/kubelet.service", "runtime": "/system.slice/containerd.service"}
	if diff := cmp.Diff(want, systemCgroups(k)); diff != "" {
		t.Errorf("cgroups (-want +got):\n%s", diff)
	}
}
