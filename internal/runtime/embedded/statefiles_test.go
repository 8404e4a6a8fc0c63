package embedded

import (
	"bytes"
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
	p := paths{root: dir + "/root", run: dir + "/run"}
	uuid, status := p.home()+"/io.containerd.grpc.v1.introspection/uuid", p.home()+"/io.containerd.grpc.v1.cri/containers/x/status"
	bootstrap, leases := p.state()+taskDir+"/x/bootstrap.json", p.addresses()+"/"+p.bridge()
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

func TestSetAsideFolders(t *testing.T) {
	p := paths{root: t.TempDir(), run: t.TempDir()}
	folders := []string{p.config(), p.log(), p.log() + ".1", p.log() + ".next", p.current(), p.current() + ".next", p.socket(), p.ttrpcSocket()}
	for _, dir := range folders {
		if err := os.MkdirAll(dir+"/more", 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := writeFile(p.network(), []byte("{}")); err != nil {
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
	if !exists(p.network()) {
		t.Errorf("%s is gone", p.network())
	}
}
