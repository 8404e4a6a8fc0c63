package preflight

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestRun(t *testing.T) {
	l, err := net.Listen("tcp", ":0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	port := l.Addr().(*net.TCPAddr).Port
	checks := Run(Query{Root: t.TempDir() + "/not/yet", Ports: []int{port}})
	seen := map[string]bool{}
	for _, c := range checks {
		if seen[c.Name] {
			t.Errorf("%s is checked twice", c.Name)
		}
		seen[c.Name] = true
		if c.Found == "" {
			t.Errorf("%s: nothing is said of what was found", c.Name)
		}
		if (c.Consequence == "") != (c.Result == OK) {
			t.Errorf("%s: result %s with the consequence %q", c.Name, c.Result, c.Consequence)
		}
		if strings.HasPrefix(c.Name, "port ") && (c.Result != Warn || c.Found != "in use") {
			t.Errorf("%s: %s, %s; want a warning that it is in use", c.Name, c.Result, c.Found)
		}
	}
	for _, name := range []string{"root", "kernel", "cgroups", "overlayfs", "seccomp", "/etc/hosts", "nftables or iptables", "swap"} {
		if !seen[name] {
			t.Errorf("%s is not checked", name)
		}
	}
}

func TestCheckPropagation(t *testing.T) {
	const root, other = "22 1 8:1 / / rw,relatime ", "30 22 0:5 / /proc rw - proc proc rw\n"
	for mounts, want := range map[string]string{
		root + "shared:1 - ext4 /dev/sda1 rw\n" + other:                          "/ is a shared mount",
		root + "shared:1 master:2 - ext4 /dev/sda1 rw\n":                         "/ is a shared mount",
		root + "master:2 shared:1 - ext4 /dev/sda1 rw\n":                         "/ is a shared mount",
		root + "master:2 - ext4 /dev/sda1 rw\n":                                  "/ is a slave mount",
		root + "- ext4 /dev/sda1 rw\n" + other:                                   "/ is a private mount",
		root + "unbindable - ext4 /dev/sda1 rw\n":                                "/ is a private mount",
		root + "shared:1 - rootfs rootfs rw\n" + root + "- overlay overlay rw\n": "/ is a private mount",
		"": "/ is not in /proc/self/mountinfo",
	} {
		c := checkPropagation(mounts)
		if c.Found != want || (c.Result == OK) != (want == "/ is a shared mount") {
			t.Errorf("%q: %+v, want %s", mounts, c, want)
		}
		if c.Result != OK && !strings.Contains(c.Consequence, "mount --make-rshared /") {
			t.Errorf("%q: no remedy in %q", mounts, c.Consequence)
		}
	}
}

func TestCheckHosts(t *testing.T) {
	file := filepath.Join(t.TempDir(), "hosts")
	if c := checkHosts(file); c.Result != Missing || !strings.Contains(c.Consequence, "no pod starts") {
		t.Errorf("without the file: %+v", c)
	}
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if c := checkHosts(file); c.Result != OK {
		t.Errorf("with the file: %+v", c)
	}
}
