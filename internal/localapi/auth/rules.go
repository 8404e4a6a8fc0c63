package auth

import (
	"fmt"
	"slices"
	"strings"

	"berth/internal/localapi/kinds"
)

// Rule allows users, and members of groups, any of Verbs on any of Resources, or on any of
// NonResourceURLs.
type Rule struct {
	Users  []string
	Groups []string
	Verbs  []string
	// Namespaces restrict the rule; empty matches all, and cluster-scoped resources.
	Namespaces []string
	// Resources are plurals, with their group unless it is core, and subresources: "pods",
	// "pods/log", "leases.coordination.k8s.io", "*/status", "*".
	Resources []string
	// ResourceNames restrict the rule to objects; empty matches all.
	ResourceNames []string
	// NonResourceURLs are paths; a trailing * matches any suffix.
	NonResourceURLs []string

	grants []grant
	why    string // the reason that authorization reports
}

// Rules are the rules in force. They are immutable.
type Rules []Rule

var (
	resourceVerbs = []string{"get", "list", "watch", "create", "update", "patch", "delete", "deletecollection", "impersonate"}
	pathVerbs     = []string{"get", "head", "post", "put", "patch", "delete", "options"}
)

// builtIn are the permissions that kube-apiserver's roles system:discovery,
// system:public-info-viewer and system:basic-user grant to every authenticated user, and
// system:service-account-issuer-discovery to every service account.
var builtIn = func() Rules {
	known := []string{authenticatedGroup}
	rules := Rules{
		{Groups: known, Verbs: []string{"get"}, NonResourceURLs: []string{
			"/api", "/api/*", "/apis", "/apis/*", "/healthz", "/livez", "/openapi", "/openapi/*", "/readyz", "/version", "/version/",
		}},
		{Groups: known, Verbs: []string{"create"}, Resources: []string{"selfsubjectaccessreviews", "selfsubjectrulesreviews", "selfsubjectreviews"}},
		{Groups: []string{serviceAccountsGroup}, Verbs: []string{"get"}, NonResourceURLs: []string{openIDPath, keysPath}},
	}
	for i := range rules {
		if err := rules[i].prepare(); err != nil {
			panic("the rules that are built in: " + err.err.Error()) // does not depend on input
		}
		rules[i].why = "allowed to the group " + rules[i].Groups[0]
	}
	return rules
}()

type fieldError struct {
	field string
	index int // of the element; -1 is the field itself
	err   error
}

// prepare validates a rule and computes its grants.
func (r *Rule) prepare() *fieldError {
	wrong := func(field, format string, args ...any) *fieldError {
		return &fieldError{field, -1, fmt.Errorf(format, args...)}
	}
	switch {
	case len(r.Users)+len(r.Groups) == 0:
		return wrong("", "the rule has no subject: add users or groups")
	case len(r.Verbs) == 0:
		return wrong("", "the rule allows nothing: add verbs")
	case len(r.Resources) == 0 && len(r.NonResourceURLs) == 0:
		return wrong("", "the rule is about nothing: add resources or nonResourceURLs")
	case len(r.Resources) > 0 && len(r.NonResourceURLs) > 0:
		return wrong("nonResourceURLs", "a rule is about resources or about paths: make two rules of it")
	case len(r.NonResourceURLs) > 0 && len(r.Namespaces) > 0:
		return wrong("namespaces", "paths are in no namespace: leave namespaces away")
	case len(r.NonResourceURLs) > 0 && len(r.ResourceNames) > 0:
		return wrong("resourceNames", "paths have no names: leave resourceNames away")
	}
	verbs := resourceVerbs
	if len(r.NonResourceURLs) > 0 {
		verbs = pathVerbs
	}
	for _, list := range []struct {
		field  string
		values []string
		check  func(string) error
	}{
		{"users", r.Users, checkName},
		{"groups", r.Groups, checkName},
		{"verbs", r.Verbs, func(v string) error { return checkVerb(v, verbs) }},
		{"namespaces", r.Namespaces, checkName},
		{"resources", r.Resources, r.addResource},
		{"resourceNames", r.ResourceNames, checkName},
		{"nonResourceURLs", r.NonResourceURLs, checkPath},
	} {
		for i, v := range list.values {
			if err := list.check(v); err != nil {
				return &fieldError{list.field, i, err}
			}
		}
	}
	return nil
}

