package admission

import (
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
)

func TestUnsupportedFieldsAreNamed(t *testing.T) {
	p := &v1.Pod{}
	p.Spec.InitContainers = []v1.Container{{
		Name: "i", ReadinessProbe: &v1.Probe{}, EnvFrom: []v1.EnvFromSource{{ConfigMapRef: &v1.ConfigMapEnvSource{}}},
		VolumeDevices: []v1.VolumeDevice{{Name: "b", DevicePath: "/dev/b"}},
	}}
	p.Spec.Containers = []v1.Container{{
		Name: "c", LivenessProbe: &v1.Probe{}, Lifecycle: &v1.Lifecycle{PreStop: &v1.LifecycleHandler{}},
		Env:          []v1.EnvVar{{Name: "A"}, {Name: "B", ValueFrom: &v1.EnvVarSource{SecretKeyRef: &v1.SecretKeySelector{}}}},
		VolumeMounts: []v1.VolumeMount{{Name: "s", MountPath: "/s"}, {Name: "n", MountPath: "/n"}},
	}}
	p.Spec.Volumes = []v1.Volume{
		{Name: "s", VolumeSource: v1.VolumeSource{Secret: &v1.SecretVolumeSource{}}}, {Name: "n", VolumeSource: v1.VolumeSource{ISCSI: &v1.ISCSIVolumeSource{}}},
	}
	r := unsupportedFields(Attributes{Pod: p})
	if r == nil || r.Reason != "UnsupportedField" {
		t.Fatalf("got %+v", r)
	}
	if want := "spec.volumes[1].iscsi"; !strings.Contains(r.Message, want) {
		t.Errorf("the message does not name %s: %s", want, r.Message)
	}
	for _, no := range []string{"envFrom", "env[", "volumeDevices", "Probe", "lifecycle", "spec.volumes[0]"} {
		if strings.Contains(r.Message, no) {
			t.Errorf("the message names %s, which is supported: %s", no, r.Message)
		}
	}
	plain := newPod("plain", withPort(80, "", v1.ProtocolTCP))
	if r := unsupportedFields(Attributes{Pod: plain}); r != nil {
		t.Errorf("a plain pod is refused: %+v", r)
	}
}
