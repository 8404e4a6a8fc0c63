//go:build e2e

package e2e

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	mount "k8s.io/mount-utils"
	"k8s.io/utils/ptr"

	"berth/internal/record/journal"
	"berth/internal/runtime/crispec"
	"berth/internal/storage/mounts"
	"berth/internal/storage/volumes"
)

func TestMemoryVolume(t *testing.T) {
	const uid = "11111111-2222-3333-4444-555555555555"
	root := t.TempDir()
	log := slog.New(slog.DiscardHandler)
	openWith := func(mounter mount.Interface) *volumes.Manager {
		m, err := volumes.New(volumes.Config{Root: root, Mounter: mounter, Log: log, Journal: journal.New(log)})
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	open := func() *volumes.Manager { return openWith(mounts.New(root, t.TempDir())) }
	for _, d := range []string{"volumes", "plugins"} {
		if err := os.MkdirAll(filepath.Join(root, "pods", uid, d), 0o750); err != nil {
			t.Fatal(err)
		}
	}
	p := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "default", UID: uid},
		Spec: v1.PodSpec{
			SecurityContext: &v1.PodSecurityContext{FSGroup: ptr.To(int64(4242))},
			Containers:      []v1.Container{{Name: "c", VolumeMounts: []v1.VolumeMount{{Name: "mem"}, {Name: "disk"}}}},
			Volumes: []v1.Volume{
				{Name: "mem", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{
					Medium: v1.StorageMediumMemory, SizeLimit: ptr.To(resource.MustParse("8Mi")),
				}}},
				{Name: "disk", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}},
			},
		},
	}
	var mounted map[string]crispec.Volume
	for range 2 {
		var err volumes.Errors
		if mounted, err = open().Setup(t.Context(), p, volumes.Inputs{}); err != nil {
			t.Fatal(err)
		}
	}
	mem, disk := mounted["mem"].HostPath, mounted["disk"].HostPath
	t.Cleanup(func() { // for a test that fails half way
		for _, path := range []string{filepath.Join(disk, "inner"), mem} {
			if err := unix.Unmount(path, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
				t.Errorf("unmount %s: %v", path, err)
			}
		}
	})
	var st unix.Statfs_t
	if err := unix.Statfs(mem, &st); err != nil {
		t.Fatal(err)
	}
	if st.Type != unix.TMPFS_MAGIC || st.Blocks*uint64(st.Bsize) != 8<<20 {
		t.Errorf("type %#x with %d bytes, want a tmpfs of 8 MiB", st.Type, st.Blocks*uint64(st.Bsize))
	}
	for dir, mode := range map[string]uint32{mem: 0o3777, disk: 0o2777} {
		var st unix.Stat_t
		if err := unix.Stat(dir, &st); err != nil {
			t.Fatal(err)
		}
		if st.Gid != 4242 || st.Mode&0o7777 != mode {
			t.Errorf("%s: group %d, mode %o; want 4242 and %o", dir, st.Gid, st.Mode&0o7777, mode)
		}
	}

	// A loop device that a container has made of a file in memory: no process has that open.
	image := filepath.Join(mem, "image")
	must(t, os.WriteFile(image, nil, 0o600), os.Truncate(image, 1<<20))
	loop, err := exec.Command("losetup", "--find", "--show", image).Output()
	must(t, err)
	defer func() { _ = exec.Command("losetup", "--detach", strings.TrimSpace(string(loop))).Run() }() // for a test that fails here
	want := fmt.Sprintf("held by loop device %s (%s)", strings.TrimSpace(string(loop)), image)
	if err := open().Teardown(t.Context(), uid); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("with a loop device: %v, want %s", err, want)
	}
	must(t, exec.Command("losetup", "--detach", strings.TrimSpace(string(loop))).Run())
	until(t, "the loop device to be free", func() bool {
		loops, err := loopsBelow(mem)
		return err == nil && len(loops) == 0
	})

	// A bind mount of a directory of the host on the same filesystem, as a container with
	// Bidirectional propagation makes it.
	host := t.TempDir()
	precious := filepath.Join(host, "precious")
	if err := os.WriteFile(precious, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	inner := filepath.Join(disk, "inner")
	if err := os.Mkdir(inner, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount(host, inner, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	held, err := os.Open(filepath.Join(inner, "precious"))
	if err != nil {
		t.Fatal(err)
	}
	if err := open().Teardown(t.Context(), uid); err == nil {
		t.Error("volumes were torn down below a busy mount")
	}
	if _, err := os.Stat(precious); err != nil {
		t.Fatalf("the host's file: %v", err)
	}
	held.Close()
	// The last line of defence: a mount that the mount table does not tell of, as when it comes
	// after the table was read.
	if err := openWith(mount.NewFakeMounter(nil)).Teardown(t.Context(), uid); !errors.Is(err, unix.EXDEV) {
		t.Errorf("removal met a mount: %v, want a refusal to cross it", err)
	}
	if _, err := os.Stat(precious); err != nil {
		t.Fatalf("the host's file: %v", err)
	}
	for range 2 {
		if err := open().Teardown(t.Context(), uid); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := os.Stat(precious); err != nil {
		t.Errorf("the host's file: %v", err)
	}
	for _, dir := range []string{mem, disk} {
		if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is left: %v", dir, err)
		}
	}
}
