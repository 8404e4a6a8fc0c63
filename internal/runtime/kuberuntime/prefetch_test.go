package kuberuntime

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"berth/internal/pod"
)

// Pods and observations are written as words: "i" and "j" are init containers, "s" is a sidecar
// between them, "a" and "b" are regular.
func TestComputeAhead(t *testing.T) {
	tests := map[string]struct {
		inits    string
		observed string // containers of the newest sandbox, as name:state
		plan     podActions
		want     string // a "+" marks what is behind an init container
	}{
		"no init containers": {plan: podActions{CreateSandbox: true, Start: starts("a b")}},
		"a new sandbox": {
			inits: "i j", plan: podActions{CreateSandbox: true, KillPod: true, Start: starts("i")}, want: "+j +a +b",
		},
		"the first init container runs":  {inits: "i j", observed: "i:run", want: "+j +a +b"},
		"the second init container runs": {inits: "i j", observed: "i:exit j:run", want: "+a +b"},
		"the second one is to be started": {
			inits: "i j", observed: "i:exit", plan: podActions{Start: starts("j")}, want: "+a +b",
		},
		"only a sidecar before the others":   {inits: "s", plan: podActions{CreateSandbox: true, Start: starts("s")}, want: "a b"},
		"a sidecar before an init container": {inits: "s j", observed: "s:run", want: "j +a +b"},
		"a sidecar behind an init container": {inits: "i s", observed: "i:run", want: "+s +a +b"},
		"initialized": {
			inits: "i", observed: "i:exit a:run b:exit", plan: podActions{Start: starts("b")},
		},
		"all that is left starts":      {inits: "i", observed: "i:exit", plan: podActions{Start: starts("a b")}},
		"the pod ends":                 {inits: "i", observed: "i:exit", plan: podActions{KillPod: true}},
		"all containers restart first": {inits: "i", observed: "i:run", plan: podActions{RestartAll: []removeAction{{Name: "i"}}}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			p := &v1.Pod{Spec: v1.PodSpec{Containers: []v1.Container{{Name: "a"}, {Name: "b"}}}}
			for _, n := range strings.Fields(tt.inits) {
				c := v1.Container{Name: n}
				if n == "s" {
					c.RestartPolicy = ptr.To(v1.ContainerRestartPolicyAlways)
				}
				p.Spec.InitContainers = append(p.Spec.InitContainers, c)
			}
			s := &pod.Status{Sandboxes: []pod.SandboxStatus{{ID: "now"}}}
			for _, word := range strings.Fields(tt.observed) {
				n, state, _ := strings.Cut(word, ":")
				cs := pod.ContainerStatus{Name: n, ID: pod.ContainerID(n), SandboxID: "now", State: pod.StateRunning}
				if state == "exit" {
					cs.State = pod.StateExited
				}
				s.Containers = append(s.Containers, cs)
			}
			var got []string
			for _, a := range computePrefetch(p, s, &tt.plan) {
				mark := ""
				if a.BehindInit {
					mark = "+"
				}
				got = append(got, mark+a.Container.Name)
			}
			if d := cmp.Diff(tt.want, strings.Join(got, " ")); d != "" {
				t.Error(d)
			}
			p.DeletionTimestamp = &metav1.Time{}
			if got := computePrefetch(p, s, &tt.plan); got != nil {
				t.Errorf("of a pod that is being deleted: %v", got)
			}
		})
	}
}

// The images of volumes are looked ahead for with the containers that mount them.
func TestComputeAheadImageVolumes(t *testing.T) {
	p := &v1.Pod{Spec: v1.PodSpec{
		InitContainers: []v1.Container{{Name: "i"}},
		Containers:     []v1.Container{{Name: "a", Image: "a:1", VolumeMounts: []v1.VolumeMount{{Name: "model"}}}},
		Volumes: []v1.Volume{
			{Name: "model", VolumeSource: v1.VolumeSource{Image: &v1.ImageVolumeSource{Reference: "model:1", PullPolicy: v1.PullNever}}},
			{Name: "other", VolumeSource: v1.VolumeSource{Image: &v1.ImageVolumeSource{Reference: "other:1"}}},
		},
	}}
	var got []string
	for _, a := range computePrefetch(p, &pod.Status{}, &podActions{CreateSandbox: true, Start: starts("i")}) {
		got = append(got, a.Container.Name+" "+a.Container.Image+" "+string(a.Container.ImagePullPolicy))
	}
	if d := cmp.Diff([]string{"a a:1 ", "a model:1 Never"}, got); d != "" {
		t.Error(d)
	}
}

func starts(names string) []startAction {
	var all []startAction
	for _, n := range strings.Fields(names) {
		all = append(all, startAction{Name: n})
	}
	return all
}
