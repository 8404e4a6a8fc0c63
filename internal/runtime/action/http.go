package action

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"

	"berth/internal/config"
)

// User agents of the actions, followed by the version of Kubernetes as major.minor.
const (
	probeAgent = "kube-probe/"
	hookAgent  = "kube-lifecycle/"
)

// maxRedirects is how many redirects to the same host a probe follows (Kubernetes documentation,
// "Configure Liveness, Readiness and Startup Probes").
const maxRedirects = 10

// newTransport returns a transport that reuses nothing between attempts: each one connects like a
// new client.
func newTransport(dial Dialer) *http.Transport {
	return &http.Transport{
		DialContext:        dial,
		DisableKeepAlives:  true,
		DisableCompression: true,
		ForceAttemptHTTP2:  true, // a server may offer nothing else over TLS
		// The API documents that certificates are not verified: only the response matters, not the
		// identity.
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true},
		Proxy:           nil,
	}
}

func (a *Actions) probeHTTP(ctx context.Context, t Target, g *v1.HTTPGetAction, timeout time.Duration) Result {
	req, err := newRequest(ctx, t, g, probeAgent)
	if err != nil {
		return unknown(err)
	}
	var redirected bool
	client := http.Client{Transport: a.transport, Timeout: timeout, CheckRedirect: sameHost(&redirected)}
	resp, err := client.Do(req)
	if err != nil {
		return failure(err)
	}
	body, err := readBody(resp)
	switch {
	case err != nil:
		return failure(err)
	case redirected:
		return Result{Warning, "Probe terminated redirects, Response body: " + body}
	case resp.StatusCode < http.StatusOK || resp.StatusCode >= http.StatusBadRequest:
		return Result{Failure, fmt.Sprintf("HTTP probe failed with statuscode: %d", resp.StatusCode)}
	}
	return Result{Success, body}
}

// hookHTTP sends the request and ignores the response. A handler with scheme HTTPS for an HTTP
// server is retried over HTTP, for compatibility with versions that ignored the scheme; the
// Authorization header is then removed.
func (a *Actions) hookHTTP(ctx context.Context, t Target, g *v1.HTTPGetAction) Result {
	req, err := newRequest(ctx, t, g, hookAgent)
	if err != nil {
		return failure(err)
	}
	err = a.callHook(req)
	if req.URL.Scheme != "https" || !errors.Is(err, http.ErrSchemeMismatch) {
		return hookResult(err)
	}
	req.URL.Scheme = "http"
	req.Header.Del("Authorization")
	if err := a.callHook(req); err != nil {
		return failure(err)
	}
	a.metrics.httpFallbacks.Inc()
	return Result{Warning, "request to HTTPS lifecycle hook got HTTP response, retry with HTTP succeeded"}
}

func (a *Actions) callHook(req *http.Request) error {
	var redirected bool
	client := http.Client{Transport: a.transport, CheckRedirect: sameHost(&redirected)}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	_, err = readBody(resp)
	return err
}

func hookResult(err error) Result {
	if err != nil {
		return failure(err)
	}
	return Result{Outcome: Success}
}

// sameHost follows redirects to the same host, and sets refused if one was not followed.
func sameHost(refused *bool) func(*http.Request, []*http.Request) error {
	return func(req *http.Request, via []*http.Request) error {
		if req.URL.Hostname() == via[0].URL.Hostname() && len(via) <= maxRedirects {
			return nil
		}
		*refused = true
		return http.ErrUseLastResponse
	}
}

// readBody reads at most maxOutput bytes of the response body and closes it.
func readBody(resp *http.Response) (string, error) {
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxOutput))
	if err != nil {
		return "", fmt.Errorf("read the answer of %s: %w", resp.Request.URL, joinClose(err, resp.Body))
	}
	if err := resp.Body.Close(); err != nil {
		return "", fmt.Errorf("read the answer of %s: %w", resp.Request.URL, err)
	}
	return string(b), nil
}

func joinClose(err error, c io.Closer) error { return errors.Join(err, c.Close()) }

func newRequest(ctx context.Context, t Target, g *v1.HTTPGetAction, agent string) (*http.Request, error) {
	address, err := t.address(g.Host, g.Port)
	if err != nil {
		return nil, err
	}
	u, err := url.Parse(g.Path)
	if err != nil { // a path that is no valid URL is used unchanged
		u = &url.URL{Path: g.Path}
	}
	u.Scheme, u.Host, u.User = "http", address, nil
	if g.Scheme != "" {
		u.Scheme = strings.ToLower(string(g.Scheme))
	}
	if !strings.HasPrefix(u.Path, "/") {
		u.Path = "/" + u.Path
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), http.NoBody)
	if err != nil {
		return nil, err
	}
	for _, h := range g.HTTPHeaders {
		req.Header.Add(h.Name, h.Value)
	}
	if host := req.Header.Get("Host"); host != "" {
		req.Host = host
		req.Header.Del("Host")
	}
	if _, isSet := req.Header["User-Agent"]; !isSet {
		req.Header.Set("User-Agent", agent+kubernetesVersion())
	}
	switch accept, isSet := req.Header["Accept"]; {
	case !isSet:
		req.Header.Set("Accept", "*/*")
	case len(accept) == 1 && accept[0] == "":
		req.Header.Del("Accept") // an empty value suppresses the header
	}
	return req, nil
}

// kubernetesVersion returns major.minor of the implemented Kubernetes version.
func kubernetesVersion() string {
	major, rest, _ := strings.Cut(strings.TrimPrefix(config.KubernetesVersion, "v"), ".")
	minor, _, _ := strings.Cut(rest, ".")
	return major + "." + minor
}
