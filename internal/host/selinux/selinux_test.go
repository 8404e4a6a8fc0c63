package selinux

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

const process, file = "system_u:system_r:container_t:s0", "system_u:object_r:container_file_t:s0"

// host is a file tree in place of "/".
type host struct {
	t    *testing.T
	root string
}

func (h host) write(name, content string) {
	h.t.Helper()
	path := filepath.Join(h.root, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		h.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		h.t.Fatal(err)
	}
}

func TestReadLabels(t *testing.T) {
	h := host{t, t.TempDir()}
	want := func(when string, l Labels) {
		t.Helper()
		if got := ReadLabels(h.root); got != l {
			t.Errorf("%s: got %+v, want %+v", when, got, l)
		}
	}
	h.write("etc/selinux/config", "# comment\nSELINUX=enforcing\nSELINUXTYPE=targeted\n")
	h.write("etc/selinux/targeted/contexts/lxc_contexts", "process = \""+process+"\"\nfile = \""+file+"\"\n")
	want("off", Labels{})
	h.write("sys/fs/selinux/enforce", "1")
	want("on", Labels{Process: process, File: file})
	for _, elsewhere := range []string{"../..", "..", ""} {
		h.write("etc/selinux/config", "SELINUXTYPE="+elsewhere+"\n")
		want("a policy elsewhere", Labels{})
	}
}

func TestMakePluginsDir(t *testing.T) {
	h, label := host{t, t.TempDir()}, make([]byte, 100)
	dir := filepath.Join(h.root, "var/lib/kubelet/device-plugins")
	if err := MakePluginsDir(h.root, dir); err != nil {
		t.Fatal(err)
	}
	if n, err := unix.Getxattr(dir, "security.selinux", label); n > 0 && string(label[:n]) == pluginsLabel {
		t.Errorf("a folder is labelled where SELinux is off: %v", err)
	}
	h.write("sys/fs/selinux/enforce", "0")
	switch err := MakePluginsDir(h.root, dir); {
	case errors.Is(err, unix.EPERM) && os.Geteuid() != 0:
		if !strings.Contains(err.Error(), dir) {
			t.Errorf("the error does not name %s: %v", dir, err)
		}
	case err != nil:
		t.Error(err)
	default:
		if n, err := unix.Getxattr(dir, "security.selinux", label); err != nil || string(label[:max(n, 0)]) != pluginsLabel {
			t.Errorf("the label is %q, %v", label[:max(n, 0)], err)
		}
	}
	h.write("occupied", "")
	if err := MakePluginsDir(h.root, filepath.Join(h.root, "occupied")); err == nil {
		t.Error("a file was taken for a folder")
	}
}

func TestMayRun(t *testing.T) {
	h := host{t, t.TempDir()}
	if _, err := MayRun(h.root, process); err == nil {
		t.Error("there is an answer where SELinux is off")
	}
	h.write("sys/fs/selinux/enforce", "0")
	if may, err := MayRun(h.root, process); err != nil || !may {
		t.Errorf("not enforced: %t, %v", may, err)
	}
	h.write("sys/fs/selinux/enforce", "1")
	h.write("sys/fs/selinux/class/process/index", "2")
	h.write("sys/fs/selinux/class/process/perms/transition", "2")
	if _, err := MayRun(h.root, process); err == nil {
		t.Error("there is an answer without a label of this process")
	}
	h.write("proc/self/attr/current", "system_u:system_r:unconfined_service_t:s0\x00")
	// An ordinary file is read on from where it was written: behind the question is the answer.
	question := "system_u:system_r:unconfined_service_t:s0 " + process + " 2"
	for answer, want := range map[string]bool{"2 ffffffff 0 ffffffff 3 0": true, "fffffffd ffffffff 0 ffffffff 3 0": false} {
		blank := make([]byte, len(question))
		h.write("sys/fs/selinux/access", string(blank)+answer)
		if may, err := MayRun(h.root, process); err != nil || may != want {
			t.Errorf("allowed %s: %t, %v", answer, may, err)
		}
		if asked, err := os.ReadFile(filepath.Join(h.root, "sys/fs/selinux/access")); err != nil || string(asked[:len(question)]) != question {
			t.Errorf("asked %q, %v", asked, err)
		}
	}
}
