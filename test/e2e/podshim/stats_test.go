//go:build e2e && podshim

package podshim

import (
	"fmt"
	"reflect"
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// fields are the names of what a message says, without how much of it. An average of pressure that
// is zero is not said.
func fields(m proto.Message) []string {
	var out []string
	var visit func(prefix string, m protoreflect.Message)
	visit = func(prefix string, m protoreflect.Message) {
		m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
			name := prefix + string(f.Name())
			out = append(out, name)
			switch {
			case f.IsMap(), f.Message() != nil && f.Message().Name() == "PsiData":
			case f.IsList() && f.Message() != nil:
				for i := range v.List().Len() {
					visit(fmt.Sprintf("%s[%d].", name, i), v.List().Get(i).Message())
				}
			case f.Message() != nil:
				visit(name+".", v.Message())
			}
			return true
		})
	}
	visit("", m.ProtoReflect())
	slices.Sort(out)
	return out
}

// All statistics of the CRI say the same things with pod shims as with stock shims.
func TestStatsAreAsWithStockShims(t *testing.T) {
	for _, driver := range drivers() {
		t.Run(driver, func(t *testing.T) {
			r := newRigBy(t, driver)
			ids := r.pair("stats", func(c *cri.ContainerConfig) {
				c.Linux.Resources.MemoryLimitInBytes, c.Linux.Resources.MemorySwapLimitInBytes = 64<<20, 64<<20
			}, "spin")
			pods := map[string]string{}
			for _, p := range r.pods() {
				pods[map[bool]string{true: "podshim", false: "stock"}[p.Metadata.Name == "stats-podshim"]] = p.Id
			}
			ctx, cancel := r.within()
			defer cancel()
			container := func(h string) *cri.ContainerStats {
				a, err := r.rt.ContainerStats(ctx, &cri.ContainerStatsRequest{ContainerId: ids[h]})
				r.must(err)
				return a.Stats
			}
			containers := func(h string) *cri.ContainerStats {
				a, err := r.rt.ListContainerStats(ctx, &cri.ListContainerStatsRequest{Filter: &cri.ContainerStatsFilter{PodSandboxId: pods[h]}})
				r.must(err)
				if len(a.Stats) != 1 {
					t.Fatalf("%s: %d containers", h, len(a.Stats))
				}
				return a.Stats[0]
			}
			pod := func(h string) *cri.PodSandboxStats {
				a, err := r.rt.PodSandboxStats(ctx, &cri.PodSandboxStatsRequest{PodSandboxId: pods[h]})
				r.must(err)
				return a.Stats
			}
			allPods := func(h string) *cri.PodSandboxStats {
				a, err := r.rt.ListPodSandboxStats(ctx, &cri.ListPodSandboxStatsRequest{Filter: &cri.PodSandboxStatsFilter{Id: pods[h]}})
				r.must(err)
				if len(a.Stats) != 1 {
					t.Fatalf("%s: %d pods", h, len(a.Stats))
				}
				return a.Stats[0]
			}
			for _, h := range handlers {
				var first uint64
				eventually(r, h+": processors are used, and their share is known", func() error {
					s := containers(h) // the other call has no share
					if first == 0 {
						first = s.GetCpu().GetUsageCoreNanoSeconds().GetValue()
					}
					if s.GetCpu().GetUsageCoreNanoSeconds().GetValue() <= first || s.GetCpu().GetUsageNanoCores().GetValue() == 0 ||
						s.GetMemory().GetWorkingSetBytes().GetValue() == 0 || pod(h).GetLinux().GetCpu().GetUsageNanoCores().GetValue() == 0 ||
						s.GetWritableLayer().GetTimestamp() == 0 { // which containerd looks at from time to time
						return fmt.Errorf("%v; of the pod %v", s, pod(h).GetLinux().GetCpu())
					}
					return nil
				})
				if n := pod(h).GetLinux().GetProcess().GetProcessCount().GetValue(); n == 0 {
					t.Errorf("%s: no process", h)
				}
				if available := container(h).GetMemory().GetAvailableBytes().GetValue(); available == 0 || available > 64<<20 {
					t.Errorf("%s: %d bytes of memory available of 64 MiB", h, available)
				}
			}
			for what, get := range map[string]func(string) proto.Message{
				"ContainerStats": func(h string) proto.Message { return container(h) }, "ListContainerStats": func(h string) proto.Message { return containers(h) },
				"PodSandboxStats": func(h string) proto.Message { return pod(h) }, "ListPodSandboxStats": func(h string) proto.Message { return allPods(h) },
			} {
				if k, s := fields(get("podshim")), fields(get("stock")); !reflect.DeepEqual(k, s) {
					t.Errorf("%s has\n%q, with a stock shim\n%q", what, k, s)
				}
			}
			r.removeAll()
		})
	}
}

// A pod's cgroup that is not there is made, and its statistics are there before a container is.
func TestAPodWithoutItsCgroup(t *testing.T) {
	for _, driver := range drivers() {
		t.Run(driver, func(t *testing.T) {
			r := newRigBy(t, driver)
			for _, h := range handlers {
				c := podConfig(r, "bare-"+h)
				c.Linux.CgroupParent += "/" + r.below(h)
				pod, err := r.podBy(h, c)
				r.must(err)
				ctx, cancel := r.within()
				a, err := r.rt.PodSandboxStats(ctx, &cri.PodSandboxStatsRequest{PodSandboxId: pod})
				cancel()
				if err != nil || a.Stats.GetLinux().GetMemory() == nil {
					t.Errorf("%s: statistics of a pod without containers: %v, %v", h, a, err)
				}
				r.must(r.remove(pod))
			}
		})
	}
}

// below is the name of a cgroup below that of the rig's pods.
func (r *rig) below(name string) string {
	if r.systemd {
		return r.slice()[:len(r.slice())-len(".slice")] + "-" + name + ".slice"
	}
	return name
}
