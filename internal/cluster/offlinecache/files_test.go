package offlinecache

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

var aSecret = ref{secrets, "default", "a"}

// Records are read as they were written, only by their node and for their cluster.
func TestFiles(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "kept")
	f := newFiles(dir, "node", "server")
	long := ref{configMaps, strings.Repeat("n", 63), strings.Repeat("c", 253)}
	for r, text := range map[ref]string{long: `{"data":{"a":"b"}}`, aSecret: `{"data":{"a":"cGFzc3dvcmQ="}}`} {
		if err := f.write(r, []byte(text)); err != nil {
			t.Fatal(err)
		}
		rec, err := newFiles(dir, "node", "server").read(f.path(r))
		if err != nil || string(rec.Object) != text || rec.ref() != r || rec.CachedAt.IsZero() {
			t.Errorf("%v: %+v, %v", r, rec, err)
		}
		for _, other := range []*files{newFiles(dir, "other", "server"), newFiles(dir, "node", "other")} {
			if rec, err := other.read(f.path(r)); !errors.Is(err, errForeign) {
				t.Errorf("%v for another: %+v, %v", r, rec, err)
			}
		}
		b, err := os.ReadFile(f.path(r))
		if err != nil || r.Kind == secrets && strings.Contains(string(b), "cGFz") {
			t.Errorf("%v: the file is %s, %v", r, b, err)
		}
		if st, err := os.Stat(f.path(r)); err != nil || st.Mode() != 0o600 {
			t.Errorf("%v has mode %v, %v", r, st.Mode(), err)
		}
	}
	paths, err := f.paths()
	if err != nil || len(paths) != 2 {
		t.Errorf("files: %v, %v", paths, err)
	}
	for range 2 {
		if err := f.remove(long); err != nil {
			t.Error(err)
		}
	}
	if rec, err := f.read(f.path(long)); err != nil || rec.Object != nil {
		t.Errorf("after its removal: %+v, %v", rec, err)
	}
}

// A record that is torn, misplaced, or whose key is lost is set aside. A record whose key is
// rejected is not: the key may be repaired.
func TestUnreadableFiles(t *testing.T) {
	for name, c := range map[string]struct {
		spoil func(f *files, path string) error
		want  string
		stays bool
	}{
		"torn":  {func(_ *files, path string) error { return os.Truncate(path, 40) }, "unexpected end of JSON input", false},
		"zeros": {func(_ *files, path string) error { return os.WriteFile(path, make([]byte, 100), 0o600) }, "invalid character", false},
		"another's": {func(f *files, path string) error {
			if err := f.write(ref{secrets, "default", "b"}, []byte("{}")); err != nil {
				return err
			}
			return os.Rename(f.path(ref{secrets, "default", "b"}), path)
		}, "which has another place", false},
		"renamed": {func(_ *files, path string) error {
			b, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			return os.WriteFile(path, []byte(strings.Replace(string(b), `"kept":"2`, `"kept":"3`, 1)), 0o600)
		}, "encrypted by another key, or was changed", false},
		"no key":      {func(f *files, _ string) error { return os.Remove(f.vault.path()) }, "the key is not there", false},
		"bad key":     {func(f *files, _ string) error { return os.Chmod(f.vault.path(), 0o644) }, "is rejected", true},
		"new version": {func(_ *files, path string) error { return os.WriteFile(path, []byte(`{"version":2}`), 0o600) }, "version 2 is not known", false},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFiles(filepath.Join(t.TempDir(), "kept"), "node", "server")
			if err := f.write(aSecret, []byte("{}")); err != nil {
				t.Fatal(err)
			}
			path := f.path(aSecret)
			if err := c.spoil(f, path); err != nil {
				t.Fatal(err)
			}
			rec, err := newFiles(f.dir, f.node, f.server).read(path)
			if err == nil || !strings.Contains(err.Error(), c.want) || rec.Object != nil {
				t.Errorf("%s, error %v, want one with %q", rec.Object, err, c.want)
			}
			_, err = os.Stat(path)
			if stays := err == nil; stays != c.stays {
				t.Errorf("the file is still there: %v", stays)
			}
		})
	}
}

// References of a pod, and of the objects that it refers to.
func TestRefs(t *testing.T) {
	class, signer, bundle := "fast", "example.com/s", "roots"
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "shop"}, Spec: v1.PodSpec{
		RuntimeClassName: &class, ServiceAccountName: "sa", ImagePullSecrets: []v1.LocalObjectReference{{Name: "pull"}},
		Containers: []v1.Container{{EnvFrom: []v1.EnvFromSource{{ConfigMapRef: &v1.ConfigMapEnvSource{LocalObjectReference: v1.LocalObjectReference{Name: "env"}}}}}},
		Volumes: []v1.Volume{
			{Name: "a", VolumeSource: v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}},
			{Name: "b", VolumeSource: v1.VolumeSource{Ephemeral: &v1.EphemeralVolumeSource{}}},
			{Name: "c", VolumeSource: v1.VolumeSource{CSI: &v1.CSIVolumeSource{Driver: "inline"}}},
			{Name: "d", VolumeSource: v1.VolumeSource{Projected: &v1.ProjectedVolumeSource{Sources: []v1.VolumeProjection{
				{ClusterTrustBundle: &v1.ClusterTrustBundleProjection{Name: &bundle}}, {ClusterTrustBundle: &v1.ClusterTrustBundleProjection{SignerName: &signer}},
			}}}},
		},
	}}
	var got []string
	for _, r := range refsOf(p) {
		got = append(got, r.String())
	}
	want := "CSIDriver inline; ClusterTrustBundleList name roots; ClusterTrustBundleList signer example.com/s; ConfigMap shop/env; " +
		"PersistentVolumeClaim shop/data; PersistentVolumeClaim shop/web-b; RuntimeClass fast; Secret shop/pull; " +
		"ServiceAccount shop/sa; ServiceList default/kubernetes; the Services of namespace shop"
	if all := strings.Join(got, "; "); all != want {
		t.Errorf("a pod refers to\n%s\nwant\n%s", all, want)
	}
	claim := &v1.PersistentVolumeClaim{Spec: v1.PersistentVolumeClaimSpec{VolumeName: "disk"}}
	volume := &v1.PersistentVolume{Spec: v1.PersistentVolumeSpec{PersistentVolumeSource: v1.PersistentVolumeSource{CSI: &v1.CSIPersistentVolumeSource{
		Driver: "d", NodeStageSecretRef: &v1.SecretReference{Namespace: "n", Name: "s"},
	}}}}
	if got := refsOf(claim); len(got) != 1 || got[0] != (ref{Kind: volumes, Name: "disk"}) {
		t.Errorf("a claim refers to %v", got)
	}
	if got := refsOf(volume); len(got) != 2 || got[0] != (ref{Kind: drivers, Name: "d"}) || got[1] != (ref{secrets, "n", "s"}) {
		t.Errorf("a volume refers to %v", got)
	}
}
