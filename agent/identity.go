package agent

import (
	"context"
	"crypto/x509"
	"crypto/x509/pkix"
	"net"

	certificatesv1 "k8s.io/api/certificates/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"

	"berth/internal/cluster/certs"
	"berth/internal/cluster/kube"
)

// openIdentity finds the API server and the agent's client certificate. There is none if the
// kubeconfig has the credentials.
func (s *apiServer) openIdentity(b *base) (rc *rest.Config, err error) {
	k := b.cfg.Kubelet
	s.identity, rc, err = certs.OpenClient(certs.ClientConfig{
		Kubeconfig: k.Kubeconfig, BootstrapKubeconfig: k.BootstrapKubeconfig, Dir: k.CertDir, NodeName: b.cfg.NodeName, Rotate: k.RotateCertificates,
		Bootstrap: func(with *rest.Config) (certs.Signer, error) {
			c, err := kube.Open(kube.Config{REST: with, Version: b.cfg.Version, ContentType: k.ContentType, Log: b.cfg.Log})
			return c, err
		},
		Metrics: b.clientCert, Log: b.cfg.Log,
	})
	return rc, err
}

// renewIdentity renews the client certificate.
func (s *apiServer) renewIdentity(ctx context.Context) error {
	return s.identity.Run(ctx, s.client)
}

// serving is the serving certificate of the HTTPS port.
type serving struct {
	*certs.Serving
	rotation *certs.Rotation // nil unless the API server signs the certificate
	// wake signals that the node's addresses may have changed.
	wake func()
}

// newServing opens the serving certificate, if there is an HTTPS port: from files, signed by the
// API server, or self-signed.
func newServing(g *dependencies) (s serving, err error) {
	s.wake = func() {}
	k := g.cfg.Kubelet
	if g.settings.mode == runMode || !*k.EnableServer {
		return s, nil
	}
	cfg := certs.ServingConfig{
		CertFile: k.TLSCertFile, KeyFile: k.TLSPrivateKeyFile, Dir: k.CertDir, Hostname: g.cfg.NodeName, IPs: g.hostIPs.IPs, Log: g.cfg.Log,
	}
	if !g.api.isCluster() || !k.ServerTLSBootstrap || k.TLSCertFile != "" || !k.FeatureEnabled("RotateKubeletServerCertificate") {
		if s.Serving, err = certs.NewServing(cfg); err != nil {
			return s, err
		}
		if err = s.Load(); err != nil {
			if _, missing := s.GetCertificate(nil); missing != nil {
				return s, err
			}
		}
		return s, nil // with the previous certificate if it cannot be replaced
	}
	store := certs.NewStore(k.CertDir, "kubelet-server")
	cfg.CertFile, cfg.KeyFile = store.Path(), store.Path()
	s.rotation = certs.NewRotation(certs.RotationConfig{
		Name: "serving certificate", Store: store, SignerName: certificatesv1.KubeletServingSignerName, Prefix: "csr-",
		Usages: []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageServerAuth},
		Wanted: func() *x509.CertificateRequest { return servingRequest(g.api.current.Node()) }, Covers: certs.CoversNames,
		Signer:  func() (certs.Signer, error) { return g.api.client, nil },
		Metrics: g.servingCert,
		Log:     g.cfg.Log,
	})
	s.wake = s.rotation.Wake
	if err := s.rotation.Load(); err != nil {
		g.cfg.Log.Warn("serving certificate not read; the node asks for a new one", "error", err)
	}
	s.Serving, err = certs.NewServing(cfg) // the files may not exist yet
	return s, err
}

// servingRequest returns the certificate request of a node: its names and addresses in the API
// server. It returns nil while the Node has no address.
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
