package volumes

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	"berth/internal/runtime/crispec"
)

// objects are what an API server has in the namespace "default".
type objects struct {
	configMaps map[string]*v1.ConfigMap
	secrets    map[string]*v1.Secret
	token      string
	err        error // of everything
}

func (o *objects) ConfigMap(_ context.Context, _, name string) (*v1.ConfigMap, error) {
	if m := o.configMaps[name]; m != nil || o.err != nil {
		return m, o.err
	}
	return nil, apierrors.NewNotFound(v1.Resource("configmap"), name)
}

func (o *objects) Secret(_ context.Context, namespace, name string) (*v1.Secret, error) {
	if s := o.secrets[name]; s != nil || o.err != nil {
		return s, o.err
	}
	return nil, apierrors.NewNotFound(v1.Resource("secret"), name)
}

func (o *objects) Token(_ context.Context, p *v1.Pod, src *v1.ServiceAccountTokenProjection) (string, error) {
	return o.token + " for " + src.Audience, o.err
}

func (o *objects) TrustBundle(_ context.Context, _ *v1.Pod, src *v1.ClusterTrustBundleProjection) ([]byte, error) {
	if src.Name == nil {
		return nil, errors.New("no such bundle")
	}
	return []byte("anchors of " + *src.Name), o.err
}

func (o *objects) PodCertificate(p *v1.Pod, volume string, source int) (key, chain []byte, err error) {
	if p.Spec.Volumes[0].Projected.Sources[source].PodCertificate.SignerName == "" {
		return nil, nil, errors.New("credential bundle is not issued yet")
	}
	return []byte("key "), fmt.Appendf(nil, "chain %s %d", volume, source), o.err
}

func testObjects() *objects {
	return &objects{
		configMaps: map[string]*v1.ConfigMap{"cm": {Data: map[string]string{"a": "1", "b": "2"}, BinaryData: map[string][]byte{"raw": {0xff}}}},
		secrets:    map[string]*v1.Secret{"s": {Data: map[string][]byte{"key": []byte("hush")}}},
		token:      "token",
	}
}

func local(name string) v1.LocalObjectReference { return v1.LocalObjectReference{Name: name} }

func configMapVolume(name string, src v1.ConfigMapVolumeSource) v1.Volume {
	return v1.Volume{Name: name, VolumeSource: v1.VolumeSource{ConfigMap: &src}}
}

func secretVolume(name string, src v1.SecretVolumeSource) v1.Volume {
	return v1.Volume{Name: name, VolumeSource: v1.VolumeSource{Secret: &src}}
}

func projectedVolume(name string, sources ...v1.VolumeProjection) v1.Volume {
	return v1.Volume{Name: name, VolumeSource: v1.VolumeSource{Projected: &v1.ProjectedVolumeSource{Sources: sources}}}
}

func downwardVolume(name string, items ...v1.DownwardAPIVolumeFile) v1.Volume {
	return v1.Volume{Name: name, VolumeSource: v1.VolumeSource{DownwardAPI: &v1.DownwardAPIVolumeSource{Items: items}}}
}

func fieldFile(path, field string) v1.DownwardAPIVolumeFile {
	return v1.DownwardAPIVolumeFile{Path: path, FieldRef: &v1.ObjectFieldSelector{FieldPath: field}}
}

func resourceFile(path, container, name string) v1.DownwardAPIVolumeFile {
	return v1.DownwardAPIVolumeFile{Path: path, ResourceFieldRef: &v1.ResourceFieldSelector{ContainerName: container, Resource: name}}
}

// prepared returns the payload of the pod's only volume as lines "mode contents" by path, or the
// error.
func prepared(t *testing.T, m *Manager, p *v1.Pod) (map[string]string, string) {
	t.Helper()
	in, err := m.Prepare(t.Context(), p)
	sawFailed(err)
	if err != nil {
		return nil, err.Err().Error()
	}
	out := map[string]string{}
	for name, c := range in.volumes[p.Spec.Volumes[0].Name].input.(payload) {
		out[name] = c.mode.String()[1:] + " " + string(c.data)
	}
	return out, ""
}

