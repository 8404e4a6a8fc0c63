//go:build e2e

package e2e

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"fmt"
	"io"
	"math/big"
	"net/http"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"berth/internal/cluster/kube"
)

// caller is somebody who asks the node's ports: with a certificate, a token, or nothing.
type caller struct {
	certificate []tls.Certificate
	token       string
}

// ask gets a URL and returns the status code and the body.
func (c *cluster) ask(who caller, url string) (code int, body string) {
	c.t.Helper()
	return c.send(who, http.MethodGet, url, "")
}

// send is ask for another method, with a body.
func (c *cluster) send(who caller, method, url, text string) (code int, body string) {
	c.t.Helper()
	client := http.Client{Timeout: time.Minute, Transport: &http.Transport{
		DisableKeepAlives: true,
		// The node signs its own certificate.
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true, Certificates: who.certificate},
	}}
	req, err := http.NewRequestWithContext(c.ctx, method, url, strings.NewReader(text))
	if err != nil {
		c.t.Fatal(err)
	}
	if who.token != "" {
		req.Header.Set("Authorization", "Bearer "+who.token)
	}
	resp, err := client.Do(req)
	if err != nil {
		c.t.Fatalf("%s: %v", url, err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		c.t.Fatalf("%s: %v", url, err)
	}
	return resp.StatusCode, string(b)
}

// certificateOf is somebody with the client certificate of a kubeconfig of the control plane.
func (c *cluster) certificateOf(kubeconfig string) caller {
	c.t.Helper()
	config, err := kube.LoadKubeconfig(c.plane.dir + "/" + kubeconfig + ".kubeconfig")
	if err != nil {
		c.t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(config.CertData, config.KeyData)
	if err != nil {
		c.t.Fatal(err)
	}
	return caller{certificate: []tls.Certificate{pair}}
}

// stranger is somebody with the administrator's name from an authority that nobody knows.
func (c *cluster) stranger() caller {
	c.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		c.t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "kubernetes-admin", Organization: []string{"system:masters"}},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		c.t.Fatal(err)
	}
	return caller{certificate: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}}
}

// The node's three ports answer whom they shall, and nobody else.
func TestClusterPorts(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.startMember()
	c.create(c.helloPod("web", "serve"))
	web := c.awaitAPIReady("web").named("web")
	c.kubectl("create", "serviceaccount", "nobody")
	c.kubectl("create", "serviceaccount", "somebody")
	c.kubectl("create", "clusterrolebinding", c.namespace, "--clusterrole=system:kubelet-api-admin", "--serviceaccount="+c.namespace+":somebody")
	token := func(account string) caller {
		return caller{token: strings.TrimSpace(c.kubectl("create", "token", account))}
	}
	admin, node, nobody, somebody := c.certificateOf("admin"), c.certificateOf("node-"+c.name), token("nobody"), token("somebody")
	stranger := c.stranger()

	hasWeb := func(where, body string) {
		t.Helper()
		var list v1.PodList
		if err := json.Unmarshal([]byte(body), &list); err != nil {
			t.Errorf("%s: %v: %.200s", where, err, body)
			return
		}
		if len(list.Items) != 1 || list.Items[0].UID != web.UID || list.Items[0].Status.Phase != v1.PodRunning {
			t.Errorf("%s has %+v, want the running pod", where, list.Items)
		}
	}

	healthz, readOnly, secure := fmt.Sprintf("http://127.0.0.1:%d", c.healthzPort), fmt.Sprintf("http://127.0.0.1:%d", c.readOnlyPort), fmt.Sprintf("https://127.0.0.1:%d", c.port)
	for _, url := range []string{healthz + "/healthz", healthz + "/healthz/ping", readOnly + "/healthz", readOnly + "/healthz/syncloop"} {
		if code, body := c.ask(caller{}, url); code != http.StatusOK || !strings.HasPrefix(body, "ok") {
			t.Errorf("%s: %d %s", url, code, body)
		}
	}
	if code, body := c.ask(caller{}, readOnly+"/pods"); code != http.StatusOK {
		t.Errorf("/pods at the read-only port: %d %s", code, body)
	} else {
		hasWeb("/pods at the read-only port", body)
	}
	for _, path := range []string{"/configz", "/containerLogs/" + c.namespace + "/web/main", "/exec/" + c.namespace + "/web/main?command=x&output=1"} {
		if code, body := c.ask(caller{}, readOnly+path); code != http.StatusNotFound && code != http.StatusMethodNotAllowed && code != http.StatusForbidden {
			t.Errorf("%s at the read-only port: %d %.200s", path, code, body)
		}
	}

	for _, who := range []struct {
		name string
		caller
		want int
	}{
		{"without credentials", caller{}, http.StatusUnauthorized},
		{"with a certificate of another authority", stranger, http.StatusUnauthorized},
		{"with a token that is none", caller{token: "nonsense"}, http.StatusUnauthorized},
		{"with a token of an account that may not", nobody, http.StatusForbidden},
		{"with the certificate of the administrator", admin, http.StatusOK},
		{"with a token of an account that may", somebody, http.StatusOK},
	} {
		for _, path := range []string{"/pods", "/configz", "/healthz", "/containerLogs/" + c.namespace + "/web/main"} {
			if code, body := c.ask(who.caller, secure+path); code != who.want {
				t.Errorf("%s %s: %d %.200s, want %d", path, who.name, code, body, who.want)
			}
		}
	}
	if code, _ := c.ask(node, secure+"/containerLogs/"+c.namespace+"/web/main"); code != http.StatusForbidden {
		t.Errorf("the node's own certificate reads logs: %d", code)
	}
	_, body := c.ask(admin, secure+"/pods")
	hasWeb("/pods", body)
	_, body = c.ask(admin, secure+"/containerLogs/"+c.namespace+"/web/main")
	wantText(t, "/containerLogs", body, "listening on")

	// The API server asks in our place.
	proxy := "/api/v1/nodes/" + c.name + "/proxy"
	hasWeb("/pods through the API server", c.kubectl("get", "--raw", proxy+"/pods"))
	var configz struct {
		KubeletConfig struct {
			Kind           string
			StaticPodPath  string
			Port           int
			Authentication struct{ Anonymous struct{ Enabled bool } }
		}
	}
	if err := json.Unmarshal([]byte(c.kubectl("get", "--raw", proxy+"/configz")), &configz); err != nil {
		t.Fatal(err)
	}
	if k := configz.KubeletConfig; k.Kind != "KubeletConfiguration" || k.StaticPodPath != c.manifests() || k.Port != c.port || k.Authentication.Anonymous.Enabled {
		t.Errorf("/configz says %+v", k)
	}
}
