package devicemanager

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"
	v1 "k8s.io/api/core/v1"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"berth/internal/resources/devicemanager/checkpoint"
)

func listed(id, health string, nodes ...int64) *pluginapi.Device {
	d := &pluginapi.Device{ID: id, Health: health, Topology: &pluginapi.TopologyInfo{}}
	for _, n := range nodes {
		d.Topology.Nodes = append(d.Topology.Nodes, &pluginapi.NUMANode{ID: n})
	}
	return d
}

func TestReadDevices(t *testing.T) {
	got, complaint, err := readDevices([]*pluginapi.Device{
		listed("a", "Healthy", 1, 0, 1), listed("b", "healthy"), listed("c", "Unhealthy", -1, 2, 64, 1<<40), nil, listed("", "Healthy"),
		listed("d", "Healthy"), listed("d", "Unhealthy", 3), listed(strings.Repeat("x", maxID+1), "Healthy"),
		{ID: "e", Health: "Healthy"},
	})
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]device{"a": {true, []int64{0, 1}}, "b": {}, "c": {false, []int64{2}}, "d": {}, "e": {healthy: true}}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(device{})); diff != "" {
		t.Errorf("devices (-want +got):\n%s", diff)
	}
	if want := "2 devices without an ID are left out; 1 devices with an ID of more than 1024 bytes are left out; " +
		"1 IDs are listed more than once, and are one device; 3 NUMA nodes are not between 0 and 63, and count for nothing"; complaint != want {
		t.Errorf("complaint: %s", complaint)
	}
	many := make([]*pluginapi.Device, maxDevices+1)
	for i := range many {
		many[i] = listed(fmt.Sprint(i), "Healthy")
	}
	if _, _, err := readDevices(many); err == nil || err.Error() != "it lists 32769 devices, more than the 32768 that one resource may have" {
		t.Errorf("too many: %v", err)
	}
	if got, complaint, err := readDevices(many[1:]); len(got) != maxDevices || complaint != "" || err != nil {
		t.Errorf("as many as may be: %d, %s, %v", len(got), complaint, err)
	}
}

func TestExtendedResourceNames(t *testing.T) {
	for name, want := range map[string]bool{
		"example.com/gpu": true, "nvidia.com/mig-1g.5gb": true, "cpu": false, "": false, "/": false, "a/": false, "/b": false, "kubernetes.io/x": false,
		"x.kubernetes.io/y": false, "requests.example.com/gpu": false, "a/b/c": false, "example.com/g pu": false, "hugepages-2Mi": false,
		"example.com/" + strings.Repeat("x", 64): false, strings.Repeat("x.", 120) + "com/gpu": true, strings.Repeat("x.", 125) + "com/gpu": false,
	} {
		if got := isExtended(name); got != want {
			t.Errorf("%q: %t", name, got)
		}
	}
}

func TestFileNames(t *testing.T) {
	for name, want := range map[string]bool{
		"a.sock": true, ".a": true, "": false, ".": false, "..": false, "a/b": false, "../a": false, "/a": false, "a/": false, "a\x00": false, "/": false,
	} {
		if got := isFileName(name); got != want {
			t.Errorf("%q: %t", name, got)
		}
	}
}

func TestBrief(t *testing.T) {
	if got := brief(errors.New("short")); got != "short" {
		t.Error(got)
	}
	if got := brief(errors.New(strings.Repeat("ü", 1000))); len(got) > maxErrorText+3 || !strings.HasSuffix(got, "ü…") {
		t.Errorf("%d bytes: %s", len(got), got)
	}
}

func TestMerge(t *testing.T) {
	first := response{"example.com/a", &pluginapi.ContainerAllocateResponse{
		Envs: map[string]string{"B": "1", "A": "2"}, Annotations: map[string]string{"x": "1"},
		Devices:    []*pluginapi.DeviceSpec{{ContainerPath: "/dev/a", HostPath: "/dev/null", Permissions: "r"}},
		Mounts:     []*pluginapi.Mount{{ContainerPath: "/m", HostPath: "/h", ReadOnly: true}},
		CdiDevices: []*pluginapi.CDIDevice{{Name: "v/c=1"}},
	}}
	second := response{"example.com/b", &pluginapi.ContainerAllocateResponse{
		Envs: map[string]string{"B": "other", "A": "2", "C": ""}, Annotations: map[string]string{"x": "2", "y": "3"},
		Devices:    []*pluginapi.DeviceSpec{{ContainerPath: "/dev/a", HostPath: "/dev/null", Permissions: "rw"}, {ContainerPath: "/dev/b", HostPath: "/dev/zero"}},
		Mounts:     []*pluginapi.Mount{{ContainerPath: "/m", HostPath: "/h", ReadOnly: true}, {ContainerPath: "/m", HostPath: "/i"}},
		CdiDevices: []*pluginapi.CDIDevice{{Name: "v/c=1"}, {Name: "v/c=2"}},
	}}
	got, conflicts := merge([]response{first, second})
	want := Options{
		Envs:        []*runtimeapi.KeyValue{{Key: "A", Value: []byte("2")}, {Key: "B", Value: []byte("1")}, {Key: "C", Value: []byte("")}},
		Devices:     []*runtimeapi.Device{{ContainerPath: "/dev/a", HostPath: "/dev/null", Permissions: "r"}, {ContainerPath: "/dev/b", HostPath: "/dev/zero"}},
		Mounts:      []*runtimeapi.Mount{{ContainerPath: "/m", HostPath: "/h", Readonly: true}},
		CDIDevices:  []*runtimeapi.CDIDevice{{Name: "v/c=1"}, {Name: "v/c=2"}},
		Annotations: map[string]string{"x": "1", "y": "3"},
	}
	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
		t.Errorf("options (-want +got):\n%s", diff)
	}
	wantConflicts := []string{"example.com/b: environment variable B", "example.com/b: annotation x", "example.com/b: device /dev/a", "example.com/b: mount /m"}
	if diff := cmp.Diff(wantConflicts, conflicts); diff != "" {
		t.Errorf("conflicts (-want +got):\n%s", diff)
	}
}

