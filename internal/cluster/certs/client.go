package certs

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"sync"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd/api"

	"berth/internal/cluster/kube"
)

// NodeGroup is the group of nodes in the API server's node authorizer.
const NodeGroup = "system:nodes"

// NodeUser returns the user name of a node in the API server's node authorizer.
func NodeUser(node string) string { return "system:node:" + node }

// ClientConfig configures the agent's credentials at the API server.
type ClientConfig struct {
	// Kubeconfig is --kubeconfig, and BootstrapKubeconfig --bootstrap-kubeconfig; either may be
	// empty.
	Kubeconfig, BootstrapKubeconfig string
	// Dir is --cert-dir.
	Dir string
	// NodeName is the name of the node.
	NodeName string
	// Rotate is rotateCertificates.
	Rotate bool
	// Bootstrap returns an API that requests certificates with the given credentials.
	Bootstrap func(*rest.Config) (Signer, error)
	// Metrics are RotationConfig.Metrics.
	Metrics *Metrics
	Log     *slog.Logger
}

// API is the API server, called with the current certificate.
type API interface {
	Signer
	// CloseConnections is called after a change of the certificate, to close connections that were
	// made with the old one.
	CloseConnections()
}

// Client is a client certificate that the agent requests, renews, or both.
type Client struct {
	// Rotation maintains the certificate. Run the Client, not the Rotation.
	Rotation *Rotation
	cfg      ClientConfig
	write    *api.Cluster // of the kubeconfig to write once there is a certificate; nil if one is usable
	server   API          // owned by the goroutine of Run

	mu        sync.Mutex
	bootstrap Signer // guarded by mu; nil before it is needed
}

// OpenClient reads the kubeconfig. If its credentials suffice, it returns them and no Client.
// Otherwise the Client gets certificates once it runs, and the configuration has the server without
// credentials; use it with the Client's certificate.
//
// The bootstrap kubeconfig is read only when needed: it may be removed once the node has its
// certificate, as kubeadm does.
func OpenClient(cfg ClientConfig) (*Client, *rest.Config, error) {
	found, err := loadKubeconfig(cfg.Kubeconfig)
	if cfg.BootstrapKubeconfig == "" {
		if err != nil {
			return nil, nil, err
		}
		if !cfg.Rotate {
			return nil, found, nil
		}
		if !hasCertificate(found) {
			cfg.Log.Warn("rotateCertificates has no effect: the credentials of the kubeconfig are no client certificate", "kubeconfig", cfg.Kubeconfig)
			return nil, found, nil
		}
		return newClient(cfg, found)
	}
	if err == nil && !hasCertificate(found) {
		return nil, found, nil
	}
	if err == nil && !cfg.Rotate {
		if c, certErr := certificateOf(found); certErr == nil && holds(c, time.Now()) {
			return nil, found, nil
		}
	}
	if err == nil {
		return newClient(cfg, found)
	}
	if !errors.Is(err, fs.ErrNotExist) {
		cfg.Log.Warn("The kubeconfig is invalid, requesting a new certificate and rewriting it", "error", err)
	}
	given, bootErr := kube.LoadKubeconfig(cfg.BootstrapKubeconfig)
	if bootErr != nil {
		return nil, nil, errors.Join(err, fmt.Errorf("bootstrap: %w", bootErr))
	}
	c, server, err := newClient(cfg, given)
	if err != nil {
		return nil, nil, err
	}
	if c.write, err = kube.LoadCluster(cfg.BootstrapKubeconfig); err != nil {
		return nil, nil, fmt.Errorf("bootstrap: %w", err)
	}
	return c, server, c.ensureKubeconfig() // an earlier agent may have stopped before this
}

// loadKubeconfig is kube.LoadKubeconfig; an empty path returns fs.ErrNotExist.
func loadKubeconfig(path string) (*rest.Config, error) {
	if path == "" {
		return nil, fmt.Errorf("no --kubeconfig: %w", fs.ErrNotExist)
	}
	return kube.LoadKubeconfig(path)
}