func TestPayloads(t *testing.T) {
	const failed = `MountVolume.SetUp failed for volume "v" : `
	for _, tc := range []struct {
		name   string
		volume v1.Volume
		want   map[string]string
		err    string
	}{
		{
			name:   "all keys of a config map",
			volume: configMapVolume("v", v1.ConfigMapVolumeSource{LocalObjectReference: local("cm")}),
			want:   map[string]string{"a": "rw-r--r-- 1", "b": "rw-r--r-- 2", "raw": "rw-r--r-- \xff"},
		},
		{
			name: "items of a config map",
			volume: configMapVolume("v", v1.ConfigMapVolumeSource{
				LocalObjectReference: local("cm"), DefaultMode: ptr.To(int32(0o400)),
				Items: []v1.KeyToPath{{Key: "a", Path: "x/a"}, {Key: "a", Path: "./y", Mode: ptr.To(int32(0o640))}},
			}),
			want: map[string]string{"x/a": "r-------- 1", "y": "rw-r----- 1"},
		},
		{
			name:   "a key that is missing",
			volume: configMapVolume("v", v1.ConfigMapVolumeSource{LocalObjectReference: local("cm"), Items: []v1.KeyToPath{{Key: "k", Path: "k"}}}),
			err:    failed + `configmap references non-existent config key: k: it has a, b, raw`,
		},
		{
			name: "a key that may be missing",
			volume: configMapVolume("v", v1.ConfigMapVolumeSource{
				LocalObjectReference: local("cm"), Optional: ptr.To(true), Items: []v1.KeyToPath{{Key: "k", Path: "k"}, {Key: "a", Path: "a"}},
			}),
			want: map[string]string{"a": "rw-r--r-- 1"},
		},
		{
			name:   "a config map that is missing",
			volume: configMapVolume("v", v1.ConfigMapVolumeSource{LocalObjectReference: local("no")}),
			err:    failed + `configmap "no" not found`,
		},
		{
			name:   "a config map that may be missing",
			volume: configMapVolume("v", v1.ConfigMapVolumeSource{LocalObjectReference: local("no"), Optional: ptr.To(true)}),
			want:   map[string]string{},
		},
		{
			name:   "a path that leaves the volume",
			volume: configMapVolume("v", v1.ConfigMapVolumeSource{LocalObjectReference: local("cm"), Items: []v1.KeyToPath{{Key: "a", Path: "../a"}}}),
			err:    failed + `invalid path: must not start with '..': ../a`,
		},
		{
			name:   "a secret",
			volume: secretVolume("v", v1.SecretVolumeSource{SecretName: "s", DefaultMode: ptr.To(int32(0o440))}),
			want:   map[string]string{"key": "r--r----- hush"},
		},
		{
			name:   "a secret that is missing",
			volume: secretVolume("v", v1.SecretVolumeSource{SecretName: "no"}),
			err:    failed + `secret "no" not found`,
		},
		{
			name:   "a secret that may be missing",
			volume: secretVolume("v", v1.SecretVolumeSource{SecretName: "no", Optional: ptr.To(true)}),
			want:   map[string]string{},
		},
		{
			name:   "a key of a secret that is missing",
			volume: secretVolume("v", v1.SecretVolumeSource{SecretName: "s", Items: []v1.KeyToPath{{Key: "k", Path: "k"}}}),
			err:    failed + `references non-existent secret key: k`,
		},
		{
			name: "fields and resources",
			volume: downwardVolume("v",
				fieldFile("name", "metadata.name"), fieldFile("labels", "metadata.labels"), fieldFile("one", "metadata.labels['b']"),
				resourceFile("limits/cpu", "c", "limits.cpu"), resourceFile("limits/memory", "c", "limits.memory"),
			),
			want: map[string]string{
				"name": "rw-r--r-- p", "labels": "rw-r--r-- a=\"1\"\nb=\"2\"", "one": "rw-r--r-- 2",
				"limits/cpu": "rw-r--r-- 2", "limits/memory": "rw-r--r-- 1073741824",
			},
		},
		{
			name:   "a field of no pod",
			volume: downwardVolume("v", fieldFile("x", "spec.nodeName")),
			err:    failed + "unsupported fieldPath: spec.nodeName",
		},
		{
			name:   "a resource of no container",
			volume: downwardVolume("v", resourceFile("x", "no", "limits.cpu")),
			err:    failed + "container no not found",
		},
		{
			name: "all sources in one, the last wins",
			volume: projectedVolume("v",
				v1.VolumeProjection{ServiceAccountToken: &v1.ServiceAccountTokenProjection{Path: "token", Audience: "api"}},
				v1.VolumeProjection{ConfigMap: &v1.ConfigMapProjection{LocalObjectReference: local("cm")}},
				v1.VolumeProjection{Secret: &v1.SecretProjection{LocalObjectReference: local("s"), Items: []v1.KeyToPath{{Key: "key", Path: "a"}}}},
				v1.VolumeProjection{DownwardAPI: &v1.DownwardAPIProjection{Items: []v1.DownwardAPIVolumeFile{fieldFile("namespace", "metadata.namespace")}}},
				v1.VolumeProjection{Secret: &v1.SecretProjection{LocalObjectReference: local("no"), Optional: ptr.To(true)}},
			),
			want: map[string]string{
				"token": "rw-r--r-- token for api", "a": "rw-r--r-- hush", "b": "rw-r--r-- 2", "raw": "rw-r--r-- \xff", "namespace": "rw-r--r-- default",
			},
		},
		{
			name: "anchors and certificates",
			volume: projectedVolume("v",
				v1.VolumeProjection{ClusterTrustBundle: &v1.ClusterTrustBundleProjection{Name: ptr.To("b"), Path: "anchors.pem"}},
				v1.VolumeProjection{PodCertificate: &v1.PodCertificateProjection{SignerName: "s", CredentialBundlePath: "all.pem"}},
				v1.VolumeProjection{PodCertificate: &v1.PodCertificateProjection{SignerName: "s", KeyPath: "key.pem", CertificateChainPath: "chain.pem"}},
			),
			want: map[string]string{
				"anchors.pem": "rw-r--r-- anchors of b", "all.pem": "rw-r--r-- key chain v 1",
				"key.pem": "rw-r--r-- key ", "chain.pem": "rw-r--r-- chain v 2",
			},
		},
		{
			name: "all errors of all sources",
			volume: projectedVolume("v",
				v1.VolumeProjection{ConfigMap: &v1.ConfigMapProjection{LocalObjectReference: local("no")}},
				v1.VolumeProjection{Secret: &v1.SecretProjection{LocalObjectReference: local("no")}},
				v1.VolumeProjection{ClusterTrustBundle: &v1.ClusterTrustBundleProjection{}},
				v1.VolumeProjection{PodCertificate: &v1.PodCertificateProjection{}},
			),
			err: failed + `[configmap "no" not found, secret "no" not found, no such bundle, credential bundle is not issued yet]`,
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m, _ := newManager(t)
			m.reader().objects, m.reader().certificates = testObjects(), testObjects()
			m.reader().node = func() (*v1.Node, bool) {
				return &v1.Node{Status: v1.NodeStatus{Allocatable: v1.ResourceList{v1.ResourceMemory: resource.MustParse("1Gi")}}}, true
			}
			p := podWith(tc.volume)
			p.Labels = map[string]string{"b": "2", "a": "1"}
			p.Spec.Containers[0].Resources.Limits = v1.ResourceList{v1.ResourceCPU: resource.MustParse("1500m")}
			got, err := prepared(t, m, p)
			if err != tc.err {
				t.Errorf("got error %q, want %q", err, tc.err)
			}
			if d := cmp.Diff(tc.want, got); d != "" {
				t.Errorf("payload (-want +got):\n%s", d)
			}
		})
	}
}

