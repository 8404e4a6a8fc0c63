package server

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"

	"berth/internal/api/nodeauthz"
)

// guard passes on only authenticated and authorized requests.
//
// Differs from the kubelet: a request whose token could not be reviewed gets a retryable error
// (429, 503) instead of 401, since a client may then discard the token.
type guard struct {
	authn *authenticator
	authz *authorizer
	log   *slog.Logger
	next  http.Handler
}

func (g guard) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	u, err := g.authn.authenticate(r)
	if err != nil {
		// Not a warning: any client of the port can cause it at any rate.
		g.log.Debug("request not authenticated", "path", r.URL.Path, "from", r.RemoteAddr, "error", err)
		switch {
		case errors.Is(err, errManyReviews):
			refuseBusy(w, errManyReviews.Error())
		case errors.Is(err, errNotReviewed):
			w.Header().Set("Retry-After", "1")
			http.Error(w, errNotReviewed.Error(), http.StatusServiceUnavailable)
		default:
			refuse(w, http.StatusUnauthorized, "Unauthorized")
		}
		return
	}
	attributes := nodeauthz.Compute(r.Method, r.URL.Path)
	allowed, err := g.authz.authorize(r.Context(), u, attributes)
	description := fmt.Sprintf("user=%s, verb=%s, resource=nodes, subresource(s)=%v", u.Username, attributes.Verb, attributes.Subresources)
	switch {
	case err != nil:
		g.log.Warn("request not authorized: the API server cannot be asked", "user", u.Username, "path", r.URL.Path, "error", err)
		refuse(w, http.StatusInternalServerError, "Authorization error ("+description+")")
	case !allowed:
		refuse(w, http.StatusForbidden, "Forbidden ("+description+")")
	default:
		g.next.ServeHTTP(w, r)
	}
}

// refuse responds with the text alone, because clients of the kubelet compare it.
func refuse(w http.ResponseWriter, status int, text string) {
	setPlainText(w)
	w.WriteHeader(status)
	_, _ = io.WriteString(w, text) // the client may not read the response
}
