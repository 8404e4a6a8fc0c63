package kuberuntime

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"berth/internal/host/cgroups"
	"berth/internal/record/events/messagestest"
	"berth/internal/runtime/crispec"
)

// sizes gives the containers of a pod sizes, each as NAME=CPU/MEMORY of limits, of which the
// requests are one half; - is none.
func sizes(t *testing.T, p *v1.Pod, words string) *v1.Pod {
	t.Helper()
	p = p.DeepCopy()
	for w := range strings.FieldsSeq(words) {
		name, amounts, _ := strings.Cut(w, "=")
		cpu, memory, _ := strings.Cut(amounts, "/")
		r := &findSpec(p, name).Resources
		r.Requests, r.Limits = v1.ResourceList{}, v1.ResourceList{}
		if cpu != "-" {
			q := resource.MustParse(cpu)
			r.Limits[v1.ResourceCPU], r.Requests[v1.ResourceCPU] = q, *resource.NewMilliQuantity(q.MilliValue()/2, resource.DecimalSI)
		}
		if memory != "-" {
			q := resource.MustParse(memory)
			r.Limits[v1.ResourceMemory], r.Requests[v1.ResourceMemory] = q, *resource.NewQuantity(q.Value()/2, resource.BinarySI)
		}
	}
	return p
}