// What shows the pod alone, or nobody mounts, asks for no object.
func TestPrepareAsksForNoObject(t *testing.T) {
	m, _ := newManager(t)
	pod := v1.VolumeProjection{DownwardAPI: &v1.DownwardAPIProjection{Items: []v1.DownwardAPIVolumeFile{fieldFile("name", "metadata.name")}}}
	for _, v := range []v1.Volume{projectedVolume("v", pod), downwardVolume("v", pod.DownwardAPI.Items...)} {
		if got, err := prepared(t, m, podWith(v)); err != "" || got["name"] != "rw-r--r-- p" {
			t.Errorf("what shows only the pod: %v, %s", got, err)
		}
	}
	unused := podWith()
	unused.Spec.Volumes = []v1.Volume{secretVolume("v", v1.SecretVolumeSource{SecretName: "s"})}
	if in, err := m.Prepare(t.Context(), unused); err != nil || in.Live() {
		t.Errorf("a volume that no container mounts: %v", err)
	}
}

func TestPrepareTellsEachVolume(t *testing.T) {
	m, _ := newManager(t)
	m.reader().objects = &objects{err: errors.New("no answer")}
	p := podWith(
		configMapVolume("one", v1.ConfigMapVolumeSource{LocalObjectReference: local("cm"), Optional: ptr.To(true)}), emptyDir("fine", ""),
		projectedVolume("two", v1.VolumeProjection{ServiceAccountToken: &v1.ServiceAccountTokenProjection{Path: "t"}}),
	)
	_, err := m.Prepare(t.Context(), p)
	want := "MountVolume.SetUp failed for volume \"one\" : no answer\nMountVolume.SetUp failed for volume \"two\" : no answer"
	if err == nil || err.Err().Error() != want {
		t.Errorf("got %v", err)
	}
}

