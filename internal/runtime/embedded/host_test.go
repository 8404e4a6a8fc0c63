package embedded

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestCheckHost(t *testing.T) {
	l, err := net.Listen("tcp", ":0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	port := l.Addr().(*net.TCPAddr).Port
	checks := CheckHost(HostQuery{Root: t.TempDir() + "/not/yet", Ports: []int{port}})
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
