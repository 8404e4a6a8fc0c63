package auth_test

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/checkpoint/checkpointtest"
	"berth/internal/localapi/auth"
)

func openAuthority(t *testing.T, dir string) *auth.Authority {
	t.Helper()
	a, err := auth.OpenAuthority(dir)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// leaf is the serving certificate, checked against an authority's certificate in PEM form.
func leaf(t *testing.T, a *auth.Authority, trusted []byte) *x509.Certificate {
	t.Helper()
	c, err := a.GetCertificate(nil)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(trusted)
	for _, name := range []string{"127.0.0.1", "::1", "localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"} {
		if ip := net.ParseIP(name); ip != nil {
			name = "[" + name + "]"
		}
		if _, err := c.Leaf.Verify(x509.VerifyOptions{Roots: pool, DNSName: name, CurrentTime: time.Now()}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	return c.Leaf
}

func TestAuthorityStays(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "api")
	a := openAuthority(t, dir)
	first := leaf(t, a, a.Certificate())
	again := openAuthority(t, dir)
	if string(again.Certificate()) != string(a.Certificate()) || !leaf(t, again, a.Certificate()).Equal(first) {
		t.Error("after a start there are other certificates")
	}
	modes := map[string]fs.FileMode{"": 0o700, "ca.pem": 0o600, "serving.pem": 0o600}
	for name, want := range modes {
		st, err := os.Stat(filepath.Join(dir, name))
		if err != nil || st.Mode().Perm() != want {
			t.Errorf("%s: %v, %v", name, st.Mode(), err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "serving.pem"), []byte("broken"), 0o600); err != nil {
		t.Fatal(err)
	}
	if leaf(t, openAuthority(t, dir), a.Certificate()).Equal(first) {
		t.Error("a broken file gave the certificate of before")
	}
	for _, c := range []struct{ content, want string }{
		{"broken", "restore it from a backup, or remove it"},
		{pairOf(t, a), "not that of an authority"},
	} {
		path := filepath.Join(dir, "ca.pem")
		if err := os.WriteFile(path, []byte(c.content), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := auth.OpenAuthority(dir); err == nil || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("got %v, want %s", err, c.want)
		}
	}
}

// Damaged keys are set aside for whoever has them made anew, and reported as long as they are kept.
func TestDamagedKeysAreSetAside(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	for _, name := range []string{"ca.pem", "tokens.pem"} {
		for what, damage := range map[string]func(path string) error{
			"emptied":  func(path string) error { return os.Truncate(path, 0) },
			"a folder": func(path string) error { return errors.Join(os.Remove(path), os.Mkdir(path, 0o700)) },
			"a link":   func(path string) error { return errors.Join(os.Remove(path), os.Symlink(name, path)) },
		} {
			t.Run(name+" "+what, func(t *testing.T) {
				dir := filepath.Join(t.TempDir(), "api")
				open := func() {
					t.Helper()
					openAuthority(t, dir)
					if _, err := auth.OpenTokens(auth.TokensConfig{Dir: dir}); err != nil {
						t.Fatal(err)
					}
				}
				open()
				if err := errors.Join(auth.SetAsideDamaged(dir, log), auth.Damaged(dir)); err != nil {
					t.Errorf("good keys: %v", err)
				}
				path := filepath.Join(dir, name)
				if err := errors.Join(damage(path), auth.SetAsideDamaged(dir, log)); err != nil {
					t.Fatal(err)
				}
				open()
				if err := auth.Damaged(dir); err == nil || !strings.Contains(err.Error(), path+".corrupt") {
					t.Errorf("it is not reported: %v", err)
				}
				if err := os.RemoveAll(path + ".corrupt"); err != nil {
					t.Fatal(err)
				}
				if err := errors.Join(auth.SetAsideDamaged(dir, log), auth.Damaged(dir)); err != nil {
					t.Errorf("new keys: %v", err)
				}
			})
		}
	}
}

// Keys that cannot be read now, as on a failing disk, may be good and are left as they are.
func TestUnreadKeysStay(t *testing.T) {
	for _, name := range []string{"ca.pem", "tokens.pem"} {
		dir := t.TempDir()
		path := filepath.Join(dir, name)
		if err := os.Symlink("/proc/self/mem", path); err != nil { // reads at its beginning give EIO
			t.Fatal(err)
		}
		if err := auth.SetAsideDamaged(dir, slog.New(slog.DiscardHandler)); !errors.Is(err, unix.EIO) || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v, want an error of reading", name, err)
		}
		if to, err := os.Readlink(path); err != nil || to != "/proc/self/mem" {
			t.Errorf("%s is %q: %v", name, to, err)
		}
	}
}

// pairOf is a client certificate with its key.
func pairOf(t *testing.T, a *auth.Authority) string {
	t.Helper()
	cert, key, err := a.Client("u", nil, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	return string(cert) + string(key)
}

// TestSideBySide has many open a new authority at the same time: all have the same.
func TestSideBySide(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "api")
	made := make([]string, 8)
	var wg sync.WaitGroup
	for i := range made {
		wg.Go(func() {
			if a, err := auth.OpenAuthority(dir); err != nil {
				t.Error(err)
			} else {
				made[i] = string(a.Certificate())
			}
		})
	}
	wg.Wait()
	if all := slices.Compact(made); len(all) != 1 {
		t.Errorf("%d authorities", len(all))
	}
}

// TestRenewal lets time go by: who knows the authority of the first day goes on to trust the
// server, as long as that certificate holds, and is known by a certificate of its.
func TestRenewal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		a := openAuthority(t, dir)
		const day = 24 * time.Hour
		trusted, first := a.Certificate(), leaf(t, a, a.Certificate())
		wait := func(d time.Duration) *x509.Certificate {
			t.Helper()
			<-time.After(d)
			return leaf(t, a, trusted)
		}
		if !wait(334 * day).Equal(first) {
			t.Error("renewed 31 days before the end")
		}
		second := wait(2 * day)
		if second.Equal(first) || second.NotAfter.Before(time.Now().Add(364*day)) {
			t.Errorf("not renewed 29 days before the end: %v", second.NotAfter)
		}
		if string(a.Certificate()) != string(trusted) {
			t.Error("the authority was renewed")
		}
		for range 5 {
			wait(364 * day)
		}
		if string(a.Certificate()) == string(trusted) {
			t.Error("the authority was not renewed after half its time")
		}
		// The old certificate, the new server, after a start.
		leaf(t, openAuthority(t, dir), trusted)
		if err := a.Health(); err != nil {
			t.Error(err)
		}
	})
}