func TestCredential(t *testing.T) {
	user := func(id int64) *v1.SecurityContext { return &v1.SecurityContext{RunAsUser: &id} }
	for name, tc := range map[string]struct {
		change func(*v1.PodSpec)
		mode   fs.FileMode
		owner  *int64
	}{
		"nothing said":      {func(*v1.PodSpec) {}, 0o644, nil},
		"the pod's user":    {func(s *v1.PodSpec) { s.SecurityContext = &v1.PodSecurityContext{RunAsUser: ptr.To(int64(7))} }, 0o600, ptr.To(int64(7))},
		"the pod's fsGroup": {func(s *v1.PodSpec) { s.SecurityContext = &v1.PodSecurityContext{FSGroup: ptr.To(int64(7))} }, 0o600, nil},
		"one user": {func(s *v1.PodSpec) {
			s.Containers[0].SecurityContext = user(7)
			s.InitContainers = []v1.Container{{SecurityContext: user(7)}}
		}, 0o600, ptr.To(int64(7))},
		"two users": {func(s *v1.PodSpec) {
			s.Containers[0].SecurityContext = user(7)
			s.InitContainers = []v1.Container{{SecurityContext: user(8)}}
		}, 0o644, nil},
		"one container without": {func(s *v1.PodSpec) {
			s.Containers[0].SecurityContext = user(7)
			s.EphemeralContainers = []v1.EphemeralContainer{{}}
		}, 0o644, nil},
	} {
		p := podWith()
		tc.change(&p.Spec)
		c := credential(p, ptr.To(int32(0o644)), nil)
		if c.mode != tc.mode || !ptr.Equal(c.owner, tc.owner) {
			t.Errorf("%s: mode %v, owner %v", name, c.mode, c.owner)
		}
	}
}

func TestPayloadVolumes(t *testing.T) {
	m, mounts := newManager(t)
	o := testObjects()
	m.reader().objects = o
	group := int64(os.Getgid())
	p := podWith(
		configMapVolume("cm", v1.ConfigMapVolumeSource{LocalObjectReference: local("cm")}),
		secretVolume("s", v1.SecretVolumeSource{SecretName: "s"}),
		downwardVolume("d", fieldFile("labels", "metadata.labels")),
		projectedVolume("p", v1.VolumeProjection{ServiceAccountToken: &v1.ServiceAccountTokenProjection{Path: "token"}}),
	)
	p.Spec.SecurityContext = &v1.PodSecurityContext{FSGroup: &group}
	p.Spec.Containers[0].VolumeMounts = append(p.Spec.Containers[0].VolumeMounts,
		v1.VolumeMount{Name: "s", MountPath: "/cm/inner"}, v1.VolumeMount{Name: "s", MountPath: "/cm/a/below"})
	volumesDir := filepath.Join(m.host.root, "pods", uid, "volumes")
	want := map[string]crispec.Volume{}
	for name, plugin := range map[string]string{"cm": "configmap", "s": "secret", "d": "downward-api", "p": "projected"} {
		want[name] = crispec.Volume{HostPath: filepath.Join(volumesDir, "kubernetes.io~"+plugin, name), ReadOnly: true, SELinuxRelabel: true}
	}
	pass := func() {
		t.Helper()
		got, err := m.setup(t, p)
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Fatalf("mounted (-want +got):\n%s", d)
		}
	}
	read := func(volume, name string) string {
		t.Helper()
		b, err := os.ReadFile(filepath.Join(want[volume].HostPath, name))
		if err != nil {
			t.Error(err)
		}
		return string(b)
	}
	pass()
	if read("cm", "a") != "1" || read("s", "key") != "hush" || read("p", "token") != "token for " || read("d", "labels") != "" {
		t.Error("contents are wrong")
	}
	for path, mode2 := range map[string]fs.FileMode{
		want["cm"].HostPath: fs.ModeDir | fs.ModeSetgid | 0o777, want["s"].HostPath: fs.ModeDir | fs.ModeSetgid | fs.ModeSticky | 0o777,
		filepath.Join(want["p"].HostPath, "token"):  0o640,
		filepath.Join(want["cm"].HostPath, "inner"): fs.ModeDir | fs.ModeSetgid | 0o755, // inherited
	} {
		if got := mode(t, path); got != mode2 {
			t.Errorf("%s: mode %v, want %v", path, got, mode2)
		}
	}
	if len(mounts.MountPoints) != 3 {
		t.Errorf("mounts: %v; want a tmpfs for each volume but the config map's", mounts.MountPoints)
	}

	// Nothing changes: nothing is mounted, replaced or told.
	data := func(volume string) string {
		t.Helper()
		target, err := os.Readlink(filepath.Join(want[volume].HostPath, dataLink))
		if err != nil {
			t.Fatal(err)
		}
		return target
	}
	before, beforeSecret := data("cm"), data("s")
	mounts.ResetLog()
	pass()
	if data("cm") != before || len(mounts.GetLog()) != 0 || len(m.journal.Read("default", "p")) != 1 {
		t.Errorf("a pass without news did something: %v, %v", mounts.GetLog(), m.journal.Read("default", "p"))
	}

	// One object and the pod's labels change: only their volumes do.
	o.configMaps["cm"] = &v1.ConfigMap{Data: map[string]string{"a": "new"}}
	p.Labels = map[string]string{"app": "web"}
	pass()
	if read("cm", "a") != "new" || read("d", "labels") != `app="web"` || data("cm") == before || data("s") != beforeSecret {
		t.Error("a change did not arrive, or too many did")
	}
	if j := m.journal.Read("default", "p"); len(j) != 2 || j[1].Decision != "set up volumes: cm, d" {
		t.Errorf("journal: %v", j)
	}

	// An object that goes away: what is shown stays.
	delete(o.secrets, "s")
	if _, err := m.setup(t, p); err == nil || !strings.Contains(err.Error(), `secret "s" not found`) {
		t.Errorf("got %v", err)
	}
	if read("s", "key") != "hush" {
		t.Error("the shown secret changed")
	}

	for range 2 {
		if err := m.Teardown(t.Context(), uid); err != nil {
			t.Fatal(err)
		}
	}
	if len(mounts.MountPoints) != 0 {
		t.Errorf("still mounted: %v", mounts.MountPoints)
	}
	if got := tree(t, filepath.Join(m.host.root, "pods", uid)); !cmp.Equal(got, []string{"plugins", "volumes"}) {
		t.Errorf("left over: %v", got)
	}
}