func hasCertificate(c *rest.Config) bool { return c.CertFile != "" || len(c.CertData) > 0 }

func certificateOf(c *rest.Config) (*tls.Certificate, error) {
	cert, key := c.CertData, c.KeyData
	var err error
	if len(cert) == 0 {
		if cert, err = readPEM(c.CertFile); err != nil {
			return nil, err
		}
	}
	if len(key) == 0 {
		if key, err = readPEM(c.KeyFile); err != nil {
			return nil, err
		}
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return nil, err
	}
	return &pair, nil
}

// newClient returns a client for the server of a kubeconfig, with the stored certificate, if any.
func newClient(cfg ClientConfig, of *rest.Config) (*Client, *rest.Config, error) {
	c := &Client{cfg: cfg}
	wanted := &x509.CertificateRequest{Subject: pkix.Name{CommonName: NodeUser(cfg.NodeName), Organization: []string{NodeGroup}}}
	c.Rotation = NewRotation(RotationConfig{
		Name: "client certificate", Store: NewStore(cfg.Dir, "kubelet-client"), Initial: c.initial,
		SignerName: certificatesv1.KubeAPIServerClientKubeletSignerName, Prefix: "node-csr-",
		Usages: []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth},
		Wanted: func() *x509.CertificateRequest { return wanted }, UntilEnd: !cfg.Rotate,
		Signer: c.signer, Changed: c.changed, Metrics: cfg.Metrics, Log: cfg.Log,
	})
	if err := c.Rotation.Load(); err != nil {
		cfg.Log.Warn("client certificate not read; the node asks for a new one", "error", err)
	}
	return c, rest.AnonymousClientConfig(of), nil
}

// Run maintains the certificate until ctx is done. The API server is called with that certificate.
func (c *Client) Run(ctx context.Context, server API) error {
	c.server = server
	return c.Rotation.Run(ctx)
}

// initial returns the kubeconfig's certificate, for use while the store has none.
func (c *Client) initial() (*tls.Certificate, error) {
	config, err := loadKubeconfig(c.cfg.Kubeconfig)
	if err != nil {
		return nil, err
	}
	return certificateOf(config)
}

// signer returns the server's API: with the current certificate, or else with the bootstrap
// credentials.
func (c *Client) signer() (Signer, error) {
	if c.Rotation.Current() != nil {
		return c.server, nil
	}
	// A new certificate may have been installed for a node whose own has expired.
	if err := c.Rotation.Load(); err == nil && c.Rotation.Current() != nil {
		c.server.CloseConnections()
		return c.server, nil
	}
	if c.cfg.BootstrapKubeconfig == "" {
		return nil, errors.New("the one there was has ended, and there is no --bootstrap-kubeconfig to ask for another")
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.bootstrap != nil {
		return c.bootstrap, nil
	}
	given, err := kube.LoadKubeconfig(c.cfg.BootstrapKubeconfig)
	if err != nil {
		return nil, fmt.Errorf("bootstrap: %w", err)
	}
	s, err := c.cfg.Bootstrap(given)
	if err != nil {
		return nil, fmt.Errorf("bootstrap: %w", err)
	}
	c.bootstrap = s
	return s, nil
}

// changed is called after a change of the certificate.
func (c *Client) changed() {
	c.mu.Lock()
	c.bootstrap = nil // its credentials may have changed before the next use
	c.mu.Unlock()
	if err := c.ensureKubeconfig(); err != nil {
		c.cfg.Log.Warn("kubeconfig not written; the next agent does it", "error", err)
	}
	c.server.CloseConnections()
}

// ensureKubeconfig writes a kubeconfig that names the store's certificate, if there was no usable
// one.
func (c *Client) ensureKubeconfig() error {
	if c.write == nil || c.cfg.Kubeconfig == "" || c.Rotation.Current() == nil {
		return nil
	}
	if err := kube.WriteKubeconfig(c.cfg.Kubeconfig, c.write, c.Rotation.cfg.Store.Path()); err != nil {
		return err
	}
	c.write = nil
	return nil
}
