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

// NodeGroup is the group of nodes, and NodeUser the name of one, as the API server's node
// authorizer knows them.
const NodeGroup = "system:nodes"

// NodeUser returns the user name of a node.
func NodeUser(node string) string { return "system:node:" + node }

// ClientConfig says how the agent proves to the API server who it is.
type ClientConfig struct {
	// Kubeconfig is --kubeconfig, and BootstrapKubeconfig --bootstrap-kubeconfig; either may be
	// empty.
	Kubeconfig, BootstrapKubeconfig string
	// Dir is --cert-dir.
	Dir string
	// NodeName is the node's.
	NodeName string
	// Rotate is rotateCertificates.
	Rotate bool
	// Bootstrap returns an API to ask for certificates with the given credentials.
	Bootstrap func(*rest.Config) (Signer, error)
	// Metrics are RotationConfig.Metrics.
	Metrics *Metrics
	Log     *slog.Logger
}

// API is the API server, asked with the certificate in force.
type API interface {
	Signer
	// CloseConnections is called after another certificate is in force: those made with the old one
	// are to be closed.
	CloseConnections()
}

// Client is the client certificate of an agent that asks for it, renews it, or both.
type Client struct {
	*Rotation
	cfg   ClientConfig
	write *api.Cluster // of the kubeconfig to write when there is a certificate; nil if there is one of use
	own   API          // of the goroutine of Run

	mu        sync.Mutex
	bootstrap Signer // guarded by mu; nil before it is needed
}

// OpenClient reads the kubeconfig. If that is all that is needed, it is returned and there is no
// Client. Otherwise the Client gets certificates once it runs, and the configuration is that of the
// server without credentials, to be used with the Client's certificate.
//
// The bootstrap kubeconfig is read only when it is needed: it may be removed once the node has its
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
	return c, server, c.ensureKubeconfig() // an agent may have been ended before it did
}

// loadKubeconfig is kube.LoadKubeconfig; no path is a file that does not exist.
func loadKubeconfig(path string) (*rest.Config, error) {
	if path == "" {
		return nil, fmt.Errorf("no --kubeconfig: %w", fs.ErrNotExist)
	}
	return kube.LoadKubeconfig(path)
}

func hasCertificate(c *rest.Config) bool { return c.CertFile != "" || len(c.CertData) > 0 }

// certificateOf reads the client certificate of a kubeconfig.
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

// newClient returns a client for the server of a kubeconfig, with the certificate that is there, if
// any.
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
	if err := c.Load(); err != nil {
		cfg.Log.Warn("client certificate not read; the node asks for a new one", "error", err)
	}
	return c, rest.AnonymousClientConfig(of), nil
}

// Run keeps the certificate, which the API server is asked with, until ctx is done.
func (c *Client) Run(ctx context.Context, own API) error {
	c.own = own
	return c.Rotation.Run(ctx)
}

// initial is the certificate of the kubeconfig, as long as the store has none.
func (c *Client) initial() (*tls.Certificate, error) {
	config, err := loadKubeconfig(c.cfg.Kubeconfig)
	if err != nil {
		return nil, err
	}
	return certificateOf(config)
}

// signer returns the server's API: with the certificate in force, or else with the bootstrap
// credentials.
func (c *Client) signer() (Signer, error) {
	if c.Current() != nil {
		return c.own, nil
	}
	// Somebody may have put a new certificate there, for a node whose own has ended.
	if err := c.Rotation.Load(); err == nil && c.Current() != nil {
		c.own.CloseConnections()
		return c.own, nil
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

// changed tells that another certificate is in force.
func (c *Client) changed() {
	c.mu.Lock()
	c.bootstrap = nil // its credentials may be others by the time that they are needed again
	c.mu.Unlock()
	if err := c.ensureKubeconfig(); err != nil {
		c.cfg.Log.Warn("kubeconfig not written; the next agent does it", "error", err)
	}
	c.own.CloseConnections()
}

// ensureKubeconfig makes a kubeconfig that names the certificate of the store, where there was none
// of use.
func (c *Client) ensureKubeconfig() error {
	if c.write == nil || c.cfg.Kubeconfig == "" || c.Current() == nil {
		return nil
	}
	if err := kube.WriteKubeconfig(c.cfg.Kubeconfig, c.write, c.Store().Path()); err != nil {
		return err
	}
	c.write = nil
	return nil
}
