package agent_test

import (
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/cluster/kube/kubetest"
	"berth/internal/host/cgroups"
	"berth/internal/pod"
	"berth/internal/runtime/cri/critest"
)

// size is what a container may use: thousandths of a CPU, and MiB of memory. It asks for the half
// of that. The zero value is no limit.
type size struct{ cpu, memory int64 }

func (s size) resources() (r v1.ResourceRequirements) {
	if s == (size{}) {
		return r
	}
	list := func(part int64) v1.ResourceList {
		return v1.ResourceList{
			v1.ResourceCPU: *resource.NewMilliQuantity(s.cpu/part, resource.DecimalSI), v1.ResourceMemory: *resource.NewQuantity(s.memory<<20/part, resource.BinarySI),
		}
	}
	r.Limits, r.Requests = list(1), list(2)
	return r
}

// tooMuch is more CPU than the machine has.
const tooMuch = 100_000

// size is one of which the machine has enough for all.
func (w *walker) size() size {
	return size{cpu: 20 * int64(1+w.random.IntN(10)), memory: 16 * int64(1+w.random.IntN(10))}
}

// resize asks for another size of a container, which may be more than there is if the pod runs: one
// that was not admitted yet would be refused.
func (w *walker) resize() {
	name, to := []string{"p2", "p3"}[w.random.IntN(2)], w.size()
	if w.random.IntN(8) == 0 && w.runs(name) {
		to.cpu = tooMuch
	}
	if want := w.wanted[name]; want != nil {
		all := slices.Concat(want.inits, want.containers)
		if want.sidecar {
			all = append(all, "side")
		}
		w.setSize(name, all[w.random.IntN(len(all))], to)
	}
}

// runs reports whether the API server shows the pod as running.
func (w *walker) runs(name string) bool {
	p, ok := kubetest.Get[*v1.Pod](w.API, v1.NamespaceDefault, name)
	return ok && p.Status.Phase == v1.PodRunning
}

// setSize resizes a container of a pod of the API server, if there is such a pod.
func (w *walker) setSize(name, container string, to size) {
	want := w.wanted[name]
	there, ok := kubetest.Get[*v1.Pod](w.API, v1.NamespaceDefault, name)
	if want == nil || !ok || there.DeletionTimestamp != nil {
		return
	}
	w.say("resize %s/%s to %+v", name, container, to)
	want.sizes[container] = to
	w.resizes[there.UID]++
	err := kubetest.Resize(w.API, v1.NamespaceDefault, name, func(p *v1.Pod) {
		for _, list := range [][]v1.Container{p.Spec.InitContainers, p.Spec.Containers} {
			for i := range list {
				if list[i].Name == container {
					list[i].Resources = to.resources()
				}
			}
		}
	})
	if err != nil {
		w.T.Error(err)
	}
}

// shrink takes back what the pod was asked to have more than there is.
func (w *walker) shrink(name string) {
	for _, container := range walkContainers {
		if s := w.wanted[name].sizes[container]; s.cpu == tooMuch {
			w.setSize(name, container, size{cpu: 100, memory: s.memory})
		}
	}
}

// checkSizes looks whether all containers of a pod together may use no more than the pod, at any
// time in a resize, and whether none was restarted for one that is not to be. After a resize that
// took the place of another, which had not come to its end, it is only said how it ends.
func (w *walker) checkSizes(containers []critest.Container) {
	memory, quota := map[pod.UID]int64{}, map[pod.UID]int64{}
	for _, c := range containers {
		if c.State == runtimeapi.ContainerState_CONTAINER_RUNNING {
			uid, r := pod.UID(c.Pod.GetUid()), c.Config.GetLinux().GetResources()
			memory[uid] += r.GetMemoryLimitInBytes()
			quota[uid] += r.GetCpuQuota()
		}
	}
	for uid, values := range w.Cgroups.Values() {
		if w.resizes[uid] > 1 {
			continue
		}
		if limit := values[cgroups.MemoryLimit]; limit > 0 && memory[uid] > limit {
			w.T.Errorf("the containers of pod %s may use %d bytes, and the pod %d", uid, memory[uid], limit)
		}
		if limit := values[cgroups.CPULimit]; limit > 0 && quota[uid] > limit {
			w.T.Errorf("the containers of pod %s may use %d µs, and the pod %d", uid, quota[uid], limit)
		}
	}
	if !w.agentUp {
		return
	}
	for _, e := range w.Agent.Events() {
		if strings.Contains(e.Message, "resize requires restart") && !strings.HasPrefix(e.Message, "Container b ") {
			w.T.Errorf("of pod %s, %q", e.InvolvedObject.Name, e.Message)
		}
	}
	for _, p := range w.Agent.Handlers().Pods.List() {
		if w.API == nil || !w.fromAPI(p.Name) || resizeOf(p) != "" {
			continue
		}
		if there, ok := kubetest.Get[*v1.Pod](w.API, p.Namespace, p.Name); ok && there.UID == p.UID && there.Generation == p.Status.ObservedGeneration {
			delete(w.resizes, p.UID)
		}
	}
}

// resizeOf says how far a resize of the pod is; "" if it is not being resized.
func resizeOf(p *v1.Pod) string {
	out := ""
	for _, c := range p.Status.Conditions {
		if c.Type == v1.PodResizePending || c.Type == v1.PodResizeInProgress {
			out += fmt.Sprintf("%s %s: %s; ", c.Type, c.Reason, c.Message)
		}
	}
	return out
}

// wantSizes looks whether a pod of the API server that runs was given all that it asks for, and
// whether that holds.
func (w *walker) wantSizes(p *v1.Pod) {
	there, ok := kubetest.Get[*v1.Pod](w.API, p.Namespace, p.Name)
	if !ok || !w.fromAPI(p.Name) || p.Status.Phase != v1.PodRunning {
		return
	}
	if told := resizeOf(p); told != "" {
		w.T.Errorf("pod %s is still being resized: %s", p.Name, told)
	}
	sizes := w.wanted[p.Name].sizes
	for _, list := range [][]v1.ContainerStatus{p.Status.InitContainerStatuses, p.Status.ContainerStatuses} {
		for _, c := range list {
			want := sizes[c.Name].resources()
			if !equality.Semantic.DeepEqual(c.AllocatedResources, want.Requests) || !equality.Semantic.DeepEqual(*c.Resources, want) {
				w.T.Errorf("container %s of pod %s was given %v and has %v, want %v", c.Name, p.Name, c.AllocatedResources, *c.Resources, want)
			}
		}
	}
	for _, c := range w.Runtime.Containers() {
		if c.Pod.GetUid() != string(p.UID) || c.State != runtimeapi.ContainerState_CONTAINER_RUNNING {
			continue
		}
		r, want := c.Config.GetLinux().GetResources(), sizes[c.Name]
		if r.GetCpuQuota() != want.cpu*cgroups.QuotaPeriod/1000 || r.GetMemoryLimitInBytes() != want.memory<<20 {
			w.T.Errorf("container %s of pod %s is limited to %d µs and %d bytes, want %+v", c.Name, p.Name, r.GetCpuQuota(), r.GetMemoryLimitInBytes(), want)
		}
	}
	for part, value := range w.Cgroups.Values()[p.UID] {
		if want := cgroups.PodValue(there, part); value != want {
			w.T.Errorf("the %s of pod %s is %d, want %d", part, p.Name, value, want)
		}
	}
}
