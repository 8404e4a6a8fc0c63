// Package negotiate selects the media type of a response.
//
// Owns: which offered media type an Accept header prefers, and the error if there is none.
// Reads: headers of a request.
// Never: encodes a response.
package negotiate

import (
	"net/http"
	"strings"

	"github.com/munnerz/goautoneg"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Choose returns the offered media type that an Accept header prefers, of those for which accepts
// returns true, given the parameters in the header. A wildcard matches the offered types in their
// order. No header accepts all types. ok is false if no type is acceptable.
func Choose(accept string, offered []string, accepts func(media string, params map[string]string) bool) (media string, ok bool) {
	if accept == "" {
		accept = "*/*"
	}
	for _, clause := range goautoneg.ParseAccept(accept) {
		for _, media := range offered {
			kind, sub, _ := strings.Cut(media, "/")
			if (clause.Type == kind || clause.Type == "*") && (clause.SubType == sub || clause.SubType == "*") && accepts(media, clause.Params) {
				return media, true
			}
		}
	}
	return "", false
}

// IsInteractive reports whether the client is a tool for people, for which JSON is indented unless
// the request says otherwise, as in kube-apiserver.
func IsInteractive(r *http.Request) bool {
	agent := r.UserAgent()
	return strings.HasPrefix(agent, "curl") || strings.HasPrefix(agent, "Wget") || strings.HasPrefix(agent, "Mozilla/5.0")
}

// NotAcceptable returns the error for a request that accepts none of the offered media types.
func NotAcceptable(offered []string) *apierrors.StatusError {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusNotAcceptable, Reason: metav1.StatusReasonNotAcceptable,
		Message: "only the following media types are accepted: " + strings.Join(offered, ", "),
	}}
}