func (r *Rule) addResource(text string) error {
	g, err := parseResource(text)
	if err != nil {
		return err
	}
	if len(r.Namespaces) > 0 && !slices.Contains(r.Namespaces, all) && g.global() {
		return fmt.Errorf("%s are in no namespace, and the rule is for some: make a rule without namespaces for them", text)
	}
	r.grants = append(r.grants, g)
	return nil
}

func checkVerb(verb string, verbs []string) error {
	if verb == all || slices.Contains(verbs, verb) {
		return nil
	}
	return fmt.Errorf("%q is no verb: use %s, or * for all", verb, strings.Join(verbs, ", "))
}

func checkPath(path string) error {
	if strings.HasPrefix(path, "/") && !strings.Contains(strings.TrimSuffix(path, all), all) || path == all {
		return nil
	}
	return fmt.Errorf("%q is no path: it begins with /, and a * stands at its end alone", path)
}

// maxName is the maximum length, in bytes, of the name of a user, group, namespace or object in a
// rule or a certificate.
const maxName = 253

func checkName(text string) error {
	if text == "" || len(text) > maxName || strings.ContainsFunc(text, func(r rune) bool { return r < ' ' || r == 0x7f || r == '\ufffd' }) {
		return fmt.Errorf("%q is no name: it has 1 to %d characters, and none that cannot be printed", text, maxName)
	}
	return nil
}

// Allows reports whether a user may make a request, and the reason.
func (rules Rules) Allows(u *User, q kinds.Request) (reason string, ok bool) {
	if u.in(mastersGroup) {
		return "", true // membership is the reason
	}
	for _, set := range []Rules{builtIn, rules} {
		for i := range set {
			if set[i].isFor(u) && set[i].allows(q) {
				return set[i].why, true
			}
		}
	}
	return "", false
}

// of returns the rules for a user in a namespace.
func (rules Rules) of(u *User, namespace string) Rules {
	var found Rules
	if u.in(mastersGroup) {
		found = Rules{
			{Verbs: []string{all}, grants: []grant{everything}},
			{Verbs: []string{all}, NonResourceURLs: []string{all}},
		}
	}
	for _, set := range []Rules{builtIn, rules} {
		for _, r := range set {
			if r.isFor(u) && r.holdsIn(namespace) {
				found = append(found, r)
			}
		}
	}
	return found
}

func (r *Rule) isFor(u *User) bool {
	return slices.Contains(r.Users, u.Name) || slices.ContainsFunc(r.Groups, u.in)
}

func (r *Rule) holdsIn(namespace string) bool {
	return len(r.Namespaces) == 0 || slices.Contains(r.Namespaces, all) || namespace != "" && slices.Contains(r.Namespaces, namespace)
}

func (r *Rule) allows(q kinds.Request) bool {
	if !slices.Contains(r.Verbs, all) && !slices.Contains(r.Verbs, q.Verb) {
		return false
	}
	if !q.NamesResource() {
		return slices.ContainsFunc(r.NonResourceURLs, func(p string) bool {
			prefix, open := strings.CutSuffix(p, all)
			return p == q.Path || open && strings.HasPrefix(q.Path, prefix)
		})
	}
	return r.holdsIn(q.Namespace) && (len(r.ResourceNames) == 0 || slices.Contains(r.ResourceNames, q.Name)) &&
		slices.ContainsFunc(r.grants, func(g grant) bool { return g.matches(q) })
}
