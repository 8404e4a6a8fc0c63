package volumes

import (
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/utils/ptr"
)

var quiet = slog.New(slog.DiscardHandler)

// files returns a payload of contents by path, all of mode 0644.
func files(contents map[string]string) payload {
	p := payload{}
	for name, data := range contents {
		p[name] = content{data: []byte(data), mode: 0o644}
	}
	return p
}

// shown returns what a container sees in the volume: the contents of files by path, through the
// links.
func shown(t *testing.T, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), reservedPrefix) {
			continue
		}
		top, err := filepath.EvalSymlinks(filepath.Join(dir, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		err = filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			data, err := os.ReadFile(path)
			rel, _ := filepath.Rel(top, path)
			out[filepath.Join(e.Name(), rel)] = string(data)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return out
}

// reserved returns what the writer keeps beside the files.
func reserved(t *testing.T, dir string) (names []string, data string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), reservedPrefix) {
			names = append(names, e.Name())
		}
	}
	data, err = os.Readlink(filepath.Join(dir, dataLink))
	if err != nil {
		t.Fatal(err)
	}
	return names, data
}

// checkShows fails the test unless the volume shows the payload and holds nothing else.
func checkShows(t *testing.T, dir string, p payload) {
	t.Helper()
	want := map[string]string{}
	for name, c := range p {
		want[name] = string(c.data)
	}
	if d := cmp.Diff(want, shown(t, dir)); d != "" {
		t.Errorf("shown (-want +got):\n%s", d)
	}
	names, data := reserved(t, dir)
	if wantNames := []string{data, dataLink}; !slices.Equal(slices.Sorted(slices.Values(names)), slices.Sorted(slices.Values(wantNames))) {
		t.Errorf("beside the files: %v, want %v", names, wantNames)
	}
}

// writeTo has the directory show the files.
func writeTo(dir string, files payload, group *int64) (changed bool, err error) {
	d, err := os.Open(dir)
	if err != nil {
		return false, err
	}
	defer d.Close()
	return writeAtomically(d, files, group, quiet)
}

func TestAtomicWriter(t *testing.T) {
	dir := t.TempDir()
	mount := filepath.Join(dir, "nested") // of another volume
	if err := os.Mkdir(mount, 0o755); err != nil {
		t.Fatal(err)
	}
	var data string
	for i, tc := range []struct {
		files   payload
		changed bool
	}{
		{payload{}, true},
		{payload{}, false},
		{files(map[string]string{"a": "1", "deep/er/b": "2", "deep/c": ""}), true},
		{files(map[string]string{"a": "1", "deep/er/b": "2", "deep/c": ""}), false},
		{files(map[string]string{"a": "1", "deep/er/b": "3", "deep/c": ""}), true},
		{files(map[string]string{"a": "1", "deep/er/b": "x", "deep/c": ""}), true}, // of the same size
		{payload{"a": {data: []byte("1"), mode: 0o400}}, true},
		{payload{"a": {data: []byte("1"), mode: 0o400}}, false},
		{payload{"a": {data: []byte("1"), mode: 0o600}}, true}, // only the mode
		{files(map[string]string{"new": "4"}), true},
		{files(map[string]string{"new/now a directory": "4"}), true},
		{payload{}, true},
	} {
		changed, err := writeTo(dir, tc.files, nil)
		if err != nil || changed != tc.changed {
			t.Fatalf("%d: changed %v, %v; want %v", i, changed, err, tc.changed)
		}
		checkShows(t, dir, tc.files)
		_, now := reserved(t, dir)
		if (now != data) != tc.changed {
			t.Errorf("%d: ..data went from %s to %s", i, data, now)
		}
		data = now
		for name, c := range tc.files {
			if got := mode(t, filepath.Join(dir, name)); got != c.mode {
				t.Errorf("%d: %s has mode %v, want %v", i, name, got, c.mode)
			}
		}
		if got := mode(t, filepath.Join(dir, data)); got.Perm() != 0o755 {
			t.Errorf("%d: the data directory has mode %v", i, got)
		}
		mode(t, mount)
	}
}

func TestAtomicWriterGivesTheGroup(t *testing.T) {
	dir := t.TempDir()
	group, user := ptr.To(int64(os.Getgid())), ptr.To(int64(os.Getuid()))
	p := payload{"secret": {mode: 0o600, owner: user}, "sub/open": {mode: 0o666}, "closed": {mode: 0}}
	for i := range 2 {
		if changed, err := writeTo(dir, p, group); err != nil || changed != (i == 0) {
			t.Fatalf("changed %v, %v", changed, err)
		}
	}
	for name, want := range map[string]fs.FileMode{
		"secret": 0o640, "sub/open": 0o666, "closed": 0o440,
		"sub": fs.ModeDir | fs.ModeSetgid | 0o755, "..data": fs.ModeDir | fs.ModeSetgid | 0o755,
	} {
		if got := mode(t, filepath.Join(dir, name)); got != want {
			t.Errorf("%s has mode %v, want %v", name, got, want)
		}
	}
}

