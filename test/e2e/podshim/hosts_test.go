//go:build e2e && podshim

package podshim

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// hostFolder is a folder of the host with what volumes are made of:
//
//	plain/file, plain/below/   a folder, with one below it that is a mount of its own
//	strict/                    without programs, devices and set-user-id
//	shared/                    whose mounts are for others, too
//	memory/                    in memory
//	huge/                      in huge pages, where the kernel has them
func hostFolder(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "volumes")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		b, _ := os.ReadFile("/proc/self/mounts")
		lines := strings.Split(string(b), "\n")
		for i := len(lines) - 1; i >= 0; i-- {
			if f := strings.Fields(lines[i]); len(f) > 1 && strings.HasPrefix(f[1], dir+"/") {
				if err := unix.Unmount(f[1], unix.MNT_DETACH); err != nil {
					t.Errorf("unmount %s: %v", f[1], err)
				}
			}
		}
		if b, _ := os.ReadFile("/proc/self/mounts"); strings.Contains(string(b), dir+"/") {
			t.Errorf("%s stays, as there are mounts in it", dir)
		} else if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	mount := func(source, at, kind string, flags uintptr, data string) {
		t.Helper()
		at = filepath.Join(dir, at)
		err := os.MkdirAll(at, 0o755)
		if err == nil {
			err = unix.Mount(source, at, kind, flags, data)
		}
		if err != nil {
			t.Fatalf("mount %s: %v", at, err)
		}
	}
	mount("tmpfs", "plain/below", "tmpfs", 0, "mode=755")
	mount("tmpfs", "strict", "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=755")
	mount("tmpfs", "memory", "tmpfs", 0, "mode=1777,size=1m")
	mount("tmpfs", "shared", "tmpfs", 0, "mode=755")
	mount("", "shared", "", unix.MS_SHARED, "")
	if b, _ := os.ReadFile("/proc/filesystems"); strings.Contains(string(b), "\thugetlbfs\n") {
		mount("hugetlbfs", "huge", "hugetlbfs", 0, "")
	}
	for name, text := range map[string]string{"plain/file": "content", "passwd": "root:x:0:0::/root:/\n", "profile.json": `{"defaultAction":"SCMP_ACT_ALLOW"}`} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}
