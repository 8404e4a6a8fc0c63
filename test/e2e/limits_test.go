//go:build e2e

package e2e

import (
	"os"
	"path/filepath"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	"berth/internal/api/server"
)

// withLimitedDisk limits the container's ephemeral storage.
func withLimitedDisk(c v1.Container, limit string) v1.Container {
	c.Resources.Limits = v1.ResourceList{v1.ResourceEphemeralStorage: resource.MustParse(limit)}
	return c
}

// withLimitedVolume gives every container of the pod an emptyDir in /data.
func withLimitedVolume(p *v1.Pod, limit string) *v1.Pod {
	p.Spec.Volumes = append(p.Spec.Volumes, v1.Volume{
		Name: "data", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{SizeLimit: ptr.To(resource.MustParse(limit))}},
	})
	for i := range p.Spec.Containers {
		p.Spec.Containers[i].VolumeMounts = append(p.Spec.Containers[i].VolumeMounts, v1.VolumeMount{Name: "data", MountPath: "/data"})
	}
	return p
}

// A pod whose emptyDir outgrows its sizeLimit is evicted, and so is one whose container writes more
// than its limit. Their neighbour below its limits goes on.
func TestLocalStorageLimits(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	const write = "head -c 9000000 /dev/zero > "
	n.put(withLimitedVolume(n.act("volume", v1.RestartPolicyAlways, nil, actor("main", write+"/data/big; say written; stay")), "4Mi"))
	n.put(n.act("layer", v1.RestartPolicyAlways, nil,
		withLimitedDisk(actor("main", write+"/big; say written; stay"), "4Mi"), withLimitedDisk(actor("other", "stay"), "1Gi")))
	n.put(withLimitedVolume(n.act("below", v1.RestartPolicyAlways, nil,
		withLimitedDisk(actor("main", write+"/data/big; "+write+"/big; say written; stay"), "64Mi")), "32Mi"))
	n.start()
	n.awaitStory("below", "main written")
	p := n.await("two pods to be evicted", func(p pods) bool { return p.inPhase("volume", v1.PodFailed) && p.inPhase("layer", v1.PodFailed) })
	for name, message := range map[string]string{
		"volume": `Usage of EmptyDir volume "data" exceeds the limit "4Mi". `,
		"layer":  `Container main exceeded its local ephemeral storage limit "4Mi". `,
	} {
		s := p.named(name).Status
		if s.Reason != "Evicted" || s.Message != message {
			t.Errorf("%s: %s %q, want Evicted %q", name, s.Reason, s.Message, message)
		}
		for _, c := range s.Conditions {
			if c.Type == v1.DisruptionTarget {
				t.Errorf("%s has condition %+v", name, c)
			}
		}
		wantText(t, "explain", n.berth("explain", "--all", name), "Evicted", message, "it is evicted; grace period 1 s")
		until(t, "nothing of "+name+" to run", func() bool {
			sandboxes, containers := n.running(p.named(name))
			return sandboxes+containers == 0
		})
	}
	until(t, "the files to be gone", func() bool {
		_, err := os.Stat(filepath.Join(n.place.Root, "pods", string(p.named("volume").UID), "volumes", "kubernetes.io~empty-dir", "data"))
		return os.IsNotExist(err)
	})
	until(t, "both to be counted", func() bool {
		m := n.ask(server.PathMetrics)
		return valueOf(m, `kubelet_evictions{eviction_signal="emptydirfs.limit"}`) == "1" && valueOf(m, `kubelet_evictions{eviction_signal="ephemeralcontainerfs.limit"}`) == "1"
	})
	if below := n.awaitReady("below").named("below"); container(below, "main").RestartCount != 0 || n.said("below", "main written") != 1 {
		t.Errorf("the neighbour is %+v", below.Status)
	}
}
