package eviction

import (
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	"berth/internal/observe/stats"
	"berth/internal/pod/lifecycle"
	"berth/internal/record/events/messagestest"
)

func emptyDir(name, limit string, medium v1.StorageMedium) v1.Volume {
	e := &v1.EmptyDirVolumeSource{Medium: medium}
	if limit != "" {
		e.SizeLimit = ptr.To(resource.MustParse(limit))
	}
	return v1.Volume{Name: name, VolumeSource: v1.VolumeSource{EmptyDir: e}}
}

func ephemeral(amount string) v1.ResourceList {
	return v1.ResourceList{v1.ResourceEphemeralStorage: resource.MustParse(amount)}
}

// container returns a container whose ephemeral storage is limited, unless the limit is "".
func container(name, limit string) v1.Container {
	c := v1.Container{Name: name}
	if limit != "" {
		c.Resources.Limits = ephemeral(limit)
	}
	return c
}

func sidecar(c v1.Container) v1.Container {
	c.RestartPolicy = ptr.To(v1.ContainerRestartPolicyAlways)
	return c
}

func TestExcess(t *testing.T) {
	const disk, memory = v1.StorageMediumDefault, v1.StorageMediumMemory
	configMap := v1.Volume{Name: "config", VolumeSource: v1.VolumeSource{ConfigMap: &v1.ConfigMapVolumeSource{}}}
	secret := v1.Volume{Name: "secret", VolumeSource: v1.VolumeSource{Secret: &v1.SecretVolumeSource{}}}
	type containers = map[string]stats.ContainerFiles
	type volumes = map[string]stats.Size
	for _, tt := range []struct {
		name     string
		spec     v1.PodSpec
		used     stats.Local
		memory   bool // what is in memory is asked about
		want     *excess
		headroom uint64
	}{
		{name: "nothing is limited", spec: v1.PodSpec{Volumes: []v1.Volume{emptyDir("v", "", disk)}}, used: stats.Local{Volumes: volumes{"v": {Bytes: 1 << 40}}}, headroom: math.MaxUint64},
		{
			name: "at the limit", spec: v1.PodSpec{Volumes: []v1.Volume{emptyDir("v", "1Ki", disk), emptyDir("w", "2Ki", disk)}},
			used: stats.Local{Volumes: volumes{"v": {Bytes: 1024}, "w": {Bytes: 1024}}},
		},
		{
			name: "the least headroom counts", spec: v1.PodSpec{Volumes: []v1.Volume{emptyDir("v", "1Ki", disk), emptyDir("w", "2Ki", disk)}},
			used: stats.Local{Volumes: volumes{"v": {Bytes: 24}, "w": {Bytes: 2000}}}, headroom: 48,
		},
		{
			name: "an emptyDir above its limit", spec: v1.PodSpec{Volumes: []v1.Volume{emptyDir("v", "", disk), emptyDir("w", "1Ki", disk), emptyDir("x", "1Ki", disk)}},
			used: stats.Local{Volumes: volumes{"v": {Bytes: 4096}, "w": {Bytes: 1025}, "x": {Bytes: 5000}}},
			want: &excess{EmptyDirLimit, `Usage of EmptyDir volume "w" exceeds the limit "1Ki". `, 1025},
		},
		{
			name: "a limit of zero is none", spec: v1.PodSpec{Volumes: []v1.Volume{emptyDir("v", "0", disk)}},
			used: stats.Local{Volumes: volumes{"v": {Bytes: 4096}}}, headroom: math.MaxUint64,
		},
		{
			name: "an emptyDir in memory", spec: v1.PodSpec{Volumes: []v1.Volume{emptyDir("v", "1000", memory)}}, memory: true,
			used: stats.Local{Volumes: volumes{"v": {Bytes: 4096}}},
			want: &excess{EmptyDirLimit, `Usage of EmptyDir volume "v" exceeds the limit "1k". `, 4096},
		},
		{
			name: "memory is not looked at with the disks", spec: v1.PodSpec{Volumes: []v1.Volume{emptyDir("v", "1000", memory)}},
			used: stats.Local{Volumes: volumes{"v": {Bytes: 4096}}}, headroom: math.MaxUint64,
		},
		{
			name: "huge pages", spec: v1.PodSpec{Volumes: []v1.Volume{emptyDir("v", "2Mi", "HugePages-2Mi")}},
			used: stats.Local{Volumes: volumes{"v": {Bytes: 4 << 20}}},
			want: &excess{EmptyDirLimit, `Usage of EmptyDir volume "v" exceeds the limit "2Mi". `, 4 << 20},
		},
		{
			name: "a volume that is not there yet", spec: v1.PodSpec{Volumes: []v1.Volume{emptyDir("v", "1Ki", disk)}}, headroom: 1024,
		},
		{
			name: "the pod: all that is ephemeral counts",
			spec: v1.PodSpec{
				Volumes:    []v1.Volume{emptyDir("v", "", disk), configMap, secret, emptyDir("m", "", memory)},
				Containers: []v1.Container{container("a", "400"), container("b", "600")},
			},
			used: stats.Local{Volumes: volumes{"v": {Bytes: 500}, "config": {Bytes: 100}}, Containers: containers{"a": {Rootfs: stats.Size{Bytes: 100}, Logs: stats.Size{Bytes: 50}}, "b": {Rootfs: stats.Size{Bytes: 200}, Logs: stats.Size{Bytes: 50}}}, Own: stats.Size{Bytes: 1}},
			want: &excess{PodLimit, `Pod ephemeral local storage usage exceeds the total limit of containers 1k. `, 1001},
		},
		{
			name: "a container without a limit: the pod has none",
			spec: v1.PodSpec{Volumes: []v1.Volume{emptyDir("v", "", disk)}, Containers: []v1.Container{container("a", "1000"), container("b", "")}},
			used: stats.Local{Volumes: volumes{"v": {Bytes: 5000}}, Containers: containers{"a": {Rootfs: stats.Size{Bytes: 100}}, "b": {Rootfs: stats.Size{Bytes: 5000}}}}, headroom: 900,
		},
		{
			name: "a sidecar without a limit: the pod has none",
			spec: v1.PodSpec{InitContainers: []v1.Container{sidecar(container("s", ""))}, Containers: []v1.Container{container("a", "1000")}},
			used: stats.Local{Containers: containers{"s": {Rootfs: stats.Size{Bytes: 5000}}, "a": {Rootfs: stats.Size{Bytes: 100}}}}, headroom: 900,
		},
		{
			name: "an init container without a limit: the pod has none",
			spec: v1.PodSpec{InitContainers: []v1.Container{container("i", "")}, Containers: []v1.Container{container("a", "1000")}},
			used: stats.Local{Containers: containers{"i": {Rootfs: stats.Size{Bytes: 5000}}, "a": {Rootfs: stats.Size{Bytes: 100}}}}, headroom: 900,
		},
		{
			name: "the pod below", spec: v1.PodSpec{Volumes: []v1.Volume{emptyDir("v", "", disk)}, Containers: []v1.Container{container("a", "1000")}},
			used: stats.Local{Volumes: volumes{"v": {Bytes: 500}}, Containers: containers{"a": {Rootfs: stats.Size{Bytes: 100}, Logs: stats.Size{Bytes: 50}}}, Own: stats.Size{Bytes: 10}}, headroom: 340,
		},
		{
			name: "the pod's limit has sidecars, the most of init containers, and the overhead",
			spec: v1.PodSpec{
				InitContainers: []v1.Container{sidecar(container("s", "100")), container("i", "500")}, Containers: []v1.Container{container("a", "300")},
				Overhead: ephemeral("50"),
			},
			used: stats.Local{Containers: containers{"s": {Rootfs: stats.Size{Bytes: 550}}, "a": {Rootfs: stats.Size{Bytes: 101}}}},
			want: &excess{PodLimit, `Pod ephemeral local storage usage exceeds the total limit of containers 650. `, 651},
		},
		{
			name: "a container", spec: v1.PodSpec{Containers: []v1.Container{container("a", "1Gi"), container("b", "1Ki")}},
			used: stats.Local{Containers: containers{"a": {Rootfs: stats.Size{Bytes: 100}}, "b": {Rootfs: stats.Size{Bytes: 1000}, Logs: stats.Size{Bytes: 25}}}},
			want: &excess{ContainerLimit, `Container b exceeded its local ephemeral storage limit "1Ki". `, 1025},
		},
		{
			name: "the layer is on a disk for images", spec: v1.PodSpec{Containers: []v1.Container{container("a", "1Gi"), container("b", "1Ki")}},
			used: stats.Local{Containers: containers{"b": {Rootfs: stats.Size{Bytes: 1 << 20}, Logs: stats.Size{Bytes: 24}, Dedicated: true}}}, headroom: 1000,
		},
		{
			name: "sidecars have no limit of their own", spec: v1.PodSpec{InitContainers: []v1.Container{sidecar(container("s", "10"))}, Containers: []v1.Container{container("a", "90")}},
			used: stats.Local{Containers: containers{"s": {Rootfs: stats.Size{Bytes: 60}}}}, headroom: 40,
		},
		{
			name: "an emptyDir comes before the pod", spec: v1.PodSpec{Volumes: []v1.Volume{emptyDir("v", "10", disk)}, Containers: []v1.Container{container("a", "10")}},
			used: stats.Local{Volumes: volumes{"v": {Bytes: 20}}, Containers: containers{"a": {Rootfs: stats.Size{Bytes: 20}}}},
			want: &excess{EmptyDirLimit, `Usage of EmptyDir volume "v" exceeds the limit "10". `, 20},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			memory, disk := computeLimits(&v1.Pod{Spec: tt.spec})
			l := &disk
			if tt.memory {
				l = &memory
			}
			got, headroom := computeExcess(l, &tt.used)
			if got != nil {
				messagestest.Saw("status", lifecycle.Evicted, got.message)
			}
			if diff := cmp.Diff(tt.want, got, cmp.AllowUnexported(excess{})); diff != "" || headroom != tt.headroom {
				t.Errorf("headroom %d, want %d; (-want +got):\n%s", headroom, tt.headroom, diff)
			}
		})
	}
}

