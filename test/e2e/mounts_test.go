//go:build e2e

package e2e

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"berth/internal/storage/mounts"
)

// mounting is a pod's folder to mount in, beside a folder of the host on which something is
// mounted.
type mounting struct {
	*mounts.Mounter
	t              *testing.T
	run, pod, host string
}

func newMounting(t *testing.T) *mounting {
	t.Helper()
	base := t.TempDir()
	m := &mounting{t: t, run: filepath.Join(base, "run"), pod: filepath.Join(base, "root/pods/one/volumes"), host: filepath.Join(base, "host")}
	m.Mounter = mounts.New(filepath.Join(base, "root"), m.run)
	must(t, errors.Join(os.MkdirAll(m.pod, 0o750), os.MkdirAll(m.host, 0o755)))
	must(t, unix.Mount("host", m.host, "tmpfs", 0, ""))
	t.Cleanup(func() {
		points, err := m.List()
		must(t, err)
		for i := len(points) - 1; i >= 0; i-- {
			if strings.HasPrefix(points[i].Path, base+"/") {
				must(t, unix.Unmount(points[i].Path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW))
			}
		}
	})
	must(t, os.WriteFile(filepath.Join(m.host, "precious"), []byte("precious"), 0o644))
	return m
}

// dir makes a directory to mount on.
func (m *mounting) dir(name string) string {
	m.t.Helper()
	path := filepath.Join(m.pod, name)
	must(m.t, os.Mkdir(path, 0o755))
	return path
}

// at returns the options of what is mounted there, topmost first; "" for nothing.
func (m *mounting) at(path string) string {
	m.t.Helper()
	points, err := m.List()
	must(m.t, err)
	out := ""
	for _, p := range points {
		if p.Path == path {
			out = "," + strings.Join(p.Opts, ",") + ","
		}
	}
	return out
}

// wantPrecious fails the test unless the file is the host's.
func (m *mounting) wantPrecious(path string) {
	m.t.Helper()
	if b, err := os.ReadFile(path); err != nil || string(b) != "precious" {
		m.t.Errorf("%s: %q, %v", path, b, err)
	}
}

func TestMountsOfPods(t *testing.T) {
	m := newMounting(t)
	mem := m.dir("memory")
	must(t, m.Mount("tmpfs", mem, "tmpfs", []string{"size=65536,noexec", "defaults", "x-of.people=yes"}))
	var st unix.Statfs_t
	must(t, unix.Statfs(mem, &st))
	if got := m.at(mem); st.Blocks*uint64(st.Bsize) != 65536 || !strings.Contains(got, ",noexec,") {
		t.Errorf("a tmpfs of %d bytes with %s", st.Blocks*uint64(st.Bsize), got)
	}
	if not, err := m.IsLikelyNotMountPoint(mem); not || err != nil {
		t.Errorf("mounted: %t, %v", !not, err)
	}
	must(t, os.Mkdir(filepath.Join(m.host, "below"), 0o755))
	must(t, unix.Mount("below", filepath.Join(m.host, "below"), "tmpfs", 0, ""))
	must(t, os.WriteFile(filepath.Join(m.host, "below/deep"), nil, 0o644))
	for name, tc := range map[string]struct {
		options  []string
		writable bool
		deep     bool
	}{
		"plain":     {[]string{"bind"}, true, false},
		"read-only": {[]string{"bind", "ro", "nosuid"}, false, false},
		"recursive": {[]string{"rbind"}, true, true},
	} {
		dir := m.dir(name)
		must(t, m.Mount(m.host, dir, "", tc.options))
		m.wantPrecious(filepath.Join(dir, "precious"))
		if err := os.WriteFile(filepath.Join(dir, "mine"), nil, 0o644); (err == nil) != tc.writable || err != nil && !errors.Is(err, unix.EROFS) {
			t.Errorf("%s: writing: %v", name, err)
		}
		if _, err := os.Stat(filepath.Join(dir, "below/deep")); (err == nil) != tc.deep {
			t.Errorf("%s: what is mounted below: %v", name, err)
		}
		if tc.options[len(tc.options)-1] == "nosuid" && !strings.Contains(m.at(dir), ",nosuid,") {
			t.Errorf("%s: mounted with %s", name, m.at(dir))
		}
		if name == "recursive" {
			must(t, m.Unmount(filepath.Join(dir, "below")))
		}
	}
	file := filepath.Join(m.pod, "file")
	must(t, os.WriteFile(file, nil, 0o644))
	must(t, m.Mount(filepath.Join(m.host, "precious"), file, "", []string{"bind"}))
	m.wantPrecious(file)

	bad := m.dir("bad")
	if err := m.Mount("tmpfs", bad, "tmpfs", []string{"size=1M", "nonsense=1"}); err == nil || !strings.Contains(err.Error(), "Unknown parameter 'nonsense'") {
		t.Errorf("an option that is none: %v", err)
	}
	if err := m.Mount("none", bad, "nosuchfs", nil); err == nil || !strings.Contains(err.Error(), "Mounting arguments: -t nosuchfs none ") {
		t.Errorf("a filesystem that is none: %v", err)
	}
	if err := m.MountSensitive("tmpfs", bad, "tmpfs", nil, []string{"password=secret"}); err == nil || strings.Contains(err.Error(), "secret") {
		t.Errorf("the error tells: %v", err)
	}
	if not, err := m.IsLikelyNotMountPoint(bad); !not || err != nil || m.at(bad) != "" {
		t.Errorf("mounted: %t, %v", !not, err)
	}

	open, err := os.Create(filepath.Join(mem, "open"))
	must(t, err)
	if err := m.Unmount(mem); !errors.Is(err, unix.EBUSY) {
		t.Errorf("in use: %v", err)
	}
	must(t, open.Close())
	for range 2 {
		for _, path := range []string{mem, filepath.Join(m.pod, "plain"), filepath.Join(m.pod, "read-only"), filepath.Join(m.pod, "recursive"), file, bad, filepath.Join(m.pod, "none/at/all")} {
			must(t, m.Unmount(path))
			if got := m.at(path); got != "" {
				t.Errorf("%s is still mounted", path)
			}
		}
	}
	m.wantPrecious(filepath.Join(m.host, "precious"))
}

