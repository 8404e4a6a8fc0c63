package crispec

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// What the pod says of a container holds over what a device plugin says of it, and the agent's own
// annotations over both: they are how it finds the container again.
func TestAssignedIsAddedAndOverridesNothing(t *testing.T) {
	a := Assigned{
		Env:         []*runtimeapi.KeyValue{{Key: "GPU", Value: []byte("0")}, {Key: "MODE", Value: []byte("plugin")}},
		Mounts:      []*runtimeapi.Mount{{ContainerPath: "/lib/gpu", HostPath: "/opt/gpu"}, {ContainerPath: "/data", HostPath: "/elsewhere"}},
		Devices:     []*runtimeapi.Device{{ContainerPath: "/dev/gpu0", HostPath: "/dev/g0", Permissions: "rw"}},
		Annotations: map[string]string{"vendor/mode": "fast", "io.kubernetes.container.hash": "forged"},
		CDIDevices:  []*runtimeapi.CDIDevice{{Name: "vendor.com/gpu=0"}},
		CPUs:        "2-3", MemoryNodes: "1",
	}
	cfg := &runtimeapi.ContainerConfig{
		Envs:        []*runtimeapi.KeyValue{{Key: "MODE", Value: []byte("pod")}},
		Mounts:      []*runtimeapi.Mount{{ContainerPath: "/data", HostPath: "/volume"}},
		Annotations: map[string]string{"io.kubernetes.container.hash": "1"},
		Linux:       &runtimeapi.LinuxContainerConfig{Resources: &runtimeapi.LinuxContainerResources{CpuShares: 2}},
	}
	a.add(cfg)
	want := &runtimeapi.ContainerConfig{
		Envs:        []*runtimeapi.KeyValue{{Key: "GPU", Value: []byte("0")}, {Key: "MODE", Value: []byte("pod")}},
		Mounts:      []*runtimeapi.Mount{{ContainerPath: "/data", HostPath: "/volume"}, {ContainerPath: "/lib/gpu", HostPath: "/opt/gpu"}},
		Devices:     []*runtimeapi.Device{{ContainerPath: "/dev/gpu0", HostPath: "/dev/g0", Permissions: "rw"}},
		Annotations: map[string]string{"vendor/mode": "fast", "io.kubernetes.container.hash": "1"},
		CDIDevices:  []*runtimeapi.CDIDevice{{Name: "vendor.com/gpu=0"}},
		Linux:       &runtimeapi.LinuxContainerConfig{Resources: &runtimeapi.LinuxContainerResources{CpuShares: 2, CpusetCpus: "2-3", CpusetMems: "1"}},
	}
	if diff := cmp.Diff(want, cfg, protocmp.Transform()); diff != "" {
		t.Error(diff)
	}
	if a.Annotations["io.kubernetes.container.hash"] != "forged" {
		t.Error("the assignment was changed")
	}
}

func TestContainersWithCPUsOfTheirOwnHaveNoQuota(t *testing.T) {
	list := func(cpu string) v1.ResourceList {
		return v1.ResourceList{v1.ResourceCPU: resource.MustParse(cpu), v1.ResourceMemory: resource.MustParse("1Gi")}
	}
	container := func(name, cpu string) v1.Container {
		return v1.Container{Name: name, Resources: v1.ResourceRequirements{Requests: list(cpu), Limits: list(cpu)}}
	}
	p := &v1.Pod{Spec: v1.PodSpec{Containers: []v1.Container{container("whole", "2"), container("part", "1500m")}}}
	s := ResourceSettings{}
	if got := ContainerResources(p, &p.Spec.Containers[0], s).CpuQuota; got != 200_000 {
		t.Errorf("without own CPUs: quota %d", got)
	}
	s.CPUQuota.OwnCPUs = true
	for i, want := range []int64{0, 150_000} {
		if got := ContainerResources(p, &p.Spec.Containers[i], s).CpuQuota; got != want {
			t.Errorf("%s: quota %d, want %d", p.Spec.Containers[i].Name, got, want)
		}
	}
}
