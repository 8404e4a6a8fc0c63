package localapi

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ErrNotServed reports that no agent listens on the socket of a run directory.
var ErrNotServed = errors.New("no agent serves the local API")

// RequestToken requests a service account token, valid for life, from the agent of the run
// directory. The error wraps ErrNotServed if no agent runs, or if it has no local API.
func RequestToken(ctx context.Context, runDir, namespace, account string, life time.Duration) (string, error) {
	seconds := int64(life / time.Second)
	t := authenticationv1.TokenRequest{
		TypeMeta: metav1.TypeMeta{APIVersion: authenticationv1.SchemeGroupVersion.String(), Kind: "TokenRequest"},
		Spec:     authenticationv1.TokenRequestSpec{ExpirationSeconds: &seconds},
	}
	body, err := json.Marshal(t)
	if err != nil {
		return "", err
	}
	err = post(ctx, runDir, "/api/v1/namespaces/"+url.PathEscape(namespace)+"/serviceaccounts/"+url.PathEscape(account)+"/token", body, func(answer io.Reader) error {
		return json.NewDecoder(answer).Decode(&t)
	})
	return t.Status.Token, err
}

// post sends a body to the agent of a run directory, and calls read with the body of a successful
// response.
func post(ctx context.Context, runDir, path string, body []byte, read func(io.Reader) error) (err error) {
	socket := SocketPath(runDir)
	transport := &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", socket)
		},
		DisableCompression: true,
	}
	defer transport.CloseIdleConnections()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://local"+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Accept", "application/json")
	answer, err := transport.RoundTrip(r)
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Op == "dial" && !errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("%w on %s: %w", ErrNotServed, socket, err)
	}
	if err != nil {
		return fmt.Errorf("ask the local API on %s: %w", socket, err)
	}
	defer func() { err = errors.Join(err, answer.Body.Close()) }()
	if answer.StatusCode >= http.StatusMultipleChoices {
		return fmt.Errorf("the local API on %s answers %s: %s", socket, answer.Status, reason(answer.Body))
	}
	return read(answer.Body)
}

// reason returns why a request was rejected: the message of a Status, or the whole response.
func reason(answer io.Reader) string {
	body, _ := io.ReadAll(io.LimitReader(answer, 4<<10)) // as much as was received
	var status metav1.Status
	_ = json.Unmarshal(body, &status) // the response may not be a Status
	return cmp.Or(status.Message, string(bytes.TrimSpace(body)))
}