func container(name string, count string) v1.Container {
	c := v1.Container{Name: name}
	if count != "" {
		c.Resources.Limits = v1.ResourceList{"example.com/gpu": apiresource.MustParse(count), "cpu": apiresource.MustParse("1")}
	}
	return c
}

func sidecar(c v1.Container) v1.Container {
	always := v1.ContainerRestartPolicyAlways
	c.RestartPolicy = &always
	return c
}

func TestRequests(t *testing.T) {
	p := &v1.Pod{Spec: v1.PodSpec{
		InitContainers: []v1.Container{container("i", "3"), sidecar(container("s", "1")), container("j", "4")},
		Containers:     []v1.Container{container("a", "1"), container("b", "2"), container("none", ""), container("zero", "0")},
	}}
	if diff := cmp.Diff(map[string]int{"example.com/gpu": 5}, podRequests(p)); diff != "" {
		t.Errorf("of the pod (-want +got):\n%s", diff)
	}
	p.Spec.InitContainers[2] = container("j", "1")
	if got := podRequests(p)["example.com/gpu"]; got != 4 {
		t.Errorf("of the pod whose containers need more: %d", got)
	}
	p.Status.ExtendedResourceClaimStatus = &v1.PodExtendedResourceClaimStatus{RequestMappings: []v1.ContainerExtendedResourceRequest{{ContainerName: "a", ResourceName: "example.com/gpu"}}}
	if got := podRequests(p)["example.com/gpu"]; got != 3 {
		t.Errorf("with a container that has a claim instead: %d", got)
	}
	huge := container("a", "9e18")
	if got := requests(p, &v1.Container{Name: "h", Resources: huge.Resources}); len(got) != 1 || got[0].count < 1 {
		t.Errorf("of very many: %v", got)
	}
}

func TestReusable(t *testing.T) {
	p := &v1.Pod{Spec: v1.PodSpec{
		InitContainers: []v1.Container{container("i", ""), container("j", ""), sidecar(container("s", "")), container("k", "")},
		Containers:     []v1.Container{container("a", ""), container("b", "")},
	}}
	p.UID = "u"
	h := holdings{}
	give := func(container string, ids ...string) {
		a := &allocation{devices: map[string][]int64{}}
		for _, id := range ids {
			a.devices[id] = nil
		}
		h.put("u", container, "r", a)
	}
	give("i", "1", "2")
	give("j", "2", "3")
	give("s", "1")
	give("k", "4", "2")
	give("a", "2", "9")
	for c, want := range map[string]map[string]bool{
		"i": {}, "j": {"1": true, "2": true}, "s": {"1": true, "2": true, "3": true}, "k": {"2": true, "3": true},
		"a": {"2": true, "3": true, "4": true}, "b": {"3": true, "4": true},
	} {
		if diff := cmp.Diff(want, h.reusable(p, c, "r")); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c, diff)
		}
	}
	if got := h.taken("r"); len(got) != 5 {
		t.Errorf("taken: %v", got)
	}
}

func TestHoldingsAreRestored(t *testing.T) {
	entries := []checkpoint.PodDevicesEntry{
		{PodUID: "p", ContainerName: "a", ResourceName: "r/1", DeviceIDs: checkpoint.DevicesPerNUMA{-1: {"x"}, 0: {"y"}, 3: {"y", "z"}}, AllocResp: []byte{}},
		{PodUID: "p", ContainerName: "a", ResourceName: "r/2", DeviceIDs: checkpoint.DevicesPerNUMA{1: {"y"}}},
		{PodUID: "q", ContainerName: "b", ResourceName: "r/1", DeviceIDs: checkpoint.DevicesPerNUMA{-1: {"x"}, 3: {"w"}}, AllocResp: []byte("said")},
	}
	h := restore(entries)
	if diff := cmp.Diff(entries, h.entries()); diff != "" {
		t.Errorf("entries (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(map[string][]string{"r/1": {"x"}}, h.contested()); diff != "" {
		t.Errorf("contested (-want +got):\n%s", diff)
	}
	h.remove("q", "b", "r/1")
	if len(h) != 1 || len(h.contested()) != 0 {
		t.Errorf("after a removal: %v", h)
	}
}
