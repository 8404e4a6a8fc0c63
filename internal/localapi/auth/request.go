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

// asks returns what a request asks, as rules see it: of a subresource that goes on in the path, its
// name alone; of a list of one object by its name, that name.
func asks(r *http.Request) kinds.Request {
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

// isClean says whether each server reads the path of a request alike: nothing in it goes up, is
// empty, or is a slash in disguise. That holds for the path of a proxied request too.
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

// streams are the subresources of pods by which a client gets into them.
var streams = []string{"attach", "exec", "portforward", "proxy"}

func isStream(q kinds.Request) bool {
	return q.Group == "" && q.Resource == "pods" && slices.Contains(streams, q.Subresource)
}

// spanOf says whether a request goes on until its client ends it.
func spanOf(q kinds.Request, r *http.Request) span {
	if q.Verb == "watch" || isStream(q) {
		return long
	}
	if follow, err := strconv.ParseBool(r.URL.Query().Get("follow")); q.Subresource == "log" && err == nil && follow {
		return long
	}
	return short
}

// isWrite says whether a request may change something.
func isWrite(q kinds.Request) bool { return isStream(q) || changesObjects(q) }

// changesObjects says whether a request may change an object. One for a review changes none.
func changesObjects(q kinds.Request) bool {
	switch q.Verb {
	case "get", "list", "watch", "head", "options":
		return false
	}
	return !isStream(q) && q.Group != authenticationv1.GroupName && q.Group != authorizationv1.GroupName
}

// madeByUpdate are the resources of which an update makes what is not there, as of kube-apiserver.
var madeByUpdate = []string{"events", "leases"}

// needs are the rights that a request needs. Whether an object is there is asked only where it
// matters.
func (a *Access) needs(q kinds.Request, r *http.Request) ([]kinds.Request, error) {
	list := []kinds.Request{q}
	create := q
	create.Verb = "create"
	switch {
	case q.Verb == "get" && isStream(q) && q.Subresource != "proxy":
		// By a WebSocket, which begins with a GET, a client gets into a pod as by a POST.
		// Differs from kube-apiserver: the refusal says what is lacking.
		return append(list, create), nil
	case q.Name == "" || q.Subresource != "" || q.Kind() == nil:
		return list, nil
	case q.Verb == "patch" && isApply(r), q.Verb == "update" && slices.Contains(madeByUpdate, q.Resource):
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

// isApply says whether a patch is a server-side apply, which makes the object if there is none.
func isApply(r *http.Request) bool {
	t, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	return err != nil || strings.HasPrefix(t, "application/apply-patch")
}
