//go:build e2e && vm

package e2e

import (
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// Huge pages: a pod has those that it asks for and none besides, in its memory-backed volume too,
// and one that asks for more than the machine has is refused. The machine has sixteen of 2 MiB. A
// quota of a small part of an emulated CPU would not let the container begin within any limit.
func TestVMHugePages(t *testing.T) {
	needsUnified(t)
	if got := readFile(t, "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages"); got != "16" {
		t.Fatalf("this host has %s huge pages, want 16: run this test by make e2e-vm", got)
	}
	const asked = v1.ResourceName(v1.ResourceHugePagesPrefix + "2Mi")
	n := newNode(t)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("huge said %q, plain %q", n.story("huge"), n.story("plain"))
		}
	})
	script := `ask() { fallocate -l $1 /huge/$1 2>>/shared/refusals && say "has $1" || say "refused $1"; }
if [ -d /huge ]; then ask 8M; ask 2M; say "uses $(cat /sys/fs/cgroup/hugetlb.2MB.current)"; fi
stay
`
	pod := func(name, amount string) {
		p := n.act(name, v1.RestartPolicyNever, nil, actor("main", script))
		if amount != "" {
			p.Spec.Containers[0].Resources.Limits = amounts("1", "64Mi")
			p.Spec.Containers[0].Resources.Limits[asked] = resource.MustParse(amount)
			p.Spec.Volumes = append(p.Spec.Volumes, v1.Volume{Name: "huge", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{Medium: v1.StorageMediumHugePages}}})
			p.Spec.Containers[0].VolumeMounts = append(p.Spec.Containers[0].VolumeMounts, v1.VolumeMount{Name: "huge", MountPath: "/huge"})
		}
		n.put(p)
	}
	pod("huge", "8Mi")
	pod("plain", "")
	n.start()
	now := n.awaitReady("huge", "plain")
	n.wantSaid("huge", "has 8M", "refused 2M", "uses 8388608")
	for name, want := range map[string]string{"huge": "8388608", "plain": "0"} {
		if got := n.podCgroup(now.named(name), "", "hugetlb.2MB.max"); got != want {
			t.Errorf("the pod %s may have %s bytes of huge pages, want %s", name, got, want)
		}
	}
	pod("too-big", "64Mi")
	n.await("the pod that asks for too much to be refused", func(p pods) bool { return p.inPhase("too-big", v1.PodFailed) })
	n.awaitEvents("", "OutOf"+string(asked))

	n.remove("huge.yaml")
	n.awaitGone(now.named("huge").UID)
	until(t, "the huge pages to be free", func() bool { return readFile(t, "/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages") == "16" })
	if refusals := readFile(t, filepath.Join(n.stage("huge"), "refusals")); !strings.Contains(refusals, "fallocate") {
		t.Errorf("the container was refused nothing: %q", refusals)
	}
}
