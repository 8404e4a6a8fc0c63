package auth

import (
	"context"
	"slices"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
)

// Groups and name prefixes that Kubernetes defines.
const (
	mastersGroup         = "system:masters" // superuser
	authenticatedGroup   = "system:authenticated"
	unauthenticatedGroup = "system:unauthenticated"
	anonymousUser        = "system:anonymous"
	serviceAccountPrefix = "system:serviceaccount:"
	serviceAccountsGroup = "system:serviceaccounts"
	credentialID         = "authentication.kubernetes.io/credential-id"
)

// Root is the name of the administrator: of root on the unix socket, and in the kubeconfig of the
// run directory.
const Root = "root"

// User is the user of a request.
type User struct {
	Name   string
	UID    string
	Groups []string
	Extra  map[string]authenticationv1.ExtraValue
	// By is the impersonator; nil if there is none.
	By *User

	// until is when the credentials expire, and bound are the objects that they depend on.
	until time.Time // zero: never
	bound []boundTo
}

type userKey struct{}

// WithUser returns a context with the user of a request.
func WithUser(ctx context.Context, u *User) context.Context {
	return context.WithValue(ctx, userKey{}, u)
}

// UserOf returns the user of a request; nil if it has not passed Access.
func UserOf(ctx context.Context) *User {
	u, _ := ctx.Value(userKey{}).(*User)
	return u
}

func (u *User) in(group string) bool { return slices.Contains(u.Groups, group) }

func (u *User) info() authenticationv1.UserInfo {
	return authenticationv1.UserInfo{Username: u.Name, UID: u.UID, Groups: u.Groups, Extra: u.Extra}
}

// authenticated adds the group of all authenticated users.
func authenticated(groups []string) []string {
	if slices.Contains(groups, authenticatedGroup) {
		return groups
	}
	return append(slices.Clone(groups), authenticatedGroup)
}

// serviceAccountGroups returns the groups of the service accounts of a namespace.
func serviceAccountGroups(namespace string) []string {
	return []string{serviceAccountsGroup, serviceAccountsGroup + ":" + namespace}
}

// splitServiceAccount returns the namespace and name of the service account that a user is; ok is
// false for other users.
func splitServiceAccount(user string) (namespace, name string, ok bool) {
	rest, ok := strings.CutPrefix(user, serviceAccountPrefix)
	if !ok {
		return "", "", false
	}
	namespace, name, ok = strings.Cut(rest, ":")
	return namespace, name, ok && namespace != "" && name != "" && !strings.Contains(name, ":")
}
