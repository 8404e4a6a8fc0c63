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
)

// errUnknown is of a request that shows nothing, or nothing that is good.
var errUnknown = errors.New("the client is not known")

// authenticate returns who a request is from, or an error that wraps errUnknown or errToken; any
// other says that nobody can tell at the moment.
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

// bearer returns the token of a header of which there is one alone (RFC 6750).
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

// ConnContext is for the http.Server: it remembers by which connection a request comes, and who has
// connected to the unix socket.
func ConnContext(ctx context.Context, c net.Conn) context.Context {
	u, ok := c.(*net.UnixConn)
	if !ok {
		return withConnection(ctx, c)
	}
	raw, err := u.SyscallConn()
	if err != nil {
		return ctx
	}
	var peer *unix.Ucred
	var failed error
	if err := raw.Control(func(fd uintptr) { peer, failed = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); err != nil || failed != nil {
		return ctx // not known
	}
	return context.WithValue(ctx, peerKey{}, peer.Uid)
}

// hopHeaders are what a client must not tell who is behind it: the child believes them.
var hopHeaders = []string{"X-Remote-", "Impersonate-"}

// strip removes the headers that say who somebody is: from here on the context does. Connection
// may name headers that a proxy is to remove, such as those that it adds itself: only what is about
// the connection stays.
func strip(h http.Header) {
	h.Del("Authorization")
	if connection := strings.ToLower(strings.Join(h.Values("Connection"), ",")); strings.Contains(connection, "upgrade") {
		h.Set("Connection", "Upgrade")
	} else {
		h.Del("Connection")
	}
	for name := range h {
		for _, prefix := range hopHeaders {
			// A name that is spelled oddly is as dangerous: it is compared as any server reads it.
			if strings.HasPrefix(strings.ToLower(strings.ReplaceAll(name, "_", "-")), strings.ToLower(prefix)) {
				delete(h, name)
			}
		}
	}
}
