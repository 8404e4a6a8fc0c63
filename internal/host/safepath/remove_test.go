package safepath

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// tree lists what is below dir.
func tree(t *testing.T, dir string) []string {
	t.Helper()
	var out []string
	err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if err == nil && path != dir {
			rel, _ := filepath.Rel(dir, path)
			out = append(out, rel)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// removeFrom removes the name in the directory.
func removeFrom(t *testing.T, parent, name string) error {
	t.Helper()
	fd, err := OpenRoot(parent)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	return RemoveAt(fd, name, filepath.Join(parent, name))
}

func TestRemoveAt(t *testing.T) {
	parent := t.TempDir()
	top := filepath.Join(parent, "volume")
	outside := filepath.Join(parent, "outside")
	for _, d := range []string{filepath.Join(top, "a/b"), filepath.Join(top, "closed"), outside} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 2*Batch + 7 {
		if err := os.WriteFile(filepath.Join(top, "a/b", fmt.Sprint(i)), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, err := range []error{
		os.WriteFile(filepath.Join(outside, "precious"), nil, 0o600),
		os.Symlink(outside, filepath.Join(top, "to-directory")),
		os.Symlink("nowhere", filepath.Join(top, "dangling")),
		unix.Mkfifo(filepath.Join(top, "fifo"), 0o600),
		os.Chmod(filepath.Join(top, "closed"), 0o500),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		if err := removeFrom(t, parent, "volume"); err != nil {
			t.Fatal(err)
		}
	}
	if got := tree(t, parent); !slices.Equal(got, []string{"outside", "outside/precious"}) {
		t.Errorf("left: %v", got)
	}
}

func TestRemoveAtDoesNotFollow(t *testing.T) {
	parent, outside := t.TempDir(), t.TempDir()
	if err := os.WriteFile(filepath.Join(outside, "precious"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(outside, filepath.Join(parent, "volume")); err != nil {
		t.Fatal(err)
	}
	if err := removeFrom(t, parent, "volume"); err != nil {
		t.Fatal(err)
	}
	if got := tree(t, parent); len(got) != 0 {
		t.Errorf("left: %v", got)
	}
	if got := tree(t, outside); !slices.Equal(got, []string{"precious"}) {
		t.Errorf("left outside: %v", got)
	}
}

// A path this deep cannot even be named in one system call, and one open file per level would be
// too many.
func TestRemoveAtAnyDepth(t *testing.T) {
	parent := t.TempDir()
	fd, err := unix.Open(parent, unix.O_DIRECTORY|unix.O_RDONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 3000 {
		if err := unix.Mkdirat(fd, "d", 0o755); err != nil {
			t.Fatalf("level %d: %v", i, err)
		}
		next, err := unix.Openat(fd, "d", unix.O_DIRECTORY|unix.O_RDONLY, 0)
		unix.Close(fd)
		if err != nil {
			t.Fatalf("level %d: %v", i, err)
		}
		fd = next
	}
	unix.Close(fd)
	if err := os.Mkdir(filepath.Join(parent, "d", ".removed-1"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := removeFrom(t, parent, "d"); err != nil {
		t.Fatal(err)
	}
	if got := tree(t, parent); len(got) != 0 {
		t.Errorf("left: %v", got)
	}
}
