package podsync

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"berth/internal/pod"
)

// A container that has been given its pod's folder, or all of them, puts links there: the host's folder stays as it is when the pod goes, and another pod
// gets no folder in it.
func TestLinksInThePodsFolder(t *testing.T) {
	for name, wantErr := range map[string]error{
		"containers": nil, "etc-hosts": nil, "volumes": unix.ENOTDIR, "plugins": unix.ENOTDIR, "containers/sub": nil, ".": unix.ELOOP,
	} {
		t.Run(name, func(t *testing.T) {
			var s stage
			syncer := newSyncer(t, &s)
			r := Request{UID: "u", Pod: testPod(), Observed: &pod.Status{UID: "u"}}
			host, dir := t.TempDir(), syncer.podDir("u")
			if err := errors.Join(os.Mkdir(filepath.Join(host, "empty"), 0o755), os.WriteFile(filepath.Join(host, "precious"), nil, 0o600)); err != nil {
				t.Fatal(err)
			}
			if err := syncer.makeDataDirs(t.Context(), r, nil); err != nil {
				t.Fatal(err)
			}
			at := filepath.Join(dir, name)
			if err := errors.Join(os.RemoveAll(at), os.MkdirAll(filepath.Dir(at), 0o750), os.Symlink(host, at)); err != nil {
				t.Fatal(err)
			}
			if err := syncer.makeDataDirs(t.Context(), r, nil); (err != nil) != (wantErr != nil) {
				t.Errorf("make the folders: %v", err)
			}
			if err := syncer.removeDir("u"); !errors.Is(err, wantErr) {
				t.Errorf("remove the folder: %v, want %v", err, wantErr)
			}
			if _, err := os.Lstat(dir); (err == nil) != (wantErr != nil) {
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
