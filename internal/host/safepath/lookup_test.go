package safepath

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestReadFile(t *testing.T) {
	base := t.TempDir()
	root := filepath.Join(base, "volume")
	in := func(name string) string { return filepath.Join(root, name) }
	for _, err := range []error{
		os.MkdirAll(in("dir"), 0o755), os.WriteFile(in("dir/file"), []byte("content"), 0o600), os.WriteFile(in("large"), make([]byte, 101), 0o600),
		os.WriteFile(filepath.Join(base, "secret"), []byte("secret"), 0o600), unix.Mkfifo(in("pipe"), 0o600),
		os.Symlink("dir/file", in("link")), os.Symlink("dir", in("to-dir")), os.Symlink("../secret", in("out")), os.Symlink("..", in("up")),
		os.Symlink("/proc/self/root", in("magic")), os.Symlink(root, in("absolute")),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, path := range []string{"dir/file", "to-dir/file", "./dir//file"} {
		if got, err := ReadFile(root, path, 100); err != nil || string(got) != "content" {
			t.Errorf("%s: got %q, %v", path, got, err)
		}
	}
	for path, want := range map[string]string{
		"absent": "no such file", "dir/absent": "no such file", "link": "too many levels of symbolic links", "out": "too many levels of symbolic links",
		"up/secret": "invalid cross-device link", "../secret": "invalid cross-device link", "absolute/dir/file": "invalid cross-device link",
		"magic/etc/passwd": "", filepath.Join(base, "secret"): "invalid cross-device link",
		"dir": "not a regular file", "pipe": "not a regular file", "large": "larger than 100 bytes", "dir/file/more": "not a directory",
	} {
		got, err := ReadFile(root, path, 100)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %q, %v; want an error with %q", path, got, err, want)
		}
		if missing := strings.HasSuffix(path, "absent"); errors.Is(err, fs.ErrNotExist) != missing {
			t.Errorf("%s: %v; does not exist: %t", path, err, missing)
		}
	}
	if _, err := ReadFile(filepath.Join(base, "gone"), "file", 100); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no volume: %v", err)
	}
}

func TestMakeDirs(t *testing.T) {
	base := t.TempDir()
	root := filepath.Join(base, "volume")
	for _, err := range []error{
		os.MkdirAll(filepath.Join(root, "there"), 0o700), os.Mkdir(filepath.Join(base, "outside"), 0o755), os.Symlink("there", filepath.Join(root, "link")),
		os.Symlink("../outside", filepath.Join(root, "out")), os.Chmod(root, 0o775|fs.ModeSticky|fs.ModeSetgid), os.WriteFile(filepath.Join(root, "file"), nil, 0o600),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	fd, err := OpenRoot(root)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	for _, path := range []string{"a", "a/b/c", "there/d", "link/e/f", "there", "."} {
		for range 2 { // it may be there already
			if err := MakeDirs(fd, path); err != nil {
				t.Errorf("%s: %v", path, err)
			}
		}
		if st, err := os.Stat(filepath.Join(root, path)); err != nil || !st.IsDir() {
			t.Errorf("%s: %v, %v", path, st, err)
		}
	}
	for path, want := range map[string]uint32{"a": 0o3775, "a/b": 0o3775, "a/b/c": 0o3775, "there": 0o700, "there/d": 0o3775} {
		var st unix.Stat_t
		if err := unix.Stat(filepath.Join(root, path), &st); err != nil || st.Mode&0o7777 != want {
			t.Errorf("%s has mode %o, %v; want %o", path, st.Mode&0o7777, err, want)
		}
	}
	for _, path := range []string{"out/a", "out/a/b", "../outside/a", "file", "file/a"} {
		if err := MakeDirs(fd, path); err == nil {
			t.Errorf("%s was made", path)
		}
	}
	// As when somebody puts a link where a directory is about to be made.
	if got, err := makeIn(fd, "out", 0o777); err == nil {
		unix.Close(got)
		t.Error("a link was taken for a directory that another has made")
	}
	if got := tree(t, filepath.Join(base, "outside")); len(got) > 0 {
		t.Errorf("outside the volume: %q", got)
	}
}

// A directory that another has put in the place of a new one is not opened up.
func TestOpenUpLeavesOthersAlone(t *testing.T) {
	dir := t.TempDir()
	full := filepath.Join(dir, "full")
	for _, err := range []error{os.Mkdir(full, 0o700), os.WriteFile(filepath.Join(full, "file"), nil, 0o600)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	fd, err := unix.Open(full, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := openUp(fd, 0o777); err != nil {
		t.Fatal(err)
	}
	if st, err := os.Stat(full); err != nil || st.Mode().Perm() != 0o700 {
		t.Errorf("mode %v, %v; want 0700", st.Mode(), err)
	}
}
