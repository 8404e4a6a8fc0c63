package volumes

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Only the loop device of the path is touched; here that is a file, which cannot be detached.
func TestFreeDisk(t *testing.T) {
	root := t.TempDir()
	write := func(name, content string) {
		t.Helper()
		path := filepath.Join(root, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(content), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	path := filepath.Join(root, "real/pod")
	write("real/pod", "")
	write("sys/block/loop1/loop/backing_file", filepath.Join(root, "other")+"\n")
	write("dev/loop1", "")
	if err := loopDevices(root).free(path); err != nil {
		t.Errorf("of nobody: %v", err)
	}
	for name, backing := range map[string]string{"loop2": path, "loop3": path + " (deleted)"} {
		write("sys/block/"+name+"/loop/backing_file", backing+"\n")
		if err := loopDevices(root).free(path); err == nil || !strings.Contains(err.Error(), "open "+filepath.Join(root, "dev", name)) {
			t.Errorf("%s, which is not there: %v", name, err)
		}
		write("dev/"+name, "")
		if err := loopDevices(root).free(path); err == nil || !strings.Contains(err.Error(), "detach "+filepath.Join(root, "dev", name)+" from "+path) {
			t.Errorf("%s, which is a file: %v", name, err)
		}
		if err := os.RemoveAll(filepath.Join(root, "sys/block", name)); err != nil {
			t.Fatal(err)
		}
	}
}

// A disk that is held, by the kubelet or by an earlier agent, is not held once more.
func TestHoldDisk(t *testing.T) {
	root := t.TempDir()
	path := filepath.Join(root, "pod")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	disk, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer disk.Close()
	if _, err := loopDevices(root).hold(disk); err == nil || !strings.Contains(err.Error(), "the kernel's loop driver is needed: open "+filepath.Join(root, "dev/loop-control")) {
		t.Errorf("without loop devices: %v", err)
	}
	held := filepath.Join(root, "sys/block/loop7/loop")
	if err := errors.Join(os.MkdirAll(held, 0o755), os.WriteFile(filepath.Join(held, "backing_file"), []byte(path+"\n"), 0o644)); err != nil {
		t.Fatal(err)
	}
	if fresh, err := loopDevices(root).hold(disk); fresh || err != nil {
		t.Errorf("held: %t, %v", fresh, err)
	}
}