// What programs mount, they mount where no container is; a filesystem whose server may be silent is
// unmounted by a process that can be ended.
func TestMountsOfPrograms(t *testing.T) {
	m := newMounting(t)
	share := m.dir("share")
	must(t, m.MountRemote(t.Context(), "share", share, "tmpfs", []string{"size=65536"}))
	if got := m.at(share); !strings.Contains(got, ",size=64k,") {
		t.Fatalf("mounted with %q", got)
	}
	open, err := os.Create(filepath.Join(share, "open"))
	must(t, err)
	if err := m.UnmountRemote(share); err == nil || !strings.Contains(err.Error(), "device or resource busy") {
		t.Errorf("in use: %v", err)
	}
	must(t, open.Close())
	for range 2 {
		must(t, m.UnmountRemote(share))
	}
	if got := m.at(share); got != "" {
		t.Errorf("still mounted with %s", got)
	}
	if err := m.MountRemote(t.Context(), "share", share, "tmpfs", []string{"nonsense=1"}); err == nil || !strings.Contains(err.Error(), "Mounting arguments: -t tmpfs -o nonsense=1 share") {
		t.Errorf("an option that is none: %v", err)
	}
	passage := filepath.Join(m.run, "mounts")
	if left, err := os.ReadDir(passage); err != nil || len(left) > 0 {
		t.Errorf("left on the way: %v, %v", left, err)
	}
	// An agent that was killed half way.
	half := filepath.Join(passage, "half")
	must(t, os.Mkdir(half, 0o700))
	must(t, unix.Mount("half", half, "tmpfs", 0, ""))
	for range 2 {
		must(t, m.Sweep())
	}
	if _, err := os.Lstat(half); !errors.Is(err, os.ErrNotExist) || m.at(half) != "" {
		t.Errorf("what was mounted half way is left: %v", err)
	}
}

// A container may have put links where volumes are mounted, and where they are unmounted.
func TestMountsFollowNoLink(t *testing.T) {
	m := newMounting(t)
	link, up := filepath.Join(m.pod, "link"), filepath.Join(m.pod, "up")
	must(t, errors.Join(os.Symlink(m.host, link), os.Symlink(filepath.Dir(m.host), up)))
	for _, path := range []string{link, filepath.Join(up, "host")} {
		for name, err := range map[string]error{
			"mount":   m.Mount("tmpfs", path, "tmpfs", nil),
			"bind":    m.Mount("/proc", path, "", []string{"bind"}),
			"program": m.MountRemote(t.Context(), "share", path, "tmpfs", nil),
		} {
			if !errors.Is(err, unix.ELOOP) {
				t.Errorf("%s at %s: %v", name, path, err)
			}
		}
		if err := m.Unmount(path); err == nil && path != link {
			t.Errorf("unmount %s: no error", path)
		}
		if err := m.UnmountRemote(path); err == nil && path != link {
			t.Errorf("unmount %s by a program: no error", path)
		}
		m.wantPrecious(filepath.Join(m.host, "precious"))
	}
	for _, path := range []string{m.host, "/proc"} {
		if err := m.Mount("tmpfs", path, "tmpfs", nil); err == nil || !strings.Contains(err.Error(), "in no folder of a pod or plugin") {
			t.Errorf("mount at %s: %v", path, err)
		}
		if err := m.Unmount(path); err == nil || !strings.Contains(err.Error(), "in no folder of a pod or plugin") {
			t.Errorf("unmount %s: %v", path, err)
		}
	}
	if got := m.at(m.host); got == "" {
		t.Error("the host's filesystem was unmounted")
	}
}
