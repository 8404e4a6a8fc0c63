package kube

import (
	"context"
	"crypto/tls"
	"net/http"
	"strings"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"
)

// useCertificate makes connections use a certificate that may change. A custom transport of the
// configuration is retained.
func useCertificate(config *rest.Config, c Certificate) error {
	if config.Transport == nil {
		settings, err := rest.TLSConfigFor(config)
		if err != nil {
			return err
		}
		if settings == nil {
			settings = &tls.Config{MinVersion: tls.VersionTLS12}
		}
		settings.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			if now := c.Current(); now != nil {
				return now, nil
			}
			return &tls.Certificate{}, nil // none
		}
		config.Transport = utilnet.SetTransportDefaults(&http.Transport{
			TLSClientConfig: settings, DialContext: config.Dial, Proxy: config.Proxy, MaxIdleConnsPerHost: 25, DisableCompression: config.DisableCompression,
		})
		if !strings.Contains(config.Host, "://") {
			config.Host = "https://" + config.Host
		}
		config.TLSClientConfig, config.Dial, config.Proxy = rest.TLSClientConfig{}, nil, nil
	}
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return waiting{c, next} })
	return nil
}

// waiting is a RoundTripper that waits until there is a client certificate.
type waiting struct {
	certificate interface{ Wait(context.Context) error }
	next        http.RoundTripper
}

// RoundTrip sends one request.
func (w waiting) RoundTrip(r *http.Request) (*http.Response, error) {
	if err := w.certificate.Wait(r.Context()); err != nil {
		if r.Body != nil {
			_ = r.Body.Close() // required of a RoundTripper; the request was not sent
		}
		return nil, err
	}
	return w.next.RoundTrip(r)
}

// WrappedRoundTripper returns the wrapped RoundTripper.
func (w waiting) WrappedRoundTripper() http.RoundTripper { return w.next }
