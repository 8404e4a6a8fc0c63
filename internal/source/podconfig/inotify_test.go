package podconfig

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"berth/internal/source/manifest/manifesttest"
)

// live is a running PodConfig over the real inotify. Its rescan is an hour away: what it sees it
// sees by events.
type live struct {
	*PodConfig
	t   *testing.T
	ctx context.Context
}

func startLive(t *testing.T, paths ...string) *live {
	t.Helper()
	cfg := newConfig(paths...)
	cfg.Rescan = time.Hour
	c, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("run: %v", err)
		}
		goleak.VerifyNone(t)
	})
	deadline, stop := context.WithTimeout(ctx, time.Minute)
	t.Cleanup(stop)
	return &live{PodConfig: c, t: t, ctx: deadline}
}

// expect waits until the loop was given the pods, by full name, with the images.
func (l *live) expect(want map[string]string) {
	l.t.Helper()
	for {
		got := map[string]string{}
		for _, p := range l.feeds[0].delivered.pods {
			got[p.Name] = p.Spec.Containers[0].Image
		}
		if l.SeenAllSources() && len(got) == len(want) {
			same := true
			for name, image := range want {
				same = same && got[name] == image
			}
			if same {
				return
			}
		}
		select {
		case <-l.Wake():
			l.Take()
		case <-l.ctx.Done():
			l.t.Fatalf("got %v, want %v; problems:\n%s", got, want, messages(l.Problems()))
		}
	}
}

func TestInotifyFolder(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	write(t, at("a.yaml"), manifesttest.Pod("a", "i1"))
	l := startLive(t, dir)
	l.expect(map[string]string{"a": "i1"})

	write(t, at("b.yaml"), manifesttest.Pod("b", "i1")) // created
	l.expect(map[string]string{"a": "i1", "b": "i1"})
	replace(t, at("a.yaml"), manifesttest.Pod("a", "i2")) // renamed over
	l.expect(map[string]string{"a": "i2", "b": "i1"})
	write(t, at("a.yaml"), manifesttest.Pod("a", "i3")) // edited in place
	l.expect(map[string]string{"a": "i3", "b": "i1"})
	if err := os.Rename(at("b.yaml"), at(".b.yaml")); err != nil { // renamed away
		t.Fatal(err)
	}
	l.expect(map[string]string{"a": "i3"})
	remove(t, at("a.yaml"))
	l.expect(map[string]string{})
}

func TestInotifyChmod(t *testing.T) {
	if os.Geteuid() == 0 {
		// Root may read files of any mode: for root a change of mode only has to be harmless.
		dir := t.TempDir()
		path := filepath.Join(dir, "a.yaml")
		write(t, path, manifesttest.Pod("a", "i1"))
		l := startLive(t, dir)
		l.expect(map[string]string{"a": "i1"})
		if err := os.Chmod(path, 0); err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(dir, "b.yaml"), manifesttest.Pod("b", "i1"))
		l.expect(map[string]string{"a": "i1", "b": "i1"})
		return
	}
	dir := t.TempDir()
	path := filepath.Join(dir, "a.yaml")
	write(t, path, manifesttest.Pod("a", "i1"))
	if err := os.Chmod(path, 0); err != nil {
		t.Fatal(err)
	}
	l := startLive(t, dir)
	l.expect(map[string]string{})
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}
	l.expect(map[string]string{"a": "i1"})
}

func TestInotifyFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "only.yaml")
	write(t, filepath.Join(dir, "other.yaml"), manifesttest.Pod("other", "i1"))
	l := startLive(t, path)
	l.expect(map[string]string{})
	write(t, path, manifesttest.Pod("a", "i1"))
	l.expect(map[string]string{"a": "i1"})
	write(t, path, manifesttest.Pod("a", "i2"))
	l.expect(map[string]string{"a": "i2"})
	replace(t, path, manifesttest.Pod("a", "i3"))
	l.expect(map[string]string{"a": "i3"})
	remove(t, path)
	l.expect(map[string]string{})
}

func TestInotifyFolderCreatedLater(t *testing.T) {
	base := t.TempDir()
	dir := filepath.Join(base, "deep", "manifests")
	l := startLive(t, dir)
	l.expect(map[string]string{})
	for _, image := range []string{"i1", "i2"} { // made, removed, and made again
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(dir, "a.yaml"), manifesttest.Pod("a", image))
		l.expect(map[string]string{"a": image})
		write(t, filepath.Join(dir, "b.yaml"), manifesttest.Pod("b", image))
		l.expect(map[string]string{"a": image, "b": image})
		remove(t, filepath.Join(base, "deep"))
		l.expect(map[string]string{})
	}
}

