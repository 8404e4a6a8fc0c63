//go:build e2e

package e2e

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"os"
	"strings"
	"testing"

	certificatesv1 "k8s.io/api/certificates/v1"
)

// A node that has nothing but a bootstrap token gets its certificates from the API server, whatever
// happens meanwhile, and needs the token no more.
func TestClusterBootstrap(t *testing.T) {
	c := newCluster(t)
	kubeconfig, bootstrap := c.place.Dir+"/kubelet.conf", c.place.Dir+"/bootstrap.conf"
	c.identity = []string{"--kubeconfig", kubeconfig, "--bootstrap-kubeconfig", bootstrap}
	c.configure("rotateCertificates: true\nserverTLSBootstrap: true\n")
	c.bootstrapToken(bootstrap)
	static := strings.Replace(manifest("static", "sleep"), "metadata:\n", "metadata:\n  namespace: "+c.namespace+"\n", 1)
	c.write("static.yaml", strings.Replace(static, "spec:\n", "spec:\n  hostNetwork: true\n", 1))

	// Pods of manifests wait for no identity. They have the network of the machine: a range for
	// that of pods is given to a Node.
	start := c.stopServer()
	a := c.startKubelet()
	c.awaitReady("static-" + c.name)
	a.kill()
	start()
	a = c.startKubelet()
	until(t, "the node to ask for its certificate", func() bool { return len(c.signingRequests("kubernetes.io/kube-apiserver-client-kubelet")) == 1 })
	a.kill()
	a = c.startKubelet()
	// Now the node may have it.
	c.bind("approve", "system:certificates.k8s.io:certificatesigningrequests:nodeclient")
	until(t, "the node to have its certificate", func() bool {
		_, err := c.client.GetNode(c.ctx, c.name)
		return err == nil
	})
	if n := len(c.signingRequests("kubernetes.io/kube-apiserver-client-kubelet")); n != 1 {
		t.Errorf("%d requests for a client certificate, want one", n)
	}
	// The certificate is used as soon as it is on the disk, and the kubeconfig that names it comes
	// after.
	until(t, "the kubeconfig to be written", func() bool { return exists(t, kubeconfig) })

	// Nobody approves serving certificates but people.
	if _, err := c.handshake(); err == nil || !strings.Contains(err.Error(), "internal error") {
		t.Errorf("without a serving certificate the port says %v, want an internal error", err)
	}
	var serving []certificatesv1.CertificateSigningRequest
	until(t, "the node to ask for its serving certificate", func() bool {
		serving = c.signingRequests("kubernetes.io/kubelet-serving")
		return len(serving) == 1
	})
	c.kubectl("certificate", "approve", serving[0].Name)
	var shown *x509.Certificate
	until(t, "the port to show what was signed", func() bool {
		var err error
		shown, err = c.handshake()
		return err == nil
	})
	if shown.Subject.String() != "CN=system:node:"+c.name+",O=system:nodes" || len(shown.IPAddresses) == 0 {
		t.Errorf("the port shows %s for %v and %v", shown.Subject, shown.DNSNames, shown.IPAddresses)
	}

	a.kill()
	if err := os.Remove(bootstrap); err != nil {
		t.Fatal(err)
	}
	c.startMember()
	c.create(c.helloPod("web", "serve"))
	c.awaitAPIReady("web", "static-"+c.name)
	if again, err := c.handshake(); err != nil || !again.Equal(shown) {
		t.Errorf("the next agent shows %v, %v", again, err)
	}
	if n := len(c.signingRequests("")); n != 2 {
		t.Errorf("%d requests in all, want two", n)
	}
}

// bootstrapToken writes a kubeconfig with a token that may ask for a node's certificate.
func (c *cluster) bootstrapToken(path string) {
	c.t.Helper()
	id := strings.Repeat("0", 6-len(c.name)) + c.name
	const secret = "0123456789abcdef"
	c.plane.mustKubectl(fmt.Sprintf(`apiVersion: v1
kind: Secret
metadata: {name: bootstrap-token-%s, namespace: kube-system}
type: bootstrap.kubernetes.io/token
stringData: {token-id: %q, token-secret: %q, usage-bootstrap-authentication: "true"}
`, id, id, secret), "apply", "-f", "-")
	c.t.Cleanup(func() { c.tidy("-n", "kube-system", "delete", "secret/bootstrap-token-"+id) })
	c.bind("ask", "system:node-bootstrapper")
	// The server's part is the administrator's, the user's is not.
	out, err := c.plane.kubectl("admin", "", "config", "view", "--raw", "--flatten", "--minify", "-o", "json")
	if err != nil {
		c.t.Fatal(err)
	}
	var config map[string]any
	if err := json.Unmarshal([]byte(out), &config); err != nil {
		c.t.Fatal(err)
	}
	for _, user := range config["users"].([]any) {
		user.(map[string]any)["user"] = map[string]any{"token": id + "." + secret}
	}
	text, err := json.Marshal(config)
	if err == nil {
		err = os.WriteFile(path, text, 0o600)
	}
	if err != nil {
		c.t.Fatal(err)
	}
}

// bind gives holders of bootstrap tokens a role until the test ends.
func (c *cluster) bind(name, role string) {
	c.t.Helper()
	name = c.namespace + "-" + name
	c.kubectl("create", "clusterrolebinding", name, "--clusterrole="+role, "--group=system:bootstrappers")
	c.t.Cleanup(func() { c.tidy("delete", "clusterrolebinding/"+name) })
}

// tidy runs kubectl when the test's own context is done.
func (c *cluster) tidy(args ...string) {
	plane := &controlPlane{t: c.t, ctx: context.Background(), binary: c.plane.binary, dir: c.plane.dir}
	if out, err := plane.kubectl("admin", "", args...); err != nil {
		c.t.Errorf("clean up: %v: %s", err, out)
	}
}

// signingRequests are the requests for certificates of the test's node with this signer, or with
// any.
func (c *cluster) signingRequests(signer string) []certificatesv1.CertificateSigningRequest {
	c.t.Helper()
	var list certificatesv1.CertificateSigningRequestList
	if err := json.Unmarshal([]byte(c.kubectl("get", "certificatesigningrequests", "-o", "json")), &list); err != nil {
		c.t.Fatal(err)
	}
	var out []certificatesv1.CertificateSigningRequest
	for _, r := range list.Items {
		block, _ := pem.Decode(r.Spec.Request)
		q, err := x509.ParseCertificateRequest(block.Bytes)
		if err != nil {
			c.t.Fatal(err)
		}
		if q.Subject.CommonName == "system:node:"+c.name && (signer == "" || r.Spec.SignerName == signer) {
			out = append(out, r)
		}
	}
	return out
}

// handshake connects to the node's port as the API server's authority has it, and returns the
// certificate that it shows.
func (c *cluster) handshake() (*x509.Certificate, error) {
	c.t.Helper()
	ca, err := os.ReadFile(c.plane.dir + "/pki/ca.crt")
	if err != nil {
		c.t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(ca)
	d := tls.Dialer{Config: &tls.Config{RootCAs: pool, ServerName: c.name}}
	conn, err := d.DialContext(c.ctx, "tcp", fmt.Sprintf("127.0.0.1:%d", c.port))
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	return conn.(*tls.Conn).ConnectionState().PeerCertificates[0], nil
}
