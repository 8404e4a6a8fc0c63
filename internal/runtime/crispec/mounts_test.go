package crispec

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"
	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/ptr"
)

// mounting is a container with these mounts of the volumes v, which can be written to, and ro,
// which cannot, and of the image img.
func mounting(mounts ...v1.VolumeMount) Container {
	p := newPod(func(p *v1.Pod) {
		c := &p.Spec.Containers[0]
		c.VolumeMounts = mounts
		c.TerminationMessagePath = "/dev/termination-log"
		c.Env = []v1.EnvVar{{Name: "NAME", Value: "web-0"}, {Name: "EMPTY"}, {Name: "ROOT", Value: "/etc"}, {Name: "UP", Value: ".."}}
	})
	return Container{
		Pod: p, Container: &p.Spec.Containers[0], Files: HostFiles{Hosts: "/pod/etc-hosts", TerminationLog: "/pod/log"},
		Volumes:      map[string]Volume{"v": {HostPath: "/host/v", SELinuxRelabel: true}, "ro": {HostPath: "/host/ro", ReadOnly: true}},
		ImageVolumes: map[string]*runtimeapi.ImageSpec{"img": {Image: "sha256:1", UserSpecifiedImage: "i:1"}},
	}
}

func TestMounts(t *testing.T) {
	hosts := &runtimeapi.Mount{ContainerPath: "/etc/hosts", HostPath: "/pod/etc-hosts", SelinuxRelabel: true}
	log := &runtimeapi.Mount{ContainerPath: "/dev/termination-log", HostPath: "/pod/log", SelinuxRelabel: true}
	for name, tt := range map[string]struct {
		mounts []v1.VolumeMount
		mod    func(*Container)
		want   []*runtimeapi.Mount
	}{
		"none": {want: []*runtimeapi.Mount{hosts, log}},
		"in order, one twice": {
			mounts: []v1.VolumeMount{{Name: "v", MountPath: "/z"}, {Name: "ro", MountPath: "/a"}, {Name: "v", MountPath: "relative", ReadOnly: true}},
			want: []*runtimeapi.Mount{
				{ContainerPath: "/z", HostPath: "/host/v", SelinuxRelabel: true},
				{ContainerPath: "/a", HostPath: "/host/ro", Readonly: true},
				{ContainerPath: "/relative", HostPath: "/host/v", SelinuxRelabel: true, Readonly: true},
				hosts, log,
			},
		},
		"own hosts file": {
			mounts: []v1.VolumeMount{{Name: "v", MountPath: "/etc//hosts/", SubPath: "hosts"}},
			mod:    func(c *Container) { c.Subpaths = map[int]string{0: "/pod/sub/0"} },
			want:   []*runtimeapi.Mount{{ContainerPath: "/etc//hosts/", HostPath: "/pod/sub/0", SelinuxRelabel: true}, log},
		},
		"no files of the agent": {mod: func(c *Container) { c.Files.Hosts, c.Files.TerminationLog = "", "" }},
		"propagation": {
			mounts: []v1.VolumeMount{
				{Name: "v", MountPath: "/n", MountPropagation: ptr.To(v1.MountPropagationNone)},
				{Name: "v", MountPath: "/h", MountPropagation: ptr.To(v1.MountPropagationHostToContainer)},
				{Name: "v", MountPath: "/b", MountPropagation: ptr.To(v1.MountPropagationBidirectional)},
			},
			want: []*runtimeapi.Mount{
				{ContainerPath: "/n", HostPath: "/host/v", SelinuxRelabel: true},
				{ContainerPath: "/h", HostPath: "/host/v", SelinuxRelabel: true, Propagation: runtimeapi.MountPropagation_PROPAGATION_HOST_TO_CONTAINER},
				{ContainerPath: "/b", HostPath: "/host/v", SelinuxRelabel: true, Propagation: runtimeapi.MountPropagation_PROPAGATION_BIDIRECTIONAL},
				hosts, log,
			},
		},
		"recursive read-only": {
			mounts: []v1.VolumeMount{
				{Name: "v", MountPath: "/e", ReadOnly: true, RecursiveReadOnly: ptr.To(v1.RecursiveReadOnlyEnabled)},
				{Name: "v", MountPath: "/i", ReadOnly: true, RecursiveReadOnly: ptr.To(v1.RecursiveReadOnlyIfPossible)},
				{Name: "v", MountPath: "/d", ReadOnly: true, RecursiveReadOnly: ptr.To(v1.RecursiveReadOnlyDisabled)},
			},
			mod: func(c *Container) { c.RecursiveReadOnly = true },
			want: []*runtimeapi.Mount{
				{ContainerPath: "/e", HostPath: "/host/v", SelinuxRelabel: true, Readonly: true, RecursiveReadOnly: true},
				{ContainerPath: "/i", HostPath: "/host/v", SelinuxRelabel: true, Readonly: true, RecursiveReadOnly: true},
				{ContainerPath: "/d", HostPath: "/host/v", SelinuxRelabel: true, Readonly: true},
				hosts, log,
			},
		},
		"recursive read-only where it is not possible": {
			mounts: []v1.VolumeMount{{Name: "v", MountPath: "/i", ReadOnly: true, RecursiveReadOnly: ptr.To(v1.RecursiveReadOnlyIfPossible)}},
			want:   []*runtimeapi.Mount{{ContainerPath: "/i", HostPath: "/host/v", SelinuxRelabel: true, Readonly: true}, hosts, log},
		},
		"images": {
			mounts: []v1.VolumeMount{{Name: "img", MountPath: "/i"}, {Name: "img", MountPath: "/s", SubPathExpr: "sub/$(NAME)"}},
			want: []*runtimeapi.Mount{
				{ContainerPath: "/i", Readonly: true, Image: &runtimeapi.ImageSpec{Image: "sha256:1", UserSpecifiedImage: "i:1"}},
				{ContainerPath: "/s", Readonly: true, Image: &runtimeapi.ImageSpec{Image: "sha256:1", UserSpecifiedImage: "i:1"}, ImageSubPath: "sub/web-0"},
				hosts, log,
			},
		},
	} {
		in := mounting(tt.mounts...)
		if tt.mod != nil {
			tt.mod(&in)
		}
		cfg, err := ContainerConfig(in)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if diff := cmp.Diff(tt.want, cfg.Mounts, protocmp.Transform()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

func TestMountsThatCannotBe(t *testing.T) {
	for want, m := range map[string]v1.VolumeMount{
		`cannot find volume "x" to mount into container "c"`:           {Name: "x", MountPath: "/x"},
		`subPath of volumeMount "v" of container "c" was not prepared`: {Name: "v", MountPath: "/x", SubPath: "s"},
		"unable to provision SubPath `a/../b`: must not contain '..'":  {Name: "img", MountPath: "/x", SubPath: "a/../b"},
		`volumeMount "v" of container "c": recursiveReadOnly Always is not known; use Disabled, IfPossible or Enabled`: {
			Name: "v", MountPath: "/x", ReadOnly: true, RecursiveReadOnly: ptr.To(v1.RecursiveReadOnlyMode("Always")),
		},
		`volumeMount "v" of container "c": recursiveReadOnly Enabled is not supported by the container runtime's handler; use IfPossible`: {
			Name: "v", MountPath: "/x", ReadOnly: true, RecursiveReadOnly: ptr.To(v1.RecursiveReadOnlyEnabled),
		},
		`volumeMount "v" of container "c": recursiveReadOnly IfPossible needs readOnly: true`: {
			Name: "v", MountPath: "/x", RecursiveReadOnly: ptr.To(v1.RecursiveReadOnlyIfPossible),
		},
		`volumeMount "v" of container "c": recursiveReadOnly IfPossible needs mountPropagation None`: {
			Name: "v", MountPath: "/x", ReadOnly: true, RecursiveReadOnly: ptr.To(v1.RecursiveReadOnlyIfPossible),
			MountPropagation: ptr.To(v1.MountPropagationHostToContainer),
		},
	} {
		if _, err := ContainerConfig(mounting(m)); errorText(err) != want {
			t.Errorf("got %q, want %q", errorText(err), want)
		}
	}
}

func TestSubpaths(t *testing.T) {
	bidirectional := v1.MountPropagationBidirectional
	got, err := Subpaths(mounting(
		v1.VolumeMount{Name: "v", MountPath: "/a"}, v1.VolumeMount{Name: "v", MountPath: "/b", SubPath: "x/$(NAME)"},
		v1.VolumeMount{Name: "ro", MountPath: "/c", SubPathExpr: "logs/$(NAME)/$$(NAME)", MountPropagation: &bidirectional},
		v1.VolumeMount{Name: "img", MountPath: "/d", SubPath: "y"},
	))
	if err != nil {
		t.Fatal(err)
	}
	want := []Subpath{
		{Volume: "v", Root: "/host/v", Container: "c", Index: 1, Path: "x/$(NAME)"},
		{
			Volume: "ro", Root: "/host/ro", Container: "c", Index: 2, Path: "logs/web-0/$(NAME)",
			Propagation: runtimeapi.MountPropagation_PROPAGATION_BIDIRECTIONAL,
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("subpaths (-want +got):\n%s", diff)
	}
	for m, want := range map[v1.VolumeMount]string{
		{Name: "v", SubPath: "/etc"}:               "error SubPath `/etc` must not be an absolute path",
		{Name: "v", SubPath: "a/.."}:               "unable to provision SubPath `a/..`: must not contain '..'",
		{Name: "v", SubPathExpr: "$(ROOT)/passwd"}: "error SubPath `/etc/passwd` must not be an absolute path",
		{Name: "v", SubPathExpr: "$(UP)"}:          "unable to provision SubPath `..`: must not contain '..'",
		{Name: "v", SubPathExpr: "a/$(UP)/b"}:      "unable to provision SubPath `a/../b`: must not contain '..'",
		{Name: "v", SubPathExpr: "a/$(EMPTY)"}:     `subPathExpr "a/$(EMPTY)" of volumeMount "v": missing value for EMPTY`,
		{Name: "v", SubPathExpr: "$(NONE)$(NAME)"}: `subPathExpr "$(NONE)$(NAME)" of volumeMount "v": missing value for NONE`,
		{Name: "x", SubPath: "a"}:                  `cannot find volume "x" to mount into container "c"`,
	} {
		if _, err := Subpaths(mounting(m)); errorText(err) != want {
			t.Errorf("%v: got %q, want %q", m, errorText(err), want)
		}
	}
}
