package plane

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net/http"
	"time"

	"berth/test/controlplane/internal/pki"
)

// probeInterval is how often a component that is starting is asked: it does not tell by itself.
const probeInterval = 50 * time.Millisecond

// probe asks a component whether it is ready.
type probe func(context.Context) error

// probes are by component. The scheduler serves nothing and has none: a pod waits for it.
func probes(a addresses, t trust) map[string]probe {
	return map[string]probe{
		etcd: func(ctx context.Context) error {
			return get(ctx, local(a.etcd)+"/health", t.etcdAuthority, t.etcdClient)
		},
		apiServer: func(ctx context.Context) error {
			return get(ctx, local(a.apiServer)+"/readyz", t.authority, t.admin)
		},
		// Asked for what it makes, and without which no pod is admitted.
		controllerManager: func(ctx context.Context) error {
			return get(ctx, local(a.apiServer)+"/api/v1/namespaces/default/serviceaccounts/default", t.authority, t.admin)
		},
	}
}

// await asks until the answer is good or ctx is done, which is an error that says why.
func await(ctx context.Context, ask probe) error {
	tick := time.NewTicker(probeInterval)
	defer tick.Stop()
	var last error
	for {
		err := ask(ctx)
		if err == nil {
			return nil
		}
		if ctx.Err() == nil {
			last = err // not one that says only that ctx is done
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w (the last answer: %w)", context.Cause(ctx), last)
		case <-tick.C:
		}
	}
}

// get is an error unless the answer is 200.
func get(ctx context.Context, url string, authority, client pki.Pair) error {
	cert, err := tls.X509KeyPair(client.Cert, client.Key)
	if err != nil {
		return err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(authority.Cert)
	c := http.Client{
		Timeout: 5 * time.Second,
		Transport: &http.Transport{
			DisableKeepAlives: true,
			TLSClientConfig:   &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{cert}},
		},
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	resp, err := c.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		body, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<10)) // the status says enough
		return fmt.Errorf("get %s: %s: %s", url, resp.Status, body)
	}
	return nil
}
