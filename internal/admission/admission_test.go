package admission

import (
	"context"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
)

func withPort(name string, host int32, ip string, proto v1.Protocol) *v1.Pod {
	p := &v1.Pod{}
	p.Name = name
	p.Spec.Containers = []v1.Container{{Name: "c", Ports: []v1.ContainerPort{{HostPort: host, HostIP: ip, Protocol: proto}}}}
	return p
}

func TestHostPorts(t *testing.T) {
	for _, tc := range []struct {
		name        string
		have, wants *v1.Pod
		refused     bool
	}{
		{"same port", withPort("a", 80, "", v1.ProtocolTCP), withPort("b", 80, "", v1.ProtocolTCP), true},
		{"another port", withPort("a", 80, "", v1.ProtocolTCP), withPort("b", 81, "", v1.ProtocolTCP), false},
		{"another protocol", withPort("a", 53, "", v1.ProtocolTCP), withPort("b", 53, "", v1.ProtocolUDP), false},
		{"other addresses", withPort("a", 80, "127.0.0.1", v1.ProtocolTCP), withPort("b", 80, "127.0.0.2", v1.ProtocolTCP), false},
		{"one address, all addresses", withPort("a", 80, "127.0.0.1", v1.ProtocolTCP), withPort("b", 80, "0.0.0.0", v1.ProtocolTCP), true},
		{"no host port", withPort("a", 0, "", v1.ProtocolTCP), withPort("b", 0, "", v1.ProtocolTCP), false},
	} {
		r := hostPorts(Attributes{Pod: tc.wants, OtherPods: []*v1.Pod{tc.have}})
		if (r != nil) != tc.refused {
			t.Errorf("%s: got %+v, want refused %v", tc.name, r, tc.refused)
		}
		if r != nil && r.Reason != "NodePorts" {
			t.Errorf("%s: reason %s", tc.name, r.Reason)
		}
	}
}

func TestOperatingSystem(t *testing.T) {
	labelled, field, fine := &v1.Pod{}, &v1.Pod{}, &v1.Pod{}
	labelled.Labels = map[string]string{"kubernetes.io/os": "windows"}
	field.Spec.OS = &v1.PodOS{Name: v1.Windows}
	fine.Spec.OS = &v1.PodOS{Name: v1.Linux}
	if r := operatingSystem(Attributes{Pod: labelled}); r == nil || r.Reason != "PodOSSelectorNodeLabelDoesNotMatch" {
		t.Errorf("label: got %+v", r)
	}
	if r := operatingSystem(Attributes{Pod: field}); r == nil || r.Reason != "PodOSNotSupported" {
		t.Errorf("field: got %+v", r)
	}
	if r := operatingSystem(Attributes{Pod: fine}); r != nil {
		t.Errorf("linux: got %+v", r)
	}
}

func TestUnsupportedFieldsAreNamed(t *testing.T) {
	no := false
	p := &v1.Pod{}
	p.Spec.HostUsers = &no
	p.Spec.InitContainers = []v1.Container{{Name: "i", ReadinessProbe: &v1.Probe{}, EnvFrom: []v1.EnvFromSource{{ConfigMapRef: &v1.ConfigMapEnvSource{}}}}}
	p.Spec.Containers = []v1.Container{{
		Name: "c", LivenessProbe: &v1.Probe{}, Lifecycle: &v1.Lifecycle{PreStop: &v1.LifecycleHandler{}},
		Env:          []v1.EnvVar{{Name: "A"}, {Name: "B", ValueFrom: &v1.EnvVarSource{FileKeyRef: &v1.FileKeySelector{}}}, {Name: "C", ValueFrom: &v1.EnvVarSource{SecretKeyRef: &v1.SecretKeySelector{}}}},
		VolumeMounts: []v1.VolumeMount{{Name: "s", MountPath: "/s"}, {Name: "n", MountPath: "/n"}},
	}}
	p.Spec.Volumes = []v1.Volume{
		{Name: "s", VolumeSource: v1.VolumeSource{Secret: &v1.SecretVolumeSource{}}}, {Name: "n", VolumeSource: v1.VolumeSource{NFS: &v1.NFSVolumeSource{}}},
	}
	r := unsupportedFields(Attributes{Pod: p})
	if r == nil || r.Reason != "UnsupportedField" {
		t.Fatalf("got %+v", r)
	}
	for _, want := range []string{
		"spec.hostUsers", "spec.initContainers[0].readinessProbe", "spec.containers[0].livenessProbe", "spec.containers[0].lifecycle.preStop",
		"spec.containers[0].env[1].valueFrom.fileKeyRef", "spec.volumes[1].nfs",
	} {
		if !strings.Contains(r.Message, want) {
			t.Errorf("the message does not name %s: %s", want, r.Message)
		}
	}
	for _, no := range []string{"envFrom", "env[0]", "env[2]", "spec.volumes[0]"} {
		if strings.Contains(r.Message, no) {
			t.Errorf("the message names %s, which is supported: %s", no, r.Message)
		}
	}
	plain := withPort("a", 80, "", v1.ProtocolTCP)
	if r := unsupportedFields(Attributes{Pod: plain}); r != nil {
		t.Errorf("a plain pod is refused: %+v", r)
	}
}

func TestFirstRefusalDecides(t *testing.T) {
	var rejected []Rejection
	asked := 0
	refuse := func(reason string) Handler {
		return func(Attributes) *Rejection { asked++; return &Rejection{Reason: reason} }
	}
	self, other := &v1.Pod{}, &v1.Pod{}
	self.UID, other.UID = "self", "other"
	var others int
	ready := make(chan struct{})
	c := New(Config{
		Ready: ready,
		Handlers: []Handler{
			func(a Attributes) *Rejection { others = len(a.OtherPods); return nil },
			refuse("One"), refuse("Two"),
		},
		ActivePods: func() []*v1.Pod { return []*v1.Pod{self, other} },
		Reject:     func(_ *v1.Pod, r Rejection) { rejected = append(rejected, r) },
	})
	early, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.Admit(early, self); err == nil || asked != 0 {
		t.Fatalf("judged before it is known what runs: %v", err)
	}
	close(ready)
	if admitted, err := c.Admit(t.Context(), self); admitted || err != nil {
		t.Fatalf("a refused pod is admitted: %v, %v", admitted, err)
	}
	if asked != 1 || len(rejected) != 1 || rejected[0].Reason != "One" || others != 1 {
		t.Fatalf("asked %d, rejected %v, %d other pods", asked, rejected, others)
	}
}
