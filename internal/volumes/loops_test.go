package volumes

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Only the loop device of the path is touched; here that is a file, which cannot be detached.
func TestDetachLoops(t *testing.T) {
	root := t.TempDir()
	write := func(name, content string) {
		t.Helper()
		path := filepath.Join(root, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(content), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	write("real/pod", "")
	if err := os.Symlink("real", filepath.Join(root, "link")); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(root, "link/pod")
	write("sys/block/loop1/loop/backing_file", filepath.Join(root, "other")+"\n")
	write("dev/loop1", "")
	if err := detachLoops(root, path); err != nil {
		t.Errorf("of nobody: %v", err)
	}
	for name, backing := range map[string]string{"loop2": path, "loop3": filepath.Join(root, "real/pod") + " (deleted)"} {
		write("sys/block/"+name+"/loop/backing_file", backing+"\n")
		if err := detachLoops(root, path); err == nil || !strings.Contains(err.Error(), "open "+filepath.Join(root, "dev", name)) {
			t.Errorf("%s, which is not there: %v", name, err)
		}
		write("dev/"+name, "")
		if err := detachLoops(root, path); err == nil || !strings.Contains(err.Error(), "detach "+filepath.Join(root, "dev", name)+" from "+path) {
			t.Errorf("%s, which is a file: %v", name, err)
		}
		if err := os.RemoveAll(filepath.Join(root, "sys/block", name)); err != nil {
			t.Fatal(err)
		}
	}
}