// Only what decides about a limit is measured.
func TestExtent(t *testing.T) {
	spec := v1.PodSpec{Volumes: []v1.Volume{
		emptyDir("free", "", ""), emptyDir("limited", "1Mi", ""), emptyDir("memory", "1Mi", "Memory"), {Name: "secret", VolumeSource: v1.VolumeSource{Secret: &v1.SecretVolumeSource{}}},
	}, Containers: []v1.Container{container("a", "")}}
	memory, disk := computeLimits(&v1.Pod{Spec: spec})
	if diff := cmp.Diff([]stats.Extent{{Volumes: []string{"memory"}}, {Volumes: []string{"limited"}}}, []stats.Extent{memory.extent(), disk.extent()}); diff != "" {
		t.Errorf("limits of volumes (-want +got):\n%s", diff)
	}
	spec.Containers[0] = container("a", "1Gi")
	_, disk = computeLimits(&v1.Pod{Spec: spec})
	if diff := cmp.Diff(stats.Extent{Volumes: []string{"free", "limited"}, Containers: true}, disk.extent()); diff != "" {
		t.Errorf("limits of containers, too (-want +got):\n%s", diff)
	}
	memory, disk = computeLimits(&v1.Pod{Spec: v1.PodSpec{Volumes: spec.Volumes[:1], Containers: []v1.Container{container("a", "")}}})
	if !memory.none() || !disk.none() {
		t.Errorf("limits of a pod without: %+v, %+v", memory, disk)
	}
}

