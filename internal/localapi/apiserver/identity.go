package apiserver

import (
	"context"
	"net/http"
	"strings"
)

// The headers with the user of a request, on the child's socket only.
const (
	UserHeader  = "X-Remote-User"
	UIDHeader   = "X-Remote-Uid"
	GroupHeader = "X-Remote-Group"
)

// Identity is the user of a request.
type Identity struct {
	Name   string
	UID    string
	Groups []string
}

type identityKey struct{}

// WithIdentity returns a context for authorized requests of a user.
func WithIdentity(ctx context.Context, who Identity) context.Context {
	return context.WithValue(ctx, identityKey{}, who)
}

// identityOf returns the user of a request; false if it is unknown.
func identityOf(ctx context.Context) (Identity, bool) {
	who, ok := ctx.Value(identityKey{}).(Identity)
	return who, ok && who.Name != ""
}

// identify replaces identity headers of the client by the authenticated user, and removes
// credentials.
func identify(h http.Header, who Identity) {
	for name := range h {
		if strings.HasPrefix(http.CanonicalHeaderKey(name), "X-Remote-") {
			h.Del(name)
		}
	}
	h.Del("Authorization")
	h.Set(UserHeader, who.Name)
	if who.UID != "" {
		h.Set(UIDHeader, who.UID)
	}
	for _, group := range who.Groups {
		h.Add(GroupHeader, group)
	}
}
