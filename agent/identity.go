package agent

import (
	"context"
	"crypto/x509"
	"crypto/x509/pkix"
	"net"

	certificatesv1 "k8s.io/api/certificates/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"

	"berth/internal/certs"
	"berth/internal/kube"
)

// openIdentity finds the API server and how the agent proves to it who it is. There is no certs.Client where the kubeconfig suffices.
func (m *member) openIdentity(cfg *Config, count *certs.Metrics) (*rest.Config, error) {
	k := m.conf
	client, rc, err := certs.OpenClient(certs.ClientConfig{
		Kubeconfig: k.Kubeconfig, BootstrapKubeconfig: k.BootstrapKubeconfig, Dir: k.CertDir, NodeName: cfg.NodeName, Rotate: k.RotateCertificates,
		Signer: func(with *rest.Config) (certs.Signer, error) {
			if with == nil {
				return objectsAPI{m.api.client}, nil
			}
			c, err := kube.Open(kube.Config{REST: with, Version: cfg.Version, ContentType: k.ContentType, Log: cfg.Log})
			return objectsAPI{c}, err
		},
		Changed: func() { m.api.client.CloseConnections() }, Metrics: count,
		Log: cfg.Log,
	})
	m.identity = client
	return rc, err
}

// newServing finds the serving certificate: in files, signed by the API server, or made here.
func (a *Agent) newServing() error {
	k, m := a.cfg.Kubelet, a.member
	cfg := certs.ServingConfig{
		CertFile: k.TLSCertFile, KeyFile: k.TLSPrivateKeyFile, Dir: k.CertDir, Hostname: a.cfg.NodeName, IPs: a.hostIPs.addresses, Log: a.cfg.Log,
	}
	if m.api != nil && k.ServerTLSBootstrap && k.TLSCertFile == "" && k.FeatureEnabled("RotateKubeletServerCertificate") {
		store := certs.NewStore(k.CertDir, "kubelet-server")
		cfg.CertFile, cfg.KeyFile = store.Path(), store.Path()
		m.api.serverCert = certs.NewRotation(certs.RotationConfig{
			Name: "serving certificate", Store: store, SignerName: certificatesv1.KubeletServingSignerName, Prefix: "csr-",
			Usages: []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageServerAuth},
			Wanted: func() *x509.CertificateRequest { return servingRequest(m.api.node.Node()) }, Covers: certs.CoversNames,
			Signer:  func() (certs.Signer, error) { return objectsAPI{m.api.client}, nil },
			Metrics: a.servingCert,
			Log:     a.cfg.Log,
		})
		if err := m.api.serverCert.Load(); err != nil {
			a.cfg.Log.Warn("serving certificate not read; the node asks for a new one", "error", err)
		}
	}
	var err error
	if m.serving, err = certs.NewServing(cfg); err != nil || (m.api != nil && m.api.serverCert != nil) {
		return err // one that the API server signs may be still to come
	}
	return m.serving.Load()
}

// servingRequest returns what the serving certificate of a node must say: its names and addresses, as the API server shows them. It is nil while
// that does not show an address.
func servingRequest(n *v1.Node) *x509.CertificateRequest {
	if n == nil || n.UID == "" { // the stand-in
		return nil
	}
	r := &x509.CertificateRequest{Subject: pkix.Name{CommonName: certs.NodeUser(n.Name), Organization: []string{certs.NodeGroup}}}
	for _, a := range n.Status.Addresses {
		ip := net.ParseIP(a.Address)
		switch a.Type {
		case v1.NodeInternalIP, v1.NodeExternalIP, v1.NodeHostName, v1.NodeInternalDNS, v1.NodeExternalDNS:
			if ip != nil {
				r.IPAddresses = append(r.IPAddresses, ip)
			} else if a.Address != "" {
				r.DNSNames = append(r.DNSNames, a.Address)
			}
		}
	}
	if len(r.IPAddresses) == 0 {
		return nil
	}
	return r
}

// identityComponents keep the agent's certificates.
func (m *member) identityComponents() []component {
	var out []component
	if m.identity != nil {
		out = append(out, component{name: "client certificate", run: m.identity.Run})
	}
	if m.api != nil && m.api.serverCert != nil {
		out = append(out, component{name: "serving certificate", run: m.api.serverCert.Run})
	}
	return out
}

// FollowCertificateSigningRequest hands over one request for a certificate, nil when there is none.
func (c objectsAPI) FollowCertificateSigningRequest(ctx context.Context, name string, seen func(*certificatesv1.CertificateSigningRequest)) {
	followOne(ctx, c.Client, "", name, seen)
}