// A writer that is interrupted between any two of its steps leaves the old or the new payload to
// readers, and the next one completes what it began.
func TestAtomicWriterIsInterrupted(t *testing.T) {
	before := files(map[string]string{"kept": "1", "gone": "2", "dir/x": "3"})
	after := files(map[string]string{"kept": "new", "dir/y": "4", "added": "5"})
	const all = 6
	for n := range all + 1 {
		t.Run(fmt.Sprintf("after %d steps", n), func(t *testing.T) {
			dir := t.TempDir()
			if _, err := writeTo(dir, before, nil); err != nil {
				t.Fatal(err)
			}
			d, err := os.Open(dir)
			if err != nil {
				t.Fatal(err)
			}
			defer d.Close()
			w, err := newAtomicWriter(d, after, nil, quiet)
			if err != nil {
				t.Fatal(err)
			}
			defer w.root.Close()
			if w.isCurrent() {
				t.Fatal("the new payload is taken for the old")
			}
			steps := w.replace()
			if len(steps) != all {
				t.Fatalf("%d steps, want %d", len(steps), all)
			}
			for _, s := range steps[:n] {
				if err := s.do(); err != nil {
					t.Fatalf("%s: %v", s.name, err)
				}
			}
			replaced := n >= 3
			want := before
			if replaced {
				want = after
			}
			for name, c := range want { // behind ..data, which is what links lead to
				got, err := os.ReadFile(filepath.Join(dir, dataLink, name))
				if err != nil || string(got) != string(c.data) {
					t.Errorf("%s: %q, %v; want %q", name, got, err, c.data)
				}
			}
			if got, err := os.ReadFile(filepath.Join(dir, "kept")); err != nil || string(got) != string(want["kept"].data) {
				t.Errorf("kept: %q, %v", got, err)
			}
			changed, err := writeTo(dir, after, nil)
			if err != nil || changed == replaced {
				t.Errorf("the next writer: changed %v, %v", changed, err)
			}
			checkShows(t, dir, after)
		})
	}
}

// What a writer leaves that was killed while it wrote files, and a volume that somebody damaged.
func TestAtomicWriterRepairs(t *testing.T) {
	want := files(map[string]string{"a": "1", "d/b": "2"})
	for name, damage := range map[string]func(dir string) error{
		"half written directory": func(dir string) error {
			return os.MkdirAll(filepath.Join(dir, "..2020_01_01_00_00_00.1", "d"), 0o755)
		},
		"left link":       func(dir string) error { return os.Symlink("..nowhere", filepath.Join(dir, newDataLink)) },
		"left old link":   func(dir string) error { return os.Symlink("..data/old", filepath.Join(dir, "old")) },
		"missing link":    func(dir string) error { return os.Remove(filepath.Join(dir, "a")) },
		"foreign link":    func(dir string) error { return relink(filepath.Join(dir, "a"), "/etc/passwd") },
		"dangling ..data": func(dir string) error { return relink(filepath.Join(dir, dataLink), "..nowhere") },
		"..data outside":  func(dir string) error { return relink(filepath.Join(dir, dataLink), "/") },
		"changed file": func(dir string) error {
			return os.WriteFile(filepath.Join(dir, "a"), []byte("9"), 0o644)
		},
		"file too many": func(dir string) error { return os.WriteFile(filepath.Join(dir, dataLink, "c"), nil, 0o644) },
		"file too few":  func(dir string) error { return os.Remove(filepath.Join(dir, dataLink, "d/b")) },
		"link for file": func(dir string) error { return relink(filepath.Join(dir, dataLink, "a"), "/etc/passwd") },
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if _, err := writeTo(dir, want, nil); err != nil {
				t.Fatal(err)
			}
			if err := damage(dir); err != nil {
				t.Fatal(err)
			}
			if _, err := writeTo(dir, want, nil); err != nil {
				t.Fatal(err)
			}
			checkShows(t, dir, want)
		})
	}
}

func relink(path, target string) error {
	if err := os.Remove(path); err != nil {
		return err
	}
	return os.Symlink(target, path)
}

func TestAtomicWriterFailures(t *testing.T) {
	dir := t.TempDir()
	before := files(map[string]string{"a": "1"})
	if _, err := writeTo(dir, before, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := writeTo(dir, files(map[string]string{"a": "1", "a/b": "2"}), nil); err == nil {
		t.Error("a file that is also a directory was accepted")
	}
	checkShows(t, dir, before)
	if err := os.MkdirAll(filepath.Join(dir, "b/full"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "c"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := writeTo(dir, files(map[string]string{"c": "1"}), nil); err == nil || !strings.Contains(err.Error(), `"c" is in the way`) {
		t.Errorf("got %v", err)
	}
	if _, err := writeTo(dir, files(map[string]string{"b": "1"}), nil); err == nil || !strings.Contains(err.Error(), `"b" is in the way`) {
		t.Errorf("got %v", err)
	}
	// As a subPath leaves it that was mounted before there was the file.
	if err := os.Remove(filepath.Join(dir, "b/full")); err != nil {
		t.Fatal(err)
	}
	after := files(map[string]string{"b": "1"})
	if _, err := writeTo(dir, after, nil); err != nil {
		t.Error(err)
	}
	if got, err := os.ReadFile(filepath.Join(dir, "b")); err != nil || string(got) != "1" {
		t.Errorf("got %q, %v", got, err)
	}
	if _, err := writeTo(filepath.Join(dir, "missing"), before, nil); err == nil {
		t.Error("a missing directory was accepted")
	}
}