func TestInotifyFolderReplaced(t *testing.T) {
	base := t.TempDir()
	at := func(names ...string) string { return filepath.Join(append([]string{base}, names...)...) }
	for _, v := range []string{"i1", "i2"} {
		if err := os.Mkdir(at("v"+strings.TrimPrefix(v, "i")), 0o755); err != nil {
			t.Fatal(err)
		}
		write(t, at("v"+strings.TrimPrefix(v, "i"), "a.yaml"), manifesttest.Pod("a", v))
	}
	if err := os.Rename(at("v1"), at("manifests")); err != nil {
		t.Fatal(err)
	}
	l := startLive(t, at("manifests"))
	l.expect(map[string]string{"a": "i1"})
	if err := os.Rename(at("manifests"), at("old")); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(at("v2"), at("manifests")); err != nil {
		t.Fatal(err)
	}
	l.expect(map[string]string{"a": "i2"})
	write(t, at("manifests", "a.yaml"), manifesttest.Pod("a", "i3"))
	l.expect(map[string]string{"a": "i3"})
}

func TestInotifyLinks(t *testing.T) {
	base := t.TempDir()
	at := func(names ...string) string { return filepath.Join(append([]string{base}, names...)...) }
	for _, v := range []string{"i1", "i2"} {
		if err := os.Mkdir(at("v"+strings.TrimPrefix(v, "i")), 0o755); err != nil {
			t.Fatal(err)
		}
		write(t, at("v"+strings.TrimPrefix(v, "i"), "a.yaml"), manifesttest.Pod("a", v))
	}
	link(t, "v1", at("manifests"))
	write(t, at("elsewhere"), manifesttest.Pod("b", "i1"))
	l := startLive(t, at("manifests"))
	l.expect(map[string]string{"a": "i1"})
	write(t, at("v1", "a.yaml"), manifesttest.Pod("a", "i1b"))
	l.expect(map[string]string{"a": "i1b"})

	link(t, "v2", at("next")) // the folder is a link that is switched
	if err := os.Rename(at("next"), at("manifests")); err != nil {
		t.Fatal(err)
	}
	l.expect(map[string]string{"a": "i2"})
	write(t, at("v2", "a.yaml"), manifesttest.Pod("a", "i2b"))
	l.expect(map[string]string{"a": "i2b"})

	link(t, "../elsewhere", at("v2", "b.yaml")) // a file is a link to another folder
	l.expect(map[string]string{"a": "i2b", "b": "i1"})
	write(t, at("elsewhere"), manifesttest.Pod("b", "i2"))
	l.expect(map[string]string{"a": "i2b", "b": "i2"})
}

func TestInotifyFolderSwappedAsConfigMapsAre(t *testing.T) {
	dir := t.TempDir()
	at := func(names ...string) string { return filepath.Join(append([]string{dir}, names...)...) }
	version := func(name, image string) {
		if err := os.Mkdir(at(name), 0o755); err != nil {
			t.Fatal(err)
		}
		write(t, at(name, "a.yaml"), manifesttest.Pod("a", image))
		link(t, name, at("..data_tmp"))
		if err := os.Rename(at("..data_tmp"), at("..data")); err != nil {
			t.Fatal(err)
		}
	}
	version("..v1", "i1")
	link(t, "..data/a.yaml", at("a.yaml"))
	l := startLive(t, dir)
	l.expect(map[string]string{"a": "i1"})
	version("..v2", "i2")
	remove(t, at("..v1"))
	l.expect(map[string]string{"a": "i2"})
	version("..v3", "i3")
	remove(t, at("..v2"))
	l.expect(map[string]string{"a": "i3"})
}

func TestInotifyEditors(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	rename := func(from, to string) {
		if err := os.Rename(at(from), at(to)); err != nil {
			t.Fatal(err)
		}
	}
	write(t, at("a.yaml"), manifesttest.Pod("a", "i1"))
	l := startLive(t, dir)
	l.expect(map[string]string{"a": "i1"})

	// vim: a swap file, a probe, the old version renamed to a backup, the new one created in its
	// place.
	write(t, at(".a.yaml.swp"), "b0VIM")
	write(t, at("4913"), "")
	remove(t, at("4913"))
	rename("a.yaml", "a.yaml~")
	write(t, at("a.yaml"), manifesttest.Pod("a", "i2"))
	l.expect(map[string]string{"a": "i2"})
	remove(t, at("a.yaml~"))
	remove(t, at(".a.yaml.swp"))

	// emacs: a lock that leads nowhere, an auto-save file, a backup that stays.
	link(t, "user@host.1:1", at(".#a.yaml"))
	write(t, at("#a.yaml#"), manifesttest.Pod("unsaved", "i3"))
	rename("a.yaml", "a.yaml~")
	write(t, at("a.yaml"), manifesttest.Pod("a", "i3"))
	remove(t, at(".#a.yaml"))
	remove(t, at("#a.yaml#"))
	l.expect(map[string]string{"a": "i3"})

	// gedit, and sed -i: a temporary file that is renamed over the manifest.
	write(t, at(".goutputstream-ABC"), manifesttest.Pod("a", "i4"))
	rename(".goutputstream-ABC", "a.yaml")
	l.expect(map[string]string{"a": "i4"})
	if problems := l.Problems(); len(problems) > 0 {
		t.Errorf("problems:\n%s", messages(problems))
	}
}