func TestAuthorityOnAFullDisk(t *testing.T) {
	dir := t.TempDir()
	mend := checkpointtest.Full(t, dir, 0)
	if _, err := auth.OpenAuthority(dir); err == nil {
		t.Fatal("it is not on the disk, and nobody says so")
	}
	mend()
	a := openAuthority(t, dir)
	mend = checkpointtest.Full(t, dir, 0)
	if err := a.Health(); err == nil || !strings.Contains(err.Error(), "serving certificate of the local API") {
		t.Errorf("health of a full disk: %v", err)
	}
	if c, err := a.GetCertificate(&tls.ClientHelloInfo{}); err != nil || c == nil {
		t.Errorf("it serves nobody: %v", err)
	}
	mend()
}

func TestWriteAdmin(t *testing.T) {
	s := newServer(t, "")
	path := filepath.Join(s.dir, "kubeconfig")
	var before []byte
	for range 2 {
		if err := auth.WriteAdmin(path, s.url, s.authority); err != nil {
			t.Fatal(err)
		}
		content, err := os.ReadFile(path)
		st, statErr := os.Stat(path)
		if err != nil || statErr != nil || st.Mode().Perm() != 0o600 || string(content) == string(before) {
			t.Fatalf("%v, %v, %v", err, statErr, st.Mode())
		}
		before = content
		if got := s.do(clientOf(t, content), "DELETE /api/v1/nodes", ""); !strings.Contains(got.body, `"User":"root","Groups":["system:masters","system:authenticated"]`) {
			t.Errorf("%d %s", got.code, got.body)
		}
	}
}
