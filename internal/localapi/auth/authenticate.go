package auth

import (
	"context"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"net"
	"net/http"
	"strings"

	"golang.org/x/sys/unix"
	authenticationv1 "k8s.io/api/authentication/v1"

	"berth/internal/connlimit"
)

// errUnknown is the error for a request without valid credentials.
var errUnknown = errors.New("the client is not known")

// authenticate returns the user of a request. Errors wrap errUnknown or errToken if the credentials
// are missing or invalid; with any other, the user cannot be determined at the moment.
func (a *Access) authenticate(r *http.Request) (*User, error) {
	if r.TLS != nil && len(r.TLS.PeerCertificates) > 0 {
		if u, err := a.cfg.Authority.known(r.TLS.PeerCertificates); err == nil {
			return u, nil
		}
	}
	if header := r.Header.Values("Authorization"); len(header) > 0 {
		token, ok := bearer(header)
		if !ok {
			return nil, errUnknown
		}
		u, _, err := a.cfg.Tokens.Check(r.Context(), token, nil)
		return u, err
	}
	if uid, ok := r.Context().Value(peerKey{}).(uint32); ok && uid == 0 {
		return &User{Name: Root, Groups: authenticated([]string{mastersGroup})}, nil
	}
	return nil, errUnknown
}

// bearer returns the bearer token of the only Authorization header (RFC 6750).
func bearer(header []string) (string, bool) {
	scheme, token, ok := strings.Cut(header[0], " ")
	token = strings.TrimSpace(token)
	return token, ok && len(header) == 1 && strings.EqualFold(scheme, "bearer") && token != ""
}

func certificateUser(leaf *x509.Certificate) *User {
	sum := sha256.Sum256(leaf.Raw)
	return &User{
		Name: leaf.Subject.CommonName, Groups: authenticated(leaf.Subject.Organization),
		Extra: map[string]authenticationv1.ExtraValue{credentialID: {"X509SHA256=" + hex.EncodeToString(sum[:])}},
		until: leaf.NotAfter,
	}
}

type peerKey struct{}

// ConnContext is for http.Server. It stores the connection, or the peer of a unix socket, in the
// context.
func ConnContext(ctx context.Context, c net.Conn) context.Context {
	u, ok := c.(*net.UnixConn)
	if !ok {
		return connlimit.ConnContext(ctx, c)
	}
	raw, err := u.SyscallConn()
	if err != nil {
		return ctx
	}
	var peer *unix.Ucred
	var failed error
	if err := raw.Control(func(fd uintptr) { peer, failed = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); err != nil || failed != nil {
		return ctx // unknown peer
	}
	return context.WithValue(ctx, peerKey{}, peer.Uid)
}

// hopHeaders are prefixes of headers that clients must not set, as the API writer trusts them.
var hopHeaders = []string{"X-Remote-", "Impersonate-"}

// strip removes the headers with credentials and identities, which the context replaces. Connection
// may name headers for proxies to remove, including those that a proxy adds itself: only Upgrade
// stays.
func strip(h http.Header) {
	h.Del("Authorization")
	if connection := strings.ToLower(strings.Join(h.Values("Connection"), ",")); strings.Contains(connection, "upgrade") {
		h.Set("Connection", "Upgrade")
	} else {
		h.Del("Connection")
	}
	for name := range h {
		for _, prefix := range hopHeaders {
			// Unusual spellings are as dangerous: compare names as any server reads them.
			if strings.HasPrefix(strings.ToLower(strings.ReplaceAll(name, "_", "-")), strings.ToLower(prefix)) {
				delete(h, name)
			}
		}
	}
}
