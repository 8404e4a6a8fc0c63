package podsync

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"berth/internal/pod"
)

// A container that has been given its pod's folder, or all of them, puts links there: the host's
// folder stays as it is when the pod goes, and another pod gets no folder in it.
func TestLinksInThePodsFolder(t *testing.T) {
	for name, refused := range map[string]bool{
		"containers": false, "etc-hosts": false, "volumes": true, "plugins": true, ".": true,
		"containers/sub": false, "plugins/x": false, "volumes/x": false, "x": false,
	} {
		t.Run(name, func(t *testing.T) {
			var s stage
			syncer := newSyncer(t, &s)
			p := &syncPass{Request: Request{UID: "u", Pod: testPod(), Observed: &pod.Status{UID: "u"}}, syncer: syncer}
			host, dir := t.TempDir(), syncer.podDir("u")
			if err := errors.Join(os.Mkdir(filepath.Join(host, "empty"), 0o755), os.WriteFile(filepath.Join(host, "precious"), nil, 0o600)); err != nil {
				t.Fatal(err)
			}
			if err := p.makeDataDirs(t.Context()); err != nil {
				t.Fatal(err)
			}
			at := filepath.Join(dir, name)
			if err := errors.Join(os.RemoveAll(at), os.MkdirAll(filepath.Dir(at), 0o750), os.Symlink(host, at)); err != nil {
				t.Fatal(err)
			}
			if err := p.makeDataDirs(t.Context()); (err != nil) != refused {
				t.Errorf("make the folders: %v", err)
			}
			if err := syncer.unlinkSymlinks("u"); err != nil {
				t.Errorf("before its volumes are taken down: %v", err)
			}
			if st, err := os.Lstat(at); name != "." && filepath.Dir(name) == "." && !errors.Is(err, os.ErrNotExist) {
				t.Errorf("the link is still there: %v, %v", st, err)
			}
			if err := syncer.removeDir("u"); err != nil {
				t.Errorf("remove the folder: %v", err)
			}
			if _, err := os.Lstat(dir); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("afterwards: %v", err)
			}
			entries, err := os.ReadDir(host)
			names := []string{}
			for _, e := range entries {
				names = append(names, e.Name())
			}
			if err != nil || !slices.Equal(names, []string{"empty", "precious"}) {
				t.Errorf("of the host there is %v, %v", names, err)
			}
		})
	}
}
