package kuberuntime

import (
	"context"
	"testing"

	v1 "k8s.io/api/core/v1"
)

// withDevices are assignments of a pod that has devices.
type withDevices struct{ noAssignments }

func (withDevices) HasDevices(*v1.Pod) bool { return true }

// A pod that names no RuntimeClass and has devices has a handler of its own, and its journal says
// so.
func TestHandlerOfPodsWithDevices(t *testing.T) {
	plain, classed := podOf(v1.RestartPolicyAlways, "a"), podOf(v1.RestartPolicyAlways, "a")
	classed.Spec.RuntimeClassName = new("strong")
	for _, tt := range []struct {
		name          string
		pod           *v1.Pod
		assignments   Assignments
		deviceHandler string
		want, which   string
	}{
		{"without devices", plain, noAssignments{}, "runc", "keeper", "attempt 0, by runtime handler keeper"},
		{"with devices", plain, withDevices{}, "runc", "runc", "attempt 0, by runtime handler runc, as it has devices"},
		{"with devices, and one handler for all", plain, withDevices{}, "", "keeper", "attempt 0, by runtime handler keeper"},
		{"with devices and a class", classed, withDevices{}, "runc", "kata", "attempt 0, by runtime handler kata"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newSandboxes(Config{
				Objects: &apiObjects{}, Assignments: tt.assignments, Sandboxes: SandboxConfig{Handler: "keeper", DeviceHandler: tt.deviceHandler},
			}, &Runtime{}, nil)
			got, err := s.handler(context.Background(), Request{Pod: tt.pod}, &podActions{CreateSandbox: true})
			if err != nil || got != tt.want {
				t.Errorf("the handler is %q (%v), want %q", got, err, tt.want)
			}
			if which := s.which(tt.pod, 0, got); which != tt.which {
				t.Errorf("the journal says %q, want %q", which, tt.which)
			}
		})
	}
}
