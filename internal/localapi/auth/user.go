package auth

import (
	"context"
	"slices"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
)

// The groups and the prefixes of names that Kubernetes gives a meaning.
const (
	mastersGroup         = "system:masters" // may everything
	authenticatedGroup   = "system:authenticated"
	unauthenticatedGroup = "system:unauthenticated"
	anonymousUser        = "system:anonymous"
	serviceAccountPrefix = "system:serviceaccount:"
	serviceAccountsGroup = "system:serviceaccounts"
	credentialID         = "authentication.kubernetes.io/credential-id"
)

// Root is the name of the administrator: of root on the unix socket, and of the kubeconfig in the
// run directory.
const Root = "root"

// User is who a request is for.
type User struct {
	Name   string
	UID    string
	Groups []string
	Extra  map[string]authenticationv1.ExtraValue
	// By is who acts for this user by Impersonate-User; nil if nobody does.
	By *User

	// until is how long what the user has shown is good, and bound what it is good with.
	until time.Time // zero: for ever
	bound []boundTo
}

type userKey struct{}

// WithUser returns a context of a request of the user.
func WithUser(ctx context.Context, u *User) context.Context {
	return context.WithValue(ctx, userKey{}, u)
}

// UserOf returns who a request is for; nil if it has not come through Access.
func UserOf(ctx context.Context) *User {
	u, _ := ctx.Value(userKey{}).(*User)
	return u
}

func (u *User) in(group string) bool { return slices.Contains(u.Groups, group) }

// info is the user as the API shows it.
func (u *User) info() authenticationv1.UserInfo {
	return authenticationv1.UserInfo{Username: u.Name, UID: u.UID, Groups: u.Groups, Extra: u.Extra}
}

// authenticated adds the group of all who are known.
func authenticated(groups []string) []string {
	if slices.Contains(groups, authenticatedGroup) {
		return groups
	}
	return append(slices.Clone(groups), authenticatedGroup)
}

// serviceAccountGroups are the groups of all service accounts of a namespace.
func serviceAccountGroups(namespace string) []string {
	return []string{serviceAccountsGroup, serviceAccountsGroup + ":" + namespace}
}

// splitServiceAccount returns the namespace and the name of the service account that a user is; ok
// is false for another user.
func splitServiceAccount(user string) (namespace, name string, ok bool) {
	rest, ok := strings.CutPrefix(user, serviceAccountPrefix)
	if !ok {
		return "", "", false
	}
	namespace, name, ok = strings.Cut(rest, ":")
	return namespace, name, ok && namespace != "" && name != "" && !strings.Contains(name, ":")
}