func TestNextWalk(t *testing.T) {
	now := time.Unix(1700000000, 0)
	last := func(ago, took time.Duration, headroom uint64) walk {
		return walk{
			ended: now.Add(-ago), took: took, headroom: headroom,
			spaces: []stats.Space{{Path: "/a", Device: 1, Free: 1000}, {Path: "/b", Device: 2, Free: 1000}},
		}
	}
	for _, tt := range []struct {
		name string
		last walk
		free map[uint64]uint64
		want bool
	}{
		{"never", walk{}, nil, true},
		{"nothing was written", last(10*time.Second, 0, 0), map[uint64]uint64{1: 1000, 2: 1000}, false},
		{"as much as there was room for", last(10*time.Second, 0, 300), map[uint64]uint64{1: 800, 2: 900}, false},
		{"more, on two file systems", last(10*time.Second, 0, 300), map[uint64]uint64{1: 800, 2: 899}, true},
		{"what is freed on one makes up for nothing on the other", last(10*time.Second, 0, 300), map[uint64]uint64{1: 5000, 2: 600}, true},
		{"a minute ago", last(time.Minute, time.Second, 1<<40), map[uint64]uint64{1: 1000, 2: 1000}, true},
		{"a long walk a minute ago", last(time.Minute, 4*time.Second, 0), map[uint64]uint64{1: 0, 2: 0}, false},
		{"rested", last(80*time.Second, 4*time.Second, 1<<40), map[uint64]uint64{1: 1000, 2: 1000}, true},
		{"a file system of which nothing can be told", last(10*time.Second, 0, 1<<40), map[uint64]uint64{1: 1000}, true},
	} {
		got := nextWalk(&tt.last, now, func(s stats.Space) (uint64, bool) { n, ok := tt.free[s.Device]; return n, ok })
		if got != tt.want {
			t.Errorf("%s: %v", tt.name, got)
		}
	}
}
