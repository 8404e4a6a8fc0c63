package podconfig

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

const (
	// requestTimeout limits a request including redirects and response body.
	requestTimeout = 10 * time.Second
	// maxRedirects limits the redirects of a request.
	maxRedirects = 10
	// maxReason limits the shown bytes of an error, which may contain text from the server.
	maxReason = 300
)

var errSlow = fmt.Errorf("there is no complete answer within %v", requestTimeout)

// answer is a response of a URL.
type answer struct {
	unchanged bool // 304 Not Modified
	content   []byte
	validators
	isHTML     bool
	retryAfter time.Duration // the server's Retry-After; set with an error too
}

func newTransport() http.RoundTripper {
	return &http.Transport{
		Proxy:               http.ProxyFromEnvironment,
		ForceAttemptHTTP2:   true,
		TLSHandshakeTimeout: requestTimeout,
		MaxIdleConnsPerHost: 1,
		IdleConnTimeout:     2 * time.Minute, // above most poll periods, to save handshakes
	}
}

// canonicalHeader returns a copy of the header with canonical names.
func canonicalHeader(h http.Header) http.Header {
	out := make(http.Header, len(h))
	for name, values := range h {
		for _, v := range values {
			out.Add(name, v)
		}
	}
	return out
}

// fetch requests the page. Anything but a complete response of status 200, or 304 to a conditional
// request, is an error. Errors with the same cause have the same text, and contain neither
// credentials nor header values.
func (s *httpSource) fetch(ctx context.Context, p *page) (answer, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, requestTimeout, errSlow)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.url, nil)
	if err != nil {
		return answer{}, explainRequest(ctx, err)
	}
	req.Header = s.header.Clone()
	if host := req.Header.Get("Host"); host != "" {
		req.Host = host // net/http ignores the Host header field
	}
	if req.Header.Get("User-Agent") == "" {
		req.Header.Set("User-Agent", "berth")
	}
	if p.answered {
		setIfAny(req.Header, "If-None-Match", p.etag)
		setIfAny(req.Header, "If-Modified-Since", p.lastModified)
	}
	resp, err := s.client.Do(req)
	if err != nil {
		return answer{}, explainRequest(ctx, err)
	}
	defer resp.Body.Close()
	switch {
	case resp.StatusCode == http.StatusNotModified && p.answered:
		return answer{unchanged: true}, nil
	case resp.StatusCode != http.StatusOK:
		return answer{retryAfter: parseRetryAfter(resp.Header.Get("Retry-After"), time.Now())},
			fmt.Errorf("the server answers with status %s", strings.TrimSpace(fmt.Sprintf("%d %s", resp.StatusCode, http.StatusText(resp.StatusCode))))
	}
	content, err := io.ReadAll(io.LimitReader(resp.Body, maxManifest+1))
	if err != nil {
		return answer{}, explainRequest(ctx, err)
	}
	if len(content) > maxManifest {
		return answer{}, fmt.Errorf("the answer is larger than the limit of %d bytes for a manifest", maxManifest)
	}
	media, _, err := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	return answer{
		content:    content,
		validators: validators{etag: resp.Header.Get("ETag"), lastModified: resp.Header.Get("Last-Modified")},
		isHTML:     err == nil && media == "text/html",
	}, nil
}

func setIfAny(h http.Header, name, value string) {
	if value != "" {
		h.Set(name, value)
	}
}

// checkRedirect stops loops and downgrades to http, and removes configured headers for other hosts.
func (s *httpSource) checkRedirect(next *http.Request, via []*http.Request) error {
	if len(via) > maxRedirects {
		return fmt.Errorf("the server redirects more than %d times", maxRedirects)
	}
	if via[len(via)-1].URL.Scheme == "https" && next.URL.Scheme != "https" {
		return errors.New("the server redirects from https to http, where anyone on the way can change the manifests")
	}
	if next.URL.Hostname() != via[0].URL.Hostname() {
		for name := range s.header {
			next.Header.Del(name)
		}
		next.Host = ""
	}
	return nil
}

// explainRequest returns the cause of a failed request without details that change between
// attempts, such as local ports.
func explainRequest(ctx context.Context, err error) error {
	if errors.Is(context.Cause(ctx), errSlow) {
		return errSlow
	}
	if urlErr, ok := errors.AsType[*url.Error](err); ok { // it repeats the URL of the problem
		err = urlErr.Err
	}
	var dnsErr *net.DNSError
	var invalid x509.CertificateInvalidError
	var opErr *net.OpError
	switch {
	case errors.As(err, &dnsErr) && dnsErr.IsNotFound:
		return fmt.Errorf("the host %s is not known", dnsErr.Name)
	case errors.As(err, &dnsErr):
		return fmt.Errorf("the address of the host %s cannot be looked up", dnsErr.Name)
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired && invalid.Cert != nil:
		return fmt.Errorf("the server's certificate is valid from %s to %s only",
			invalid.Cert.NotBefore.UTC().Format(time.RFC3339), invalid.Cert.NotAfter.UTC().Format(time.RFC3339))
	case errors.As(err, &opErr):
		remote := *opErr
		remote.Source = nil
		err = &remote
	case errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF):
		return errors.New("the connection ended before the answer was complete")
	}
	if text := err.Error(); len(text) > maxReason {
		return errors.New(strings.ToValidUTF8(text[:maxReason], "") + "…")
	}
	return err
}

// parseRetryAfter returns the delay of a Retry-After field (RFC 9110, section 10.2.3), 0 for none.
func parseRetryAfter(value string, now time.Time) time.Duration {
	if seconds, err := strconv.ParseUint(value, 10, 31); err == nil {
		return time.Duration(seconds) * time.Second
	}
	if at, err := http.ParseTime(value); err == nil {
		return max(at.Sub(now), 0)
	}
	return 0
}