func TestComputeResizeSteps(t *testing.T) {
	for _, tc := range []struct {
		name, from, to string
		running        string // a b if empty
		extent         extent
		want           string
	}{
		{name: "nothing", from: "a=1/32Mi b=1/32Mi", to: "a=1000m/32Mi b=1/33554432", want: ""},
		{name: "more memory", from: "a=1/32Mi b=1/32Mi", to: "a=1/64Mi b=1/32Mi", want: "pod memory limit, a memory limit"},
		{name: "less memory", from: "a=1/64Mi b=1/32Mi", to: "a=1/32Mi b=1/32Mi", want: "a memory limit <33554432, pod memory limit <67108864"},
		{name: "more of all", from: "a=1/32Mi b=1/32Mi", to: "a=2/64Mi b=2/64Mi", want: "pod memory limit, a memory limit, b memory limit, pod CPU limit, pod CPU request, a CPU limit, b CPU limit"},
		{
			name: "less of all", from: "a=2/64Mi b=2/64Mi", to: "a=1/32Mi b=1/32Mi",
			want: "a memory limit <33554432, b memory limit <33554432, pod memory limit <67108864, a CPU limit, b CPU limit, pod CPU request, pod CPU limit",
		},
		{name: "from one to the other", from: "a=1/32Mi b=2/64Mi", to: "a=2/64Mi b=1/32Mi", want: "b memory limit <33554432, a memory limit, b CPU limit, a CPU limit"},
		{name: "one more, one less, more in all", from: "a=1/32Mi b=1/64Mi", to: "a=1/96Mi b=1/32Mi", want: "pod memory limit, b memory limit <33554432, a memory limit"},
		{name: "one more, one less, less in all", from: "a=1/32Mi b=1/64Mi", to: "a=1/40Mi b=1/32Mi", want: "b memory limit <33554432, a memory limit, pod memory limit <75497472"},
		{name: "without limits of memory", from: "a=1/- b=1/-", to: "a=2/- b=1/-", want: "pod CPU limit, pod CPU request, a CPU limit"},
		{name: "a limit that is new", from: "a=1/- b=1/32Mi", to: "a=1/32Mi b=1/32Mi", want: "a memory limit <33554432, pod memory limit <67108864"},
		{name: "one does not run", from: "a=1/32Mi b=1/32Mi", to: "a=1/64Mi b=1/64Mi", running: "b", want: "pod memory limit, b memory limit"},
		{
			name: "nobody knows what holds", from: "a=1/32Mi b=1/32Mi", to: "a=1/32Mi b=1/64Mi", extent: everything,
			want: "pod memory limit <100663296, a memory limit <33554432, b memory limit <67108864, a CPU limit, b CPU limit, pod CPU request, pod CPU limit",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := podOf(v1.RestartPolicyAlways, "a", "b")
			from, to := sizes(t, p, tc.from), sizes(t, p, tc.to)
			running := strings.Fields(tc.running)
			if tc.running == "" {
				running = []string{"a", "b"}
			}
			var got []string
			for _, s := range computeResizeSteps(holding{from, from}, to, running, tc.extent, crispec.ResourceSettings{}) {
				text := s.String()
				if s.Lowers > 0 {
					text += fmt.Sprintf(" <%d", s.Lowers)
				}
				got = append(got, text)
			}
			if diff := cmp.Diff(tc.want, strings.Join(got, ", ")); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

// Memory that is asked for is protected in the pod before it is in its containers, and no longer
// than in them.
func TestComputeResizeStepsOfProtectedMemory(t *testing.T) {
	p := sizes(t, podOf(v1.RestartPolicyAlways, "a"), "a=1/64Mi")
	asking := func(memory string) *v1.Pod {
		q := p.DeepCopy()
		if delete(q.Spec.Containers[0].Resources.Requests, v1.ResourceMemory); memory != "" {
			q.Spec.Containers[0].Resources.Requests[v1.ResourceMemory] = resource.MustParse(memory)
		}
		delete(q.Spec.Containers[0].Resources.Limits, v1.ResourceMemory)
		return q
	}
	for _, tc := range []struct{ from, to, want string }{
		{"16Mi", "32Mi", "pod memory request, a memory limit"},
		{"", "32Mi", "pod memory request, a memory limit"},
		{"32Mi", "16Mi", "a memory limit, pod memory request"},
		{"32Mi", "32768Ki", ""},
	} {
		for _, reserve := range []bool{true, false} {
			settings := crispec.ResourceSettings{CgroupVersion: 2, MemoryQoS: &cgroups.MemoryQoS{Reserve: reserve}}
			from, to := asking(tc.from), asking(tc.to)
			var got []string
			for _, s := range computeResizeSteps(holding{from, from}, to, []string{"a"}, changedOnly, settings) {
				got = append(got, s.String())
			}
			want := tc.want
			if !reserve {
				want = ""
			}
			if diff := cmp.Diff(want, strings.Join(got, ", ")); diff != "" {
				t.Errorf("%q to %q, protected %v: -want +got:\n%s", tc.from, tc.to, reserve, diff)
			}
		}
	}
}

func TestPlanOfAResize(t *testing.T) {
	restart := v1.ContainerResizePolicy{ResourceName: v1.ResourceMemory, RestartPolicy: v1.RestartContainer}
	for _, tc := range []struct {
		name, spec, observed, from, to string
		restarts                       string // the containers that are restarted for memory
		want                           string
	}{
		{"in place", "Always a b", "sb a=running b=running", "a=1/32Mi", "a=1/64Mi", "", "resize the pod, resize a in place"},
		{"of CPU alone", "Always a b", "sb a=running b=running", "a=1/32Mi", "a=2/32Mi", "a", "resize the pod, resize a in place"},
		{
			"with a restart", "Always a b", "sb a=running b=running", "a=1/32Mi b=1/32Mi", "a=1/64Mi b=1/64Mi", "a",
			"stop a (Container a resize requires restart, will be restarted), resize the pod, resize b in place, start a (its resources changed and its resizePolicy is RestartContainer)",
		},
		{"of what does not run", "Always a b", "sb a=running b=0", "b=1/32Mi", "b=1/64Mi", "", "resize the pod, start b (it exited with code 0)"},
		{"of a sidecar", "Always s:side a", "sb a=running side=running", "side=1/32Mi", "side=1/64Mi", "", "resize the pod, resize side in place"},
		{
			"of a sidecar with a restart", "Always s:side a", "sb a=running side=running", "side=1/32Mi", "side=1/64Mi", "side",
			"stop side (Container side resize requires restart), resize the pod, start side (its resources changed and its resizePolicy is RestartContainer)",
		},
		{"of an init container", "Always i:init a", "sb init=running", "init=1/32Mi", "init=1/64Mi", "", "resize the pod, resize init in place"},
		{
			"of an init container with a restart", "Always i:init a", "sb init=running", "init=1/32Mi", "init=1/64Mi", "init",
			"stop init (Container init resize requires restart, will be restarted), resize the pod, start init (its resources changed and its resizePolicy is RestartContainer)",
		},
		{"in a new sandbox", "Always a", "sb-dead a=0", "a=1/32Mi", "a=1/64Mi", "", "stop the pod, create sandbox 1, resize the pod, start a (new sandbox)"},
		{
			"beside a failed probe", "Always a? b", "sb a=running+dead+started b=running", "a=1/32Mi", "a=1/64Mi", "a",
			"stop a (Container a failed liveness probe, will be restarted), resize the pod, start a (its liveness probe failed)",
		},
		{"of what is restarted with all", "Always a!Never{RestartAllContainers/In/5} b", "sb a=5 b=running", "b=1/32Mi", "b=1/64Mi", "", "restart all containers: remove b, a"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := specOf(t, tc.spec)
			for name := range strings.FieldsSeq(tc.restarts) {
				findSpec(p, name).ResizePolicy = []v1.ContainerResizePolicy{restart}
			}
			in := inputOf(t, sizes(t, p, tc.to), tc.observed)
			in.Actuated = sizes(t, p, tc.from)
			a := computePodActions(in)
			for _, k := range a.Kill {
				messagestest.SawEvent("Killing", k.Message) // of which its execution makes the event
			}
			if diff := cmp.Diff(tc.want, a.String()); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
			in.ResizeHeld = t0
			if a := computePodActions(in); a.Resize || len(a.ResizeInPlace) > 0 {
				t.Errorf("a resize that is held is planned: %s", a.String())
			}
		})
	}
}