func TestOptionalObjectComesAndGoes(t *testing.T) {
	m, _ := newManager(t)
	o := testObjects()
	m.reader().objects = o
	late := o.configMaps["cm"]
	delete(o.configMaps, "cm")
	p := podWith(configMapVolume("v", v1.ConfigMapVolumeSource{LocalObjectReference: local("cm"), Optional: ptr.To(true)}))
	for _, there := range []bool{false, true, false} {
		if there {
			o.configMaps["cm"] = late
		} else {
			delete(o.configMaps, "cm")
		}
		got, err := m.setup(t, p)
		if err != nil {
			t.Fatal(err)
		}
		if files := shown(t, got["v"].HostPath); (len(files) == 3) != there || (len(files) == 0) == there {
			t.Errorf("there: %v, shown: %v", there, files)
		}
	}
}

func TestVolumeGoesOnShowingWhatItShows(t *testing.T) {
	m, _ := newManager(t)
	o := &objects{secrets: map[string]*v1.Secret{"s": {Data: map[string][]byte{"k": []byte("old")}}}}
	m.reader().objects = o
	p := podWith(secretVolume("v", v1.SecretVolumeSource{SecretName: "s"}))
	got, err := m.setup(t, p)
	if err != nil {
		t.Fatal(err)
	}
	before := shown(t, got["v"].HostPath)
	again, errs := m.Setup(t.Context(), p, Inputs{}) // the secret could not be read
	if errs != nil || again["v"] != got["v"] {
		t.Fatalf("got %+v, %v", again, errs)
	}
	if after := shown(t, again["v"].HostPath); len(after) == 0 || !maps.Equal(before, after) {
		t.Errorf("before %v, after %v", before, after)
	}
}

func TestSetupNeedsInputs(t *testing.T) {
	m, _ := newManager(t)
	p := podWith(secretVolume("v", v1.SecretVolumeSource{SecretName: "s"}))
	if _, errs := m.Setup(t.Context(), p, Inputs{}); errs == nil || !strings.Contains(errs.Err().Error(), "was not read before") {
		t.Errorf("got %v", errs)
	}
}
