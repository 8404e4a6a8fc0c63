package registry

import (
	"context"
	"net/http"
	"strings"
)

// The headers that say who asks, on the child's socket alone.
const (
	UserHeader  = "X-Remote-User"
	UIDHeader   = "X-Remote-Uid"
	GroupHeader = "X-Remote-Group"
)

// Identity is who asks.
type Identity struct {
	Name   string
	UID    string
	Groups []string
}

type identityKey struct{}

// WithIdentity returns a context for requests of somebody who may make them.
func WithIdentity(ctx context.Context, who Identity) context.Context {
	return context.WithValue(ctx, identityKey{}, who)
}

// identityOf is who asks; false if nobody has said.
func identityOf(ctx context.Context) (Identity, bool) {
	who, ok := ctx.Value(identityKey{}).(Identity)
	return who, ok && who.Name != ""
}

// identify replaces what a client says of itself by who it is. Its credentials are not the child's.
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
