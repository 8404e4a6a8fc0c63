package validation

import (
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

func TestWarnPod(t *testing.T) {
	amounts := func(name v1.ResourceName, q string) v1.ResourceList {
		return v1.ResourceList{name: resource.MustParse(q)}
	}
	limit := func(name v1.ResourceName, q string) v1.PodSpec {
		return v1.PodSpec{Containers: []v1.Container{{}, {Resources: v1.ResourceRequirements{Limits: amounts(name, q)}}}}
	}
	half := resource.MustParse("0.5")
	for _, tc := range []struct {
		name string
		spec v1.PodSpec
		want []string
	}{
		{
			"memory in thousandths", limit(v1.ResourceMemory, "128m"),
			[]string{`spec.containers[1].resources.limits[memory]: fractional byte value "128m" is invalid, must be an integer; 128m is thousandths of a byte: did you mean 128M or 128Mi?`},
		},
		{"memory", limit(v1.ResourceMemory, "128Mi"), nil},
		{"whole bytes in thousandths", limit(v1.ResourceMemory, "128000m"), nil},
		{"more than fits into 64 bits", limit(v1.ResourceMemory, "9E"), nil},
		{"CPUs", limit(v1.ResourceCPU, "128m"), nil},
		{
			"local storage, of an init container and of the pod",
			v1.PodSpec{
				InitContainers: []v1.Container{{Resources: v1.ResourceRequirements{Requests: amounts(v1.ResourceEphemeralStorage, "1500m")}}},
				Resources:      &v1.ResourceRequirements{Limits: amounts(v1.ResourceMemory, "1m")},
			},
			[]string{
				`spec.initContainers[0].resources.requests[ephemeral-storage]: fractional byte value "1500m" is invalid, must be an integer; 1500m is thousandths of a byte: did you mean 1500M or 1500Mi?`,
				`spec.resources.limits[memory]: fractional byte value "1m" is invalid, must be an integer; 1m is thousandths of a byte: did you mean 1M or 1Mi?`,
			},
		},
		{
			"half a byte of a volume, and of overhead",
			v1.PodSpec{
				Volumes:  []v1.Volume{{VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{SizeLimit: &half}}}},
				Overhead: amounts(v1.ResourceMemory, "1m"),
			},
			[]string{
				`spec.overhead[memory]: fractional byte value "1m" is invalid, must be an integer; 1m is thousandths of a byte: did you mean 1M or 1Mi?`,
				`spec.volumes[0].emptyDir.sizeLimit: fractional byte value "500m" is invalid, must be an integer; 500m is thousandths of a byte: did you mean 500M or 500Mi?`,
			},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := WarnPod(&v1.Pod{Spec: tc.spec}); !slices.Equal(got, tc.want) {
				t.Errorf("got  %q\nwant %q", got, tc.want)
			}
		})
	}
}
