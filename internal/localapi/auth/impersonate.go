package auth

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"berth/internal/localapi/kinds"
)

// impersonate returns the user that the Impersonate headers name, if u may impersonate it, else u.
// Errors are API errors.
func (a *Access) impersonate(u *User, h http.Header) (*User, error) {
	name, groups, uid, extra := h.Get("Impersonate-User"), h.Values("Impersonate-Group"), h.Get("Impersonate-Uid"), impersonatedExtra(h)
	if name == "" {
		if len(groups) > 0 || uid != "" || len(extra) > 0 {
			return nil, apierrors.NewInternalError(fmt.Errorf("requested %v without impersonating a user", describeHeaders(groups, uid, extra)))
		}
		return u, nil
	}
	target := &User{Name: name, UID: uid, Groups: slices.Clone(groups), Extra: extra, By: u}
	rules := a.cfg.Rules.Rules()
	for _, q := range impersonations(target) {
		if _, ok := rules.Allows(u, q); !ok {
			return nil, forbidden(u, q, "")
		}
	}
	if namespace, _, ok := splitServiceAccount(name); ok && len(groups) == 0 {
		target.Groups = serviceAccountGroups(namespace)
	}
	switch {
	case name != anonymousUser:
		target.Groups = authenticated(target.Groups)
	case !target.in(unauthenticatedGroup):
		target.Groups = append(target.Groups, unauthenticatedGroup)
	}
	return target, nil
}

// describeHeaders lists the headers that were set without a user.
func describeHeaders(groups []string, uid string, extra map[string]authenticationv1.ExtraValue) string {
	var list []string
	for _, g := range groups {
		list = append(list, "group "+g)
	}
	if uid != "" {
		list = append(list, "uid "+uid)
	}
	for key := range extra {
		list = append(list, "extra "+key)
	}
	slices.Sort(list)
	return strings.Join(list, ", ")
}

// impersonations returns the permissions that are required to impersonate a user.
func impersonations(target *User) []kinds.Request {
	core := schema.GroupVersion{Version: "v1"}
	authn := authenticationv1.SchemeGroupVersion
	permission := func(gv schema.GroupVersion, resource, name string) kinds.Request {
		return kinds.Request{Verb: "impersonate", GroupVersion: gv, Resource: resource, Name: name}
	}
	user := permission(core, "users", target.Name)
	if namespace, name, ok := splitServiceAccount(target.Name); ok {
		user = permission(core, "serviceaccounts", name)
		user.Namespace = namespace
	}
	list := []kinds.Request{user}
	for _, g := range target.Groups {
		list = append(list, permission(core, "groups", g))
	}
	for key, values := range target.Extra {
		for _, v := range values {
			q := permission(authn, "userextras", v)
			q.Subresource = key
			list = append(list, q)
		}
	}
	if target.UID != "" {
		list = append(list, permission(authn, "uids", target.UID))
	}
	return list
}

const extraHeader = "Impersonate-Extra-"

// impersonatedExtra returns the values of Impersonate-Extra-KEY headers; keys are percent-decoded
// and in lower case.
func impersonatedExtra(h http.Header) map[string]authenticationv1.ExtraValue {
	var extra map[string]authenticationv1.ExtraValue
	for name, values := range h {
		key, ok := strings.CutPrefix(name, extraHeader)
		if !ok {
			continue
		}
		if decoded, err := url.PathUnescape(key); err == nil {
			key = decoded
		}
		if extra == nil {
			extra = map[string]authenticationv1.ExtraValue{}
		}
		key = strings.ToLower(key)
		extra[key] = append(extra[key], values...)
	}
	return extra
}

// forbidden returns kube-apiserver's error for an unauthorized request; reason is "" if no rule
// allows it.
func forbidden(u *User, q kinds.Request, reason string) *apierrors.StatusError {
	text := describeForbidden(u, q)
	if reason != "" {
		text += ": " + reason
	}
	return apierrors.NewForbidden(schema.GroupResource{Group: q.Group, Resource: q.Resource}, q.Name, errors.New(text))
}

func describeForbidden(u *User, q kinds.Request) string {
	if !q.NamesResource() {
		return fmt.Sprintf("User %q cannot %s path %q", u.Name, q.Verb, q.Path)
	}
	resource := q.Resource
	if q.Subresource != "" {
		resource += "/" + q.Subresource
	}
	where := "at the cluster scope"
	if q.Namespace != "" {
		where = fmt.Sprintf("in the namespace %q", q.Namespace)
	}
	return fmt.Sprintf("User %q cannot %s resource %q in API group %q %s", u.Name, q.Verb, resource, q.Group, where)
}
