package kuberuntime

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/testing/protocmp"
	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/ptr"

	"berth/internal/pod/lifecycle"
	"berth/internal/runtime/crispec"
)

// fakeVolumes can bind every path but "refused".
type fakeVolumes struct{}

func (fakeVolumes) BindSubpath(_ context.Context, _ *v1.Pod, s crispec.Subpath) (string, error) {
	if s.Path == "refused" {
		return "", errors.New("failed to prepare subPath")
	}
	return "/bound" + s.Root + "/" + s.Path, nil
}

// volume is the folder of the pod's volume.
func (b *bench) volume() string { return filepath.Join(b.root, "volume") }

// syncMounting does one pass over a pod of one container with the mounts, the volume v at /v, and
// the volume img, which is an image.
func (b *bench) syncMounting(image string, env []v1.EnvVar, mounts ...v1.VolumeMount) lifecycle.StartError {
	b.t.Helper()
	b.starter.mounts.volumes = fakeVolumes{}
	for _, err := range []error{
		os.MkdirAll(filepath.Join(b.volume(), "damaged"), 0o755), os.WriteFile(filepath.Join(b.volume(), "f.env"), []byte("A='1'\n"), 0o600),
	} {
		if err != nil {
			b.t.Fatal(err)
		}
	}
	p := podOf(v1.RestartPolicyAlways, "a")
	p.Spec.Volumes = []v1.Volume{{Name: "img", VolumeSource: v1.VolumeSource{Image: &v1.ImageVolumeSource{Reference: image, PullPolicy: v1.PullNever}}}}
	p.Spec.Containers[0].Env, p.Spec.Containers[0].VolumeMounts = env, mounts
	if err := os.MkdirAll(b.starter.files.dir(p.UID), 0o750); err != nil {
		b.t.Fatal(err)
	}
	res, err := b.SyncPod(b.t.Context(), Request{Pod: p, Observed: b.observe(), Volumes: func(context.Context) (map[string]crispec.Volume, error) {
		return map[string]crispec.Volume{"v": {HostPath: b.volume()}}, nil
	}})
	sawWaiting(res)
	if err != nil {
		b.t.Fatal(err)
	}
	return res.StartErrors["a"]
}

func TestMountsOfAContainer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		e := b.syncMounting(testImage, []v1.EnvVar{{Name: "A", ValueFrom: &v1.EnvVarSource{FileKeyRef: &v1.FileKeySelector{VolumeName: "v", Path: "f.env", Key: "A"}}}},
			v1.VolumeMount{Name: "v", MountPath: "/a", SubPathExpr: "sub$(A)"}, v1.VolumeMount{Name: "img", MountPath: "/i", SubPath: "bin"},
			v1.VolumeMount{Name: "v", MountPath: "/r", ReadOnly: true, RecursiveReadOnly: ptr.To(v1.RecursiveReadOnlyEnabled)})
		if e.Reason != "" {
			t.Fatalf("the container did not start: %+v", e)
		}
		img, err := b.client.Images.ImageStatus(t.Context(), &runtimeapi.ImageSpec{Image: testImage})
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range b.fake.Calls.All() {
			req, ok := c.Request.(*runtimeapi.CreateContainerRequest)
			if !ok {
				continue
			}
			want := []*runtimeapi.Mount{
				{ContainerPath: "/a", HostPath: "/bound" + b.volume() + "/sub1"},
				{ContainerPath: "/i", Readonly: true, Image: &runtimeapi.ImageSpec{Image: img.Id, UserSpecifiedImage: testImage}, ImageSubPath: "bin"},
				{ContainerPath: "/r", HostPath: b.volume(), Readonly: true, RecursiveReadOnly: true},
			}
			if diff := cmp.Diff(want, req.Config.Mounts[:3], protocmp.Transform()); diff != "" {
				t.Errorf("mounts (-want +got):\n%s", diff)
			}
			return
		}
		t.Error("no container was created")
	})
}

func TestMountsThatFail(t *testing.T) {
	file := func(volume, path string) []v1.EnvVar {
		return []v1.EnvVar{{Name: "A", ValueFrom: &v1.EnvVarSource{FileKeyRef: &v1.FileKeySelector{VolumeName: volume, Path: path, Key: "A"}}}}
	}
	recursive := v1.VolumeMount{Name: "v", MountPath: "/r", ReadOnly: true, RecursiveReadOnly: ptr.To(v1.RecursiveReadOnlyEnabled)}
	for _, tc := range []struct {
		name, image string
		env         []v1.EnvVar
		mount       v1.VolumeMount
		fail        string // a method of the runtime
		reason      string
		message     string
	}{
		{"subPath", testImage, nil, v1.VolumeMount{Name: "v", SubPath: "refused"}, "", lifecycle.CreateContainerConfigError, "failed to prepare subPath"},
		{"subPathExpr", testImage, nil, v1.VolumeMount{Name: "v", SubPathExpr: "$(X)"}, "", lifecycle.CreateContainerConfigError, "missing value for X"},
		{"no file", testImage, file("v", "absent"), v1.VolumeMount{Name: "v"}, "", lifecycle.CreateContainerConfigError, `env "A": file "absent" of volume "v" not found`},
		{"damaged file", testImage, file("v", "damaged"), v1.VolumeMount{Name: "v"}, "", lifecycle.CreateContainerConfigError, `file "damaged" of volume "v": read damaged: it is not a regular file`},
		{"file of no volume", testImage, file("x", "f"), v1.VolumeMount{Name: "v"}, "", lifecycle.CreateContainerConfigError, `cannot find volume "x" to take variables of container "a" from`},
		{"image volume", "absent:1", nil, v1.VolumeMount{Name: "img"}, "", lifecycle.ErrImageNeverPull, `Container image "absent:1" is not present with pull policy of Never`},
		{"name of an image volume", "Not A Name", nil, v1.VolumeMount{Name: "img"}, "", lifecycle.InvalidImageName, "Not A Name"},
		{"features", testImage, nil, recursive, "Status", lifecycle.CreateContainerConfigError, "no answer"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t)
				if tc.fail != "" {
					b.fake.Calls.Fail(tc.fail, 1, status.Error(codes.Unknown, "no answer"))
				}
				e := b.syncMounting(tc.image, tc.env, tc.mount)
				if e.Reason != tc.reason || !strings.Contains(e.Message, tc.message) {
					t.Errorf("got %+v, want %s with %q", e, tc.reason, tc.message)
				}
				if n := b.fake.Calls.Count("CreateContainer"); n != 0 {
					t.Errorf("%d containers were created", n)
				}
			})
		})
	}
}
