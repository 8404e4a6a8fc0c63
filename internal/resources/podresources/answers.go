package podresources

import (
	"cmp"
	"slices"

	v1 "k8s.io/api/core/v1"
	podresourcesv1 "k8s.io/kubelet/pkg/apis/podresources/v1"
	"k8s.io/kubelet/pkg/apis/podresources/v1alpha1"
	"k8s.io/utils/cpuset"

	"berth/internal/pod/lifecycle"
)

type holdings struct {
	devices map[string][]Device
	cpus    map[string]cpuset.CPUSet
	blocks  map[string][]Block
	claims  map[string][]Claim
}

// reportedContainers returns the containers of a response: sidecars, then regular ones, each in the
// order of the spec. Resources of plain init containers are reused by the others, and ephemeral
// containers get none.
func reportedContainers(p *v1.Pod) []*v1.Container {
	var out []*v1.Container
	for i := range p.Spec.InitContainers {
		if c := &p.Spec.InitContainers[i]; lifecycle.IsSidecar(c) {
			out = append(out, c)
		}
	}
	return append(out, regularContainers(p)...)
}

func regularContainers(p *v1.Pod) []*v1.Container {
	var out []*v1.Container
	for i := range p.Spec.Containers {
		out = append(out, &p.Spec.Containers[i])
	}
	return out
}

// generatePod returns a pod's resources in version v1.
func generatePod(p *v1.Pod, h holdings) *podresourcesv1.PodResources {
	out := &podresourcesv1.PodResources{Name: p.Name, Namespace: p.Namespace}
	for _, c := range reportedContainers(p) {
		out.Containers = append(out.Containers, &podresourcesv1.ContainerResources{
			Name:             c.Name,
			Devices:          generateDevices(h.devices[c.Name]),
			CpuIds:           generateCPUs(h.cpus[c.Name]),
			Memory:           generateMemory(h.blocks[c.Name]),
			DynamicResources: generateClaims(h.claims[c.Name]),
		})
	}
	return out
}

// generateDevices returns an entry for each device and NUMA node, and one for a device without a
// node.
func generateDevices(devices []Device) []*podresourcesv1.ContainerDevices {
	var out []*podresourcesv1.ContainerDevices
	for _, d := range sortedDevices(devices) {
		add := func(topology *podresourcesv1.TopologyInfo) {
			out = append(out, &podresourcesv1.ContainerDevices{
				ResourceName: string(d.Resource), DeviceIds: []string{d.ID}, Topology: topology,
			})
		}
		if len(d.Nodes) == 0 {
			add(nil)
		}
		for _, n := range slices.Sorted(slices.Values(d.Nodes)) {
			add(generateTopology([]int{n}))
		}
	}
	return out
}

func sortedDevices(devices []Device) []Device {
	return slices.SortedFunc(slices.Values(devices), func(a, b Device) int {
		return cmp.Or(cmp.Compare(a.Resource, b.Resource), cmp.Compare(a.ID, b.ID))
	})
}

func generateTopology(nodes []int) *podresourcesv1.TopologyInfo {
	if len(nodes) == 0 {
		return nil
	}
	out := &podresourcesv1.TopologyInfo{}
	for _, n := range slices.Sorted(slices.Values(nodes)) {
		out.Nodes = append(out.Nodes, &podresourcesv1.NUMANode{ID: int64(n)})
	}
	return out
}

func generateCPUs(cpus cpuset.CPUSet) []int64 {
	var out []int64
	for _, id := range cpus.List() {
		out = append(out, int64(id))
	}
	return out
}

func generateMemory(blocks []Block) []*podresourcesv1.ContainerMemory {
	var out []*podresourcesv1.ContainerMemory
	for _, b := range blocks {
		out = append(out, &podresourcesv1.ContainerMemory{
			MemoryType: string(b.Type), Size: b.Bytes, Topology: generateTopology(b.Nodes),
		})
	}
	return out
}

// generateClaims returns the claims of a container.
// Differs from the kubelet: each device has its own CDI names, without those of the devices before
// it.
func generateClaims(claims []Claim) []*podresourcesv1.DynamicResource {
	var out []*podresourcesv1.DynamicResource
	for _, c := range claims {
		r := &podresourcesv1.DynamicResource{ClaimName: c.Name, ClaimNamespace: c.Namespace}
		for _, d := range c.Devices {
			var names []*podresourcesv1.CDIDevice
			for _, n := range d.CDI {
				names = append(names, &podresourcesv1.CDIDevice{Name: n})
			}
			r.ClaimResources = append(r.ClaimResources, &podresourcesv1.ClaimResource{
				CdiDevices: names, DriverName: d.Driver, PoolName: d.Pool, DeviceName: d.Name, ShareId: d.Share,
			})
		}
		out = append(out, r)
	}
	return out
}

// generateAlphaPod returns a pod's resources in version v1alpha1: only regular containers and
// devices, with one entry per device.
func generateAlphaPod(p *v1.Pod, h holdings) *v1alpha1.PodResources {
	out := &v1alpha1.PodResources{Name: p.Name, Namespace: p.Namespace}
	for _, c := range regularContainers(p) {
		r := &v1alpha1.ContainerResources{Name: c.Name}
		for _, d := range sortedDevices(h.devices[c.Name]) {
			r.Devices = append(r.Devices, &v1alpha1.ContainerDevices{ResourceName: string(d.Resource), DeviceIds: []string{d.ID}})
		}
		out.Containers = append(out.Containers, r)
	}
	return out
}

// sortedPods returns the pods sorted by namespace and name, so that responses are comparable.
func sortedPods(pods []*v1.Pod) []*v1.Pod {
	return slices.SortedFunc(slices.Values(pods), func(a, b *v1.Pod) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name), cmp.Compare(a.UID, b.UID))
	})
}
