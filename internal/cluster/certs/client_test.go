package certs_test

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/client-go/rest"

	"berth/internal/cluster/certs"
	"berth/internal/cluster/kube"
)

// writeKubeconfig writes one for a server with a user, in JSON.
func writeKubeconfig(t *testing.T, path, user string) {
	t.Helper()
	text := fmt.Sprintf(`{"apiVersion": "v1", "kind": "Config", "current-context": "c", "contexts": [{"name": "c", "context": {"cluster": "s", "user": "u"}}],
"clusters": [{"name": "s", "cluster": {"server": "https://192.0.2.9:6443", "proxy-url": "http://192.0.2.1:3128", "certificate-authority-data": %q}}], "users": [{"name": "u", "user": %s}]}`,
		base64.StdEncoding.EncodeToString([]byte("not looked at")), user)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// userOf is a user with a certificate that lives for a while yet.
func userOf(t *testing.T, a authority, life time.Duration) string {
	t.Helper()
	c, key := a.issue(t, "system:node:box", x509.ExtKeyUsageClientAuth, life)
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	text := func(kind string, der []byte) string {
		return base64.StdEncoding.EncodeToString(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}))
	}
	return fmt.Sprintf(`{"client-certificate-data": %q, "client-key-data": %q}`, text("CERTIFICATE", c.Raw), text("PRIVATE KEY", der))
}

func TestOpenClient(t *testing.T) {
	const token, none = `{"token": "abc"}`, ""
	valid, ended := userOf(t, newAuthority(t, "ca"), time.Hour), userOf(t, newAuthority(t, "ca"), -time.Minute)
	for _, c := range []struct {
		name                  string
		kubeconfig, bootstrap string // the user; "-" is no flag, "" no file
		rotate                bool
		managed, has          bool   // there is a Client; it has a certificate
		err                   string // part of the error
	}{
		{"a kubeconfig is all", valid, "-", false, false, false, ""},
		{"a kubeconfig whose certificate has ended is still all", ended, "-", false, false, false, ""},
		{"a token needs no renewal", token, "-", true, false, false, ""},
		{"rotation begins with what there is", valid, "-", true, true, true, ""},
		{"rotation without a valid certificate", ended, "-", true, true, false, ""},
		{"no kubeconfig", none, "-", true, false, false, "kubelet.conf"},
		{"bootstrap", none, token, true, true, false, ""},
		{"bootstrap once", none, token, false, true, false, ""},
		{"bootstrap is over, and its file removed", valid, none, true, true, true, ""},
		{"bootstrap is over", valid, token, false, false, false, ""},
		{"bootstrap anew", ended, token, false, true, false, ""},
		{"bootstrap over a broken kubeconfig", "nonsense", token, true, true, false, ""},
		{"a broken kubeconfig", "nonsense", "-", true, false, false, "kubelet.conf"},
		{"neither file", none, none, true, false, false, "bootstrap.conf"},
		{"bootstrap with a kubeconfig of a token", token, none, true, false, false, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			cfg := certs.ClientConfig{Dir: dir + "/pki", NodeName: "box", Rotate: c.rotate, Log: discard}
			for _, f := range []struct {
				flag       *string
				name, user string
			}{{&cfg.Kubeconfig, "kubelet.conf", c.kubeconfig}, {&cfg.BootstrapKubeconfig, "bootstrap.conf", c.bootstrap}} {
				if f.user == "-" {
					continue
				}
				*f.flag = filepath.Join(dir, f.name)
				if f.user != none {
					writeKubeconfig(t, *f.flag, f.user)
				}
			}
			client, server, err := certs.OpenClient(cfg)
			if (err == nil) != (c.err == "") || (err != nil && !strings.Contains(err.Error(), c.err)) {
				t.Fatalf("got error %v, want %q", err, c.err)
			}
			if err != nil {
				return
			}
			if (client != nil) != c.managed || (client != nil && (client.Rotation.Current() != nil) != c.has) {
				t.Errorf("got %+v, want managed %t, with a certificate %t", client, c.managed, c.has)
			}
			if server.Host != "https://192.0.2.9:6443" || (client != nil && (len(server.CertData) > 0 || server.BearerToken != "")) {
				t.Errorf("server %+v", server)
			}
		})
	}
}

