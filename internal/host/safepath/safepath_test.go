package safepath

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// newRoot returns a root whose folder of pods is reached through a link, with the pod "one", and a
// folder of the host.
func newRoot(t *testing.T) (r Root, pod, host string) {
	t.Helper()
	base := t.TempDir()
	r, host = Root(filepath.Join(base, "root")), filepath.Join(base, "host")
	pod = filepath.Join(string(r), "pods/one")
	for _, err := range []error{
		os.MkdirAll(filepath.Join(base, "elsewhere/one"), 0o750), os.Mkdir(string(r), 0o750), os.Symlink("../elsewhere", filepath.Join(string(r), "pods")),
		os.MkdirAll(filepath.Join(host, "sub"), 0o755), os.WriteFile(filepath.Join(host, "file"), []byte("precious"), 0o600),
		os.WriteFile(filepath.Join(host, "sub/file"), []byte("precious"), 0o600),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	return r, pod, host
}

func TestRoot(t *testing.T) {
	r, pod, _ := newRoot(t)
	in := func(name string) string { return filepath.Join(pod, name) }
	if err := r.Ensure(in("a/b/c"), 0o750, 0o700); err != nil {
		t.Fatal(err)
	}
	write := func(content string) func(*os.File) error {
		return func(f *os.File) error { _, err := f.WriteString(content); return err }
	}
	for _, err := range []error{
		r.Ensure(in("a/b/c"), 0o750, 0o700), // it is there
		r.Replace(in("a/file"), 0o600, write("old")), os.WriteFile(in("a/file"+NewSuffix), []byte("of one that was killed"), 0o600),
		r.Replace(in("a/file"), 0o600, write("new")), r.EnsureLink("/dev/null", in("links/disk")), r.EnsureLink("/dev/zero", in("links/disk")),
		r.EnsureLink("/dev/zero", in("links/disk")),
	} {
		if err != nil {
			t.Error(err)
		}
	}
	if b, err := r.ReadFile(in("a/file"), 3); err != nil || string(b) != "new" {
		t.Errorf("read %q, %v", b, err)
	}
	if _, err := r.ReadFile(in("a/file"), 2); err == nil || !strings.Contains(err.Error(), "larger than 2 bytes") {
		t.Errorf("too long: %v", err)
	}
	if to, err := os.Readlink(in("links/disk")); err != nil || to != "/dev/zero" {
		t.Errorf("the link leads to %q, %v", to, err)
	}
	if st, err := r.Lstat(in("links/disk")); err != nil || st.Mode&unix.S_IFMT != unix.S_IFLNK {
		t.Errorf("lstat of a link: %o, %v", st.Mode, err)
	}
	if real, err := r.Real(pod); err != nil || real != filepath.Join(filepath.Dir(string(r)), "elsewhere/one") {
		t.Errorf("really at %q, %v", real, err)
	}
	var names []string
	for _, dir := range []string{filepath.Join(string(r), "pods"), in("a")} {
		entries, err := r.ReadDir(dir)
		if err != nil {
			t.Error(err)
		}
		for _, e := range entries {
			names = append(names, e.Name())
		}
	}
	slices.Sort(names)
	if !slices.Equal(names, []string{"b", "file", "one"}) {
		t.Errorf("found %v", names)
	}
	if err := r.RemoveEmpty(in("a")); !errors.Is(err, unix.ENOTEMPTY) {
		t.Errorf("with something in it: %v", err)
	}
	for range 2 {
		for _, err := range []error{
			r.Unlink(in("links/disk")), r.RemoveEmpty(in("links")), r.Remove(in("a")), r.RemoveEmpty(pod), r.Remove(in("none/of/that")),
		} {
			if err != nil {
				t.Error(err)
			}
		}
	}
	if _, err := r.Open(pod); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("after its end: %v", err)
	}
	for _, path := range []string{"", "/", string(r), "/etc/passwd", string(r) + "/pods/../../x", "pods/one", string(r) + "s/pods/one", in("a") + "/"} {
		if r.Contains(path) {
			t.Errorf("%q is thought to be a pod's", path)
		}
		if _, err := r.Open(path); err == nil {
			t.Errorf("%q was opened", path)
		}
	}
}

