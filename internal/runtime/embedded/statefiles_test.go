package embedded

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestRemoveDamagedState(t *testing.T) {
	dir := t.TempDir()
	var log bytes.Buffer
	r, err := New(Config{Root: dir + "/root", RunDir: "/run/x", Log: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	p := newPaths(dir+"/root", dir+"/run")
	uuid, status := p.store.dir+"/io.containerd.grpc.v1.introspection/uuid", p.store.dir+"/io.containerd.grpc.v1.cri/containers/x/status"
	bootstrap, leases := p.state+taskDir+"/x/bootstrap.json", p.network.leases+"/"+p.network.bridge
	last, lock := leases+"/last_reserved_ip.0", leases+"/lock"
	for _, c := range []struct {
		file, content string
		stays         bool
	}{
		{uuid, "1b4e28ba-2fa1-11d2-883f-0016d3cca427", true},
		{uuid, "1b4e28ba-2fa", false},
		{uuid, "", false},
		{uuid, "FOLDER", false},
		{status, `{"Version":"v1"}`, true},
		{status, `{"Version":"v`, false},
		{status, "FOLDER", false},
		{bootstrap, `{"version":3}`, true},
		{bootstrap, "", false},
		{last, "10.88.0.7", true},
		{last, "10.8", false},
		{last, "FOLDER", false},
		{lock, "", true},
		{lock, "FOLDER", false},
		{leases + "/10.88.0.7", strings.Repeat("0a", 32) + "\r\neth0", true},
		{leases + "/10.88.0.7", "0a0a0a", false}, // no attachment has it
		{leases + "/10.88.0.7", "FOLDER", false},
	} {
		log.Reset()
		err := writeFile(c.file, []byte(c.content))
		if err == nil && c.content == "FOLDER" {
			if err = os.Remove(c.file); err == nil {
				err = os.MkdirAll(filepath.Join(c.file, "more"), 0o755)
			}
		}
		if err != nil {
			t.Fatal(err)
		}
		if err := removeDamagedState(p, r.log); err != nil {
			t.Fatal(err)
		}
		if exists(c.file) != c.stays || strings.Contains(log.String(), c.file) == c.stays {
			t.Errorf("%s with %q: it is there: %v, want %v; the log is: %s", filepath.Base(c.file), c.content, exists(c.file), c.stays, log.String())
		}
	}
}

// A lease whose owner has changed by a bit is given back to the pod that has the address, by what
// the CNI library remembers.
func TestLesseeByAttachments(t *testing.T) {
	a, b := strings.Repeat("0a", 32), strings.Repeat("0b", 32)
	c := strings.Repeat("0c", 32)
	owners := map[string][]byte{
		a + "-eth0": []byte(`{"result":{"ips":[{"address":"10.88.0.7/16"}]},"note":"10.88.0.6/32"}`),
		b + "-eth0": nil,                                                   // it cannot be read
		c + "-eth0": []byte(`{"result":{"ips":[{"address":"10.88.0.5/16"`), // cut off
		"0c-eth0":   []byte(`{"result":{"ips":[{"address":"10.88.0.9/16"}]}}`),
	}
	for _, l := range []struct{ address, sandbox, want string }{
		{"10.88.0.7", strings.Repeat("1a", 32), a + "-eth0"},
		{"10.88.0.7", b, a + "-eth0"}, // what is in use is not given to another
		{"10.88.0.8", b, b + "-eth0"},
		{"10.88.0.8", strings.Repeat("1a", 32), ""},
		{"10.88.0.9", "0c", ""}, // no ID of a sandbox
		{"10.88.0.7", "", a + "-eth0"},
		{"10.88.0.6", "", ""}, // an annotation's
		{"10.88.0.5", "", c + "-eth0"},
	} {
		if got := lesseeByAttachments(owners, l.address, l.sandbox); got != l.want {
			t.Errorf("the lease of %s, of %q: %q, want %q", l.address, l.sandbox, got, l.want)
		}
	}
}

func TestSetAsideFolders(t *testing.T) {
	p := newPaths(t.TempDir(), t.TempDir())
	folders := []string{p.config, p.log, p.log + ".1", p.log + ".next", p.current, p.current + ".next", p.socket, p.ttrpcSocket}
	for _, dir := range folders {
		if err := os.MkdirAll(dir+"/more", 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := writeFile(p.network.file, []byte("{}")); err != nil {
		t.Fatal(err)
	}
	if err := setAsideFolders(p, slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}
	for _, file := range folders {
		if exists(file) || !exists(file+".corrupt/more") {
			t.Errorf("%s is not set aside", file)
		}
	}
	if !exists(p.network.file) {
		t.Errorf("%s is gone", p.network.file)
	}
}

// What runc or the podshim cannot read of a container is named, and what runc has of it removed: it
// could never be ended.
func TestEndDamagedContainers(t *testing.T) {
	id := strings.Repeat("0a", 32)
	for _, c := range []struct {
		file, content string
		whole         bool
	}{
		{"state.json", `{"id":"x"}`, true},
		{"state.json", `{"id"`, false},
		{"state.json", "", false},
		{"state.json", "FOLDER", false},
		{"hosts", "", true}, // a pod may have none
		{"hosts", "FOLDER", false},
		{"resolv.conf", "FOLDER", false},
		{"pod.json", "{}", true},
		{"pod.json", "", false},
		{"pod.json", "FOLDER", false},
		{"task-x.json", "FOLDER", false},
		{"hostname", "FOLDER", false},
	} {
		p := newPaths(t.TempDir(), t.TempDir())
		folders := []string{filepath.Join(p.runc, podNamespace, id), p.store.dir + sandboxDir + "/" + id, filepath.Join(p.podshims, id)}
		for k, dir := range folders {
			names := podFiles
			if k == 0 {
				names = []string{"state.json"}
			} else if k == 2 {
				names = append([]string{"pod.json", "task-x.json"}, names...)
			}
			for _, name := range names {
				file, content := filepath.Join(dir, name), "{}"
				if name == c.file {
					content = c.content
				}
				err := writeFile(file, []byte(content))
				if content == "FOLDER" {
					err = errors.Join(err, os.Remove(file), os.MkdirAll(file+"/more", 0o755))
				}
				if err != nil {
					t.Fatal(err)
				}
			}
		}
		var said bytes.Buffer
		log := slog.New(slog.NewTextHandler(&said, nil))
		if err := killDamagedContainers(t.Context(), p, log); err != nil {
			t.Errorf("%s with %q: %v", c.file, c.content, err)
		}
		reportDamagedRecords(p, log)
		if whole := said.Len() == 0; whole != c.whole || !whole && !strings.Contains(said.String(), "/"+c.file) {
			t.Errorf("%s with %q: the log is %q", c.file, c.content, said.String())
		}
		if left := exists(folders[0]); left != (c.whole || c.file != "state.json") {
			t.Errorf("%s with %q: what runc has is there: %v", c.file, c.content, left)
		}
	}
}

// The processes of a container are those in its cgroup, by either driver, and below it.
func TestInCgroupOf(t *testing.T) {
	proc, id := t.TempDir(), strings.Repeat("0a", 32)
	for pid, group := range map[int]string{
		1: "0::/kubepods/pod7/" + id,
		2: "0::/kubepods.slice/kubepods-pod7.slice/cri-containerd-" + id + ".scope/below",
		3: "0::/kubepods/pod7/" + strings.Repeat("0b", 32),
		4: "0::/",
	} {
		if err := writeFile(filepath.Join(proc, fmt.Sprint(pid), "cgroup"), []byte(group+"\n")); err != nil {
			t.Fatal(err)
		}
		if got, err := inCgroupOf(proc, pid, id); err != nil || got != (pid < 3) {
			t.Errorf("%s: %v, %v", group, got, err)
		}
	}
	if got, err := inCgroupOf(proc, 5, id); got || err != nil {
		t.Errorf("a process that is gone: %v, %v", got, err)
	}
}