// A certificate of the kubeconfig that will be renewed is in the store from the start: kubeadm then
// has the kubeconfig name the store, so that it never has an old one.
func TestOpenClientKeepsInitial(t *testing.T) {
	for _, rotate := range []bool{true, false} {
		dir := t.TempDir()
		cfg := certs.ClientConfig{Dir: dir + "/pki", NodeName: "box", Rotate: rotate, Kubeconfig: dir + "/kubelet.conf", Log: discard}
		writeKubeconfig(t, cfg.Kubeconfig, userOf(t, newAuthority(t, "ca"), time.Hour))
		client, _, err := certs.OpenClient(cfg)
		if err != nil {
			t.Fatal(err)
		}
		stored, err := certs.NewStore(cfg.Dir, "kubelet-client").Read()
		if !rotate {
			if !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("without rotation there is %v, %v", stored, err)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(stored.Leaf.Raw, client.Rotation.Current().Leaf.Raw) {
			t.Errorf("stored is another certificate than the kubeconfig's: %v", stored.Leaf.Subject)
		}
	}
}

// ownAPI notes what is asked with the node's own certificate.
type ownAPI struct {
	certs.Signer
	note func(what string)
}

func (a ownAPI) CreateCertificateSigningRequest(ctx context.Context, r *certificatesv1.CertificateSigningRequest) (*certificatesv1.CertificateSigningRequest, error) {
	a.note("own")
	return a.Signer.CreateCertificateSigningRequest(ctx, r)
}

func (a ownAPI) CloseConnections() { a.note("closed") }

// A node begins with bootstrap credentials and ends with a kubeconfig of its own, from which the
// next agent begins.
func TestBootstrap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o, dir := newOffice(t), t.TempDir()
		var mu sync.Mutex
		used := map[string]int{} // guarded by mu
		note := func(what string) { mu.Lock(); defer mu.Unlock(); used[what]++ }
		uses := func(what string) int { mu.Lock(); defer mu.Unlock(); return used[what] }
		usedNow := func() map[string]int { mu.Lock(); defer mu.Unlock(); return maps.Clone(used) }
		cfg := certs.ClientConfig{
			Kubeconfig: dir + "/kubelet.conf", BootstrapKubeconfig: dir + "/bootstrap.conf", Dir: dir + "/pki", NodeName: "box", Rotate: true,
			Bootstrap: func(with *rest.Config) (certs.Signer, error) {
				note(with.BearerToken)
				return o.api, nil
			},
			Log: discard,
		}
		writeKubeconfig(t, cfg.BootstrapKubeconfig, `{"token": "boot"}`)
		run := func() (c *certs.Client, stop func()) {
			c, _, err := certs.OpenClient(cfg)
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan struct{})
			go func() {
				defer close(done)
				_ = c.Run(ctx, ownAPI{o.api, note}) // ends with ctx only
			}()
			synctest.Wait()
			return c, func() { cancel(); <-done }
		}
		_, stop := run()
		if _, err := os.Stat(cfg.Kubeconfig); err == nil {
			t.Error("a kubeconfig without a certificate")
		}
		// What was read of it once is enough.
		if err := os.Remove(cfg.BootstrapKubeconfig); err != nil {
			t.Fatal(err)
		}
		o.decide(t, day)
		synctest.Wait()
		stop()
		own, err := kube.LoadKubeconfig(cfg.Kubeconfig)
		if err != nil {
			t.Fatal(err)
		}
		if pair := dir + "/pki/kubelet-client-current.pem"; own.CertFile != pair || own.KeyFile != pair || own.Host != "https://192.0.2.9:6443" || string(own.CAData) != "not looked at" {
			t.Errorf("kubeconfig %+v", own)
		}
		if proxy, err := own.Proxy(nil); err != nil || proxy.String() != "http://192.0.2.1:3128" {
			t.Errorf("the kubeconfig leads through the proxy %v (%v)", proxy, err)
		}
		if uses("boot") != 1 || uses("own") != 0 || uses("closed") != 1 {
			t.Errorf("used %v", usedNow())
		}

		c, stop := run()
		first := c.Rotation.Current()
		if first == nil || uses("own") != 0 {
			t.Errorf("the next agent has %v, used %v", first, usedNow())
		}
		time.Sleep(22 * time.Hour)
		synctest.Wait()
		o.decide(t, day)
		time.Sleep(time.Minute) // the request may be between two tries
		synctest.Wait()
		if c.Rotation.Current() == first || uses("own") == 0 || uses("boot") != 1 {
			t.Errorf("not renewed with the certificate itself: used %v", usedNow())
		}
		stop()

		// It ended while no agent ran, and there are new credentials to ask with.
		time.Sleep(2 * day)
		writeKubeconfig(t, cfg.BootstrapKubeconfig, `{"token": "again"}`)
		c, stop = run()
		defer stop()
		o.decide(t, day)
		synctest.Wait()
		if c.Rotation.Current() == nil || uses("again") != 1 {
			t.Errorf("has %v, used %v", c.Rotation.Current(), usedNow())
		}
	})
}
