package embedded

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/klauspost/compress/zstd"
)

func sum(b []byte) string {
	s := sha256.Sum256(b)
	return hex.EncodeToString(s[:])
}

type entry struct{ name, content string }

// bundleOf packs the entries behind a manifest of the files, as bundle/cmd/pack does.
func bundleOf(t testing.TB, files, entries []entry) (blob []byte, hash string) {
	t.Helper()
	m := manifest{Version: 1}
	for _, f := range files {
		m.Files = append(m.Files, bundledFile{Name: f.name, Mode: 0o755, Size: int64(len(f.content)), SHA256: sum([]byte(f.content))})
	}
	head, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	z, err := zstd.NewWriter(&out)
	if err != nil {
		t.Fatal(err)
	}
	w := tar.NewWriter(z)
	for _, e := range append([]entry{{manifestName, string(head)}}, entries...) {
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: e.name, Size: int64(len(e.content)), Mode: 0o644}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(e.content)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes(), sum(head)
}

func TestUnpack(t *testing.T) {
	files := []entry{{"bin/runc", "a runc"}, {"images/pause.tar", "a pause"}}
	blob, hash := bundleOf(t, files, files)
	p := newPaths(t.TempDir(), "")
	if unpacked(p.bundles, hash) {
		t.Fatal("unpacked before it was")
	}
	// What an interrupted try left at the place is replaced.
	stale := filepath.Join(p.bundles, folderName(hash), "bin", "stale")
	if err := os.MkdirAll(stale, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unpack(bytes.NewReader(blob), p.bundles, hash); err != nil {
		t.Fatal(err)
	}
	if !unpacked(p.bundles, hash) {
		t.Error("not unpacked after it was")
	}
	if _, err := os.Stat(stale); err == nil {
		t.Error("a stale file is still there")
	}
	if err := link(p, hash); err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		name := filepath.Join(p.current, f.name)
		got, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if string(got) != f.content {
			t.Errorf("%s is %q, want %q", f.name, got, f.content)
		}
		fi, err := os.Stat(name)
		if err != nil {
			t.Fatal(err)
		}
		if fi.Mode().Perm() != 0o755 {
			t.Errorf("%s has mode %o, want 755", f.name, fi.Mode().Perm())
		}
	}
}

func TestUnpackRefuses(t *testing.T) {
	files := []entry{{"bin/runc", "a runc"}, {"bin/containerd", "a containerd"}}
	_, hash := bundleOf(t, files, files)
	for name, c := range map[string]struct {
		files, entries []entry
		hash           string // of the bundle if empty
		cut            int    // bytes to cut off the end
		want           string
	}{
		"another file":     {files, []entry{{"bin/runc", "A runc"}, files[1]}, "", 0, "corrupt bundle: bin/runc has 6 bytes"},
		"shorter file":     {files, []entry{{"bin/runc", "a"}, files[1]}, "", 0, "corrupt bundle: bin/runc has 1 bytes"},
		"missing file":     {files, files[:1], "", 0, "corrupt bundle: bin/containerd: EOF"},
		"unexpected file":  {files, []entry{{"bin/evil", "a runc"}, files[1]}, "", 0, `corrupt bundle: found "bin/evil"`},
		"another manifest": {files[:1], files[:1], hash, 0, "corrupt bundle: its manifest has the hash"},
		"name that leaves": {[]entry{{"../evil", "x"}}, []entry{{"../evil", "x"}}, "", 0, `file name "../evil" is not allowed`},
		"cut off":          {files, files, "", 20, "unexpected EOF"},
	} {
		t.Run(name, func(t *testing.T) {
			blob, hash := bundleOf(t, c.files, c.entries)
			if c.hash != "" {
				hash = c.hash
			}
			bundles := filepath.Join(t.TempDir(), "bundle")
			err := unpack(bytes.NewReader(blob[:len(blob)-c.cut]), bundles, hash)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want one with %q", err, c.want)
			}
			if unpacked(bundles, hash) {
				t.Error("a corrupt bundle counts as unpacked")
			}
			left, err := os.ReadDir(bundles)
			if err != nil || len(left) > 0 {
				t.Errorf("left behind: %v, error %v", left, err)
			}
		})
	}
}

func TestHashOfFile(t *testing.T) {
	blob, want := bundleOf(t, []entry{{"a", "x"}}, []entry{{"a", "x"}})
	name := filepath.Join(t.TempDir(), "bundle")
	if err := os.WriteFile(name, blob, 0o644); err != nil {
		t.Fatal(err)
	}
	if got, err := hashOf(name); err != nil || got != want {
		t.Errorf("hash %s, error %v; want %s", got, err, want)
	}
}