// Whatever a container puts on the way, nothing of the host is read, written or removed.
func TestRootFollowsNoLink(t *testing.T) {
	write := func(f *os.File) error { _, err := f.WriteString("intruder"); return err }
	operations := map[string]func(r Root, path string) error{
		"open":      func(r Root, path string) error { _, err := r.Open(filepath.Dir(path)); return err },
		"read":      func(r Root, path string) error { _, err := r.ReadFile(path, 100); return err },
		"open file": func(r Root, path string) error { _, err := r.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600); return err },
		"make":      func(r Root, path string) error { _, err := r.Make(path, 0o750, 0o750); return err },
		"list":      func(r Root, path string) error { _, err := r.ReadDir(filepath.Dir(path)); return err },
		"lstat":     func(r Root, path string) error { _, err := r.Lstat(path); return err },
		"replace":   func(r Root, path string) error { return r.Replace(path, 0o600, write) },
		"remove":    Root.Remove, "remove empty": Root.RemoveEmpty, "unlink": Root.Unlink,
		"link": func(r Root, path string) error { return r.EnsureLink("/dev/null", path) },
		"real": func(r Root, path string) error { _, err := r.Real(path); return err },
	}
	for name, do := range operations {
		t.Run(name, func(t *testing.T) {
			r, pod, host := newRoot(t)
			if err := errors.Join(os.Symlink(host, filepath.Join(pod, "to-host")), os.Symlink("/proc/self/root", filepath.Join(pod, "magic")), os.Symlink("..", filepath.Join(pod, "up"))); err != nil {
				t.Fatal(err)
			}
			for _, path := range []string{"to-host/file", "to-host/sub/file", "magic" + host + "/file", "up/one/file"} {
				if err := do(r, filepath.Join(pod, path)); !errors.Is(err, unix.ELOOP) {
					t.Errorf("%s: %v", path, err)
				}
			}
			// The last element is replaced or removed itself, or refused.
			if err := do(r, filepath.Join(pod, "to-host")); err != nil && !errors.Is(err, unix.ELOOP) && !errors.Is(err, unix.ENOTDIR) {
				t.Error(err)
			}
			if got := tree(t, host); !slices.Equal(got, []string{"file", "sub", "sub/file"}) {
				t.Errorf("of the host there is %v", got)
			}
			for _, file := range []string{"file", "sub/file"} {
				if b, err := os.ReadFile(filepath.Join(host, file)); err != nil || string(b) != "precious" {
					t.Errorf("%s of the host: %q, %v", file, b, err)
				}
			}
		})
	}
}

func TestWalk(t *testing.T) {
	r, pod, host := newRoot(t)
	if err := errors.Join(os.Symlink(host, filepath.Join(pod, "to-host")), os.MkdirAll(filepath.Join(pod, "a/b"), 0o750), os.WriteFile(filepath.Join(pod, "a/b/file"), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	for i := range 2*Batch + 5 {
		if err := os.WriteFile(filepath.Join(pod, "a", fmt.Sprint(i)), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	dir, err := r.Open(pod)
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	count := func() map[uint32]int {
		t.Helper()
		seen := map[uint32]int{}
		if err := Walk(t.Context(), dir, func(st *unix.Stat_t) { seen[st.Mode&unix.S_IFMT]++ }); err != nil {
			t.Error(err)
		}
		return seen
	}
	if got := count(); got[unix.S_IFDIR] != 3 || got[unix.S_IFLNK] != 1 || got[unix.S_IFREG] != 2*Batch+6 {
		t.Errorf("seen: %v", got)
	}
	// A path this deep cannot be looked up at once.
	at, err := unix.Dup(int(dir.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	name := strings.Repeat("d", 200)
	for range 60 {
		if err := unix.Mkdirat(at, name, 0o755); err != nil {
			t.Fatal(err)
		}
		next, err := unix.Openat(at, name, unix.O_DIRECTORY|unix.O_RDONLY, 0)
		unix.Close(at)
		if err != nil {
			t.Fatal(err)
		}
		at = next
	}
	unix.Close(at)
	if got := count(); got[unix.S_IFDIR] != 63 {
		t.Errorf("%d folders, want 63", got[unix.S_IFDIR])
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := Walk(ctx, dir, func(*unix.Stat_t) {}); !errors.Is(err, context.Canceled) {
		t.Errorf("given up: %v", err)
	}
	if err := r.Remove(pod); err != nil {
		t.Error(err)
	}
}
