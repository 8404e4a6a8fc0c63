package auth

import (
	"mime"
	"net/http"
	"path"
	"slices"
	"strconv"
	"strings"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/fields"

	"berth/internal/localapi/kinds"
)

// readRequest returns the request as rules match it: without the rest of the path after a
// subresource, and with the name of a list that selects one object by name.
func readRequest(r *http.Request) kinds.Request {
	q := kinds.Read(r)
	q.Subresource, _, _ = strings.Cut(q.Subresource, "/")
	if q.Name != "" || !slices.Contains([]string{"list", "watch", "deletecollection"}, q.Verb) {
		return q
	}
	if s, err := fields.ParseSelector(r.URL.Query().Get("fieldSelector")); err == nil {
		if name, ok := s.RequiresExactMatch("metadata.name"); ok && len(validation.NameIsDNSSubdomain(name, false)) == 0 {
			q.Name = name
		}
	}
	return q
}

// isClean reports whether all servers interpret the request's path alike: it has no "..", empty or
// escaped-slash elements. That covers the paths of proxied requests too.
func isClean(r *http.Request) bool {
	p, raw := r.URL.Path, r.URL.EscapedPath()
	if !strings.HasPrefix(p, "/") {
		return false
	}
	if len(p) > 1 {
		p = strings.TrimSuffix(p, "/")
	}
	return path.Clean(p) == p && !strings.Contains(strings.ToLower(raw), "%2f") && !strings.ContainsAny(p, "\x00\r\n")
}

// streams are the pod subresources that give access to containers.
var streams = []string{"attach", "exec", "portforward", "proxy"}

func isStream(q kinds.Request) bool {
	return q.Group == "" && q.Resource == "pods" && slices.Contains(streams, q.Subresource)
}

// durationOf reports whether a request lasts until its client ends it.
func durationOf(q kinds.Request, r *http.Request) span {
	if q.Verb == "watch" || isStream(q) {
		return long
	}
	if follow, err := strconv.ParseBool(r.URL.Query().Get("follow")); q.Subresource == "log" && err == nil && follow {
		return long
	}
	return short
}

func isWrite(q kinds.Request) bool { return isStream(q) || changesObjects(q) }

// changesObjects reports whether a request may change an object. Reviews change none.
func changesObjects(q kinds.Request) bool {
	switch q.Verb {
	case "get", "list", "watch", "head", "options":
		return false
	}
	return !isStream(q) && q.Group != authenticationv1.GroupName && q.Group != authorizationv1.GroupName
}

// createdByUpdate are the resources that an update creates, as in kube-apiserver.
var createdByUpdate = []string{"events", "leases"}

// needs returns the permissions that a request requires. It checks the existence of an object only
// where that matters.
func (a *Access) needs(q kinds.Request, r *http.Request) ([]kinds.Request, error) {
	list := []kinds.Request{q}
	create := q
	create.Verb = "create"
	switch {
	case q.Verb == "get" && isStream(q) && q.Subresource != "proxy":
		// A WebSocket, which begins with a GET, gives the same access to a pod as a POST. Differs
		// from kube-apiserver: the error names the missing permission.
		return append(list, create), nil
	case q.Name == "" || q.Subresource != "" || q.Kind() == nil:
		return list, nil
	case q.Verb == "patch" && isApply(r), q.Verb == "update" && slices.Contains(createdByUpdate, q.Resource):
		namespace := q.Namespace
		if !q.Kind().Namespaced {
			namespace = ""
		}
		_, err := a.cfg.Objects.Get(r.Context(), q.Kind(), namespace, q.Name)
		if isNotFound(err) {
			return append(list, create), nil
		}
		return list, err
	}
	return list, nil
}

// isApply reports whether a patch is a server-side apply, which creates a missing object.
func isApply(r *http.Request) bool {
	t, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	return err != nil || strings.HasPrefix(t, "application/apply-patch")
}