func FuzzParseManifest(f *testing.F) {
	f.Add([]byte(`{"version":1,"files":[{"name":"bin/runc"}],"images":[{"name":"a","file":"bin/runc"}]}`))
	f.Add([]byte(`{"version":1,"files":[{"name":"/etc/passwd"}]}`))
	f.Add([]byte(`{"version":1,"files":[{"name":"a/../../b"}]}`))
	f.Fuzz(func(t *testing.T, head []byte) {
		m, err := parseManifest(head)
		if err != nil {
			return
		}
		for _, file := range m.Files {
			if rel, err := filepath.Rel("/bundle", filepath.Join("/bundle", file.Name)); err != nil || strings.HasPrefix(rel, "..") {
				t.Errorf("accepted the file name %q, which leaves the bundle", file.Name)
			}
		}
	})
}

// fakeProc writes a /proc of processes with links and mapped files.
func fakeProc(t *testing.T, processes map[string]map[string]string) string {
	t.Helper()
	proc := t.TempDir()
	for pid, files := range processes {
		dir := filepath.Join(proc, pid)
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		for name, content := range files {
			var err error
			if name == "maps" || name == "stat" {
				err = os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644)
			} else {
				err = os.Symlink(content, filepath.Join(dir, name))
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	return proc
}

func TestRemoveOld(t *testing.T) {
	p := newPaths(t.TempDir(), "")
	folder := func(name string) string { return folderName(sum([]byte(name))) }
	names := map[string]string{unpackPrefix + "1": "unpacking", "current": "current", "somebody's": "somebody's"}
	for _, name := range []string{"new", "running", "mapped", "home", "unused", "deleted"} {
		names[folder(name)] = name
	}
	for name := range names {
		if err := os.MkdirAll(filepath.Join(p.bundles, name, "bin"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.RemoveAll(p.current); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(folder("new"), p.current); err != nil {
		t.Fatal(err)
	}
	in := func(name string) string { return filepath.Join(p.bundles, folder(name)) }
	proc := fakeProc(t, map[string]map[string]string{
		"1":    {"exe": "/sbin/init", "cwd": "/"},
		"2":    {"cwd": "/"}, // a kernel thread
		"10":   {"exe": in("running") + "/bin/containerd-shim-runc-v2", "cwd": "/"},
		"11":   {"exe": "/bin/x", "cwd": "/", "maps": "7f0000-7f1000 r-xp 00000000 fe:00 12 " + in("mapped") + "/bin/runc\n7f1000-7f2000 rw-p 00000000 00:00 0\n"},
		"12":   {"exe": "/bin/x", "cwd": in("home")},
		"13":   {"exe": in("deleted") + "/bin/containerd (deleted)", "cwd": "/"},
		"self": {},
	})
	removed, err := removeOld(p, proc)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{unpackPrefix + "1", folder("unused")}, removed); diff != "" {
		t.Errorf("removed (-want +got):\n%s", diff)
	}
	entries, err := os.ReadDir(p.bundles)
	if err != nil {
		t.Fatal(err)
	}
	var left []string
	for _, e := range entries {
		left = append(left, names[e.Name()])
	}
	slices.Sort(left)
	if diff := cmp.Diff([]string{"current", "deleted", "home", "mapped", "new", "running", "somebody's"}, left); diff != "" {
		t.Errorf("left (-want +got):\n%s", diff)
	}
}

func TestLinkReplaces(t *testing.T) {
	p := newPaths(t.TempDir(), "")
	if err := os.Mkdir(p.bundles, 0o755); err != nil {
		t.Fatal(err)
	}
	// The remains of an interrupted replacement are in nobody's way.
	if err := os.Symlink("x", p.current+".next"); err != nil {
		t.Fatal(err)
	}
	for _, hash := range []string{strings.Repeat("a", 64), strings.Repeat("b", 64), strings.Repeat("b", 64)} {
		if err := link(p, hash); err != nil {
			t.Fatal(err)
		}
		if got, err := os.Readlink(p.current); err != nil || got != hash[:16] {
			t.Errorf("the link points at %q, error %v; want %q", got, err, hash[:16])
		}
	}
	if _, err := os.Lstat(p.current + ".next"); !os.IsNotExist(err) {
		t.Errorf("the next link is still there: %v", err)
	}
}
