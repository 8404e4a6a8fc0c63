package volumes

import (
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
)

func TestCheckPayloadPath(t *testing.T) {
	for name, wrong := range map[string]string{
		"a": "", "a/b": "", "./a": "", "a//b": "", "a/": "", ".hidden": "", "a/..b": "", "...": "must not start with '..'",
		"": "must not be empty", ".": "must not be empty", "./": "must not be empty",
		"/a": "must be relative", "..": "must not start with '..'", "../a": "must not start with '..'", "..a": "must not start with '..'",
		"./..a": "must not start with '..'", "a/../b": "must not contain '..'", "a/b/..": "must not contain '..'",
		strings.Repeat("x", 255): "", strings.Repeat("x", 256): "less than or equal to 255",
		strings.Repeat("x/", 2048): "", strings.Repeat("x/", 2048) + "y": "less than or equal to 4096",
		"a\x00b": "NUL", "\xff": "UTF-8",
	} {
		err := checkPayloadPath(name)
		if (err == nil) != (wrong == "") || (err != nil && !strings.Contains(err.Error(), wrong)) {
			t.Errorf("%.20q: got %v, want %q", name, err, wrong)
		}
	}
}

// Whatever path an object asks for: it is refused, or exactly that file appears and nothing outside
// the volume.
func FuzzPayloadPath(f *testing.F) {
	for _, seed := range []string{"a", "a/b", "../x", "..data", "./..x", "a/../..", "a//b", "a/", "/etc/passwd", "..data/x", strings.Repeat("d/", 40) + "x", "a\nb"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, name string) {
		parent := t.TempDir()
		dir := filepath.Join(parent, "volume")
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		p := payload{}
		if err := p.add(name, content{data: []byte("x"), mode: 0o644}); err != nil {
			return
		}
		for i := range 2 {
			if changed, err := writeTo(dir, p, nil); err != nil || changed != (i == 0) {
				t.Fatalf("accepted %q, then: changed %v, %v", name, changed, err)
			}
		}
		root, err := os.OpenRoot(dir)
		if err != nil {
			t.Fatal(err)
		}
		defer root.Close()
		if got, err := root.ReadFile(path.Clean(name)); err != nil || string(got) != "x" {
			t.Errorf("%q: %q, %v", name, got, err)
		}
		outside, err := os.ReadDir(parent)
		if err != nil || len(outside) != 1 {
			t.Errorf("%q: written outside the volume: %v, %v", name, outside, err)
		}
		if _, err := writeTo(dir, payload{}, nil); err != nil || len(shown(t, dir)) != 0 {
			t.Errorf("%q: left behind: %v, %v", name, shown(t, dir), err)
		}
	})
}

func TestMountPointsWithin(t *testing.T) {
	mounts := func(kv ...string) v1.Container {
		var c v1.Container
		for i := 0; i < len(kv); i += 2 {
			c.VolumeMounts = append(c.VolumeMounts, v1.VolumeMount{Name: kv[i], MountPath: kv[i+1]})
		}
		return c
	}
	p := &v1.Pod{Spec: v1.PodSpec{
		InitContainers: []v1.Container{mounts("v", "/etc/v/", "a", "/etc/v/one", "b", "/etc/v/one/two", "c", "/etc/vx")},
		Containers: []v1.Container{
			mounts("v", "conf", "a", "/conf/./three/deep", "v", "/conf/self"),
			mounts("a", "/etc/v/four", "b", "/other"),
		},
	}}
	if d := cmp.Diff([]string{"one", "self", "three/deep"}, mountPointsWithin(p, "v")); d != "" {
		t.Error(d)
	}
	p.Spec.InitContainers[0].VolumeMounts[0].MountPath = "/"
	if got := mountPointsWithin(p, "v"); !slices.Contains(got, "etc/vx") || slices.Contains(got, "etc/v/one/two") {
		t.Errorf("below the root: %v", got)
	}
}
