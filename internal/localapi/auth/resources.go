package auth

import (
	"fmt"
	"slices"
	"strings"

	"berth/internal/localapi/kinds"
)

// all matches any verb, resource, subresource, namespace or path.
const all = "*"

// grant is one resource of a rule: a name, or "*", in some groups.
type grant struct {
	groups      []string // "*" is any
	plural      string   // or "*"
	subresource string   // "" is the object itself; "*" is any of its subresources
}

// everything is the meaning of "*": all resources with all subresources.
var everything = grant{groups: []string{all}, plural: all, subresource: all}

func (g grant) matches(q kinds.Request) bool {
	if g.plural == all && g.subresource == all {
		return true
	}
	return (slices.Contains(g.groups, all) || slices.Contains(g.groups, q.Group)) &&
		(g.plural == all || g.plural == q.Resource) &&
		(g.subresource == q.Subresource || g.subresource == all && q.Subresource != "")
}

// names returns the resource as RBAC rules write it, such as "pods/log".
func (g grant) names() string {
	switch {
	case g.plural == all && g.subresource == all:
		return all
	case g.subresource != "":
		return g.plural + "/" + g.subresource
	}
	return g.plural
}

// others are resources of rules that are no kinds of objects: reviews, what Impersonate headers
// name, metrics, and the node API's subresources of nodes. Any key is a subresource of userextras.
var others = []struct {
	group, plural string
	subresources  []string
}{
	{"", "users", nil},
	{"", "groups", nil},
	{"", "nodes", []string{"checkpoint", "configz", "healthz", "log", "metrics", "pods", "stats", "statusz"}},
	{"authentication.k8s.io", "uids", nil},
	{"authentication.k8s.io", "userextras", []string{all}},
	{"authentication.k8s.io", "selfsubjectreviews", nil},
	{"authentication.k8s.io", "tokenreviews", nil},
	{"authorization.k8s.io", "localsubjectaccessreviews", nil},
	{"authorization.k8s.io", "selfsubjectaccessreviews", nil},
	{"authorization.k8s.io", "selfsubjectrulesreviews", nil},
	{"authorization.k8s.io", "subjectaccessreviews", nil},
	{kinds.Berth.Group, "pods", []string{"explain"}},
	{"metrics.k8s.io", "nodes", nil},
	{"metrics.k8s.io", "pods", nil},
}

// parseResource parses a resource of a rule: "pods", "pods/log", "pods/*", "*/status", "*",
// "leases.coordination.k8s.io", "leases". Without a group it matches all kinds of that name.
func parseResource(text string) (grant, error) {
	if text == all {
		return everything, nil
	}
	full, subresource, has := strings.Cut(text, "/")
	plural, group, grouped := strings.Cut(full, ".")
	g := grant{plural: plural, subresource: subresource}
	if has && subresource == "" || plural == "" {
		return g, fmt.Errorf("%q is no resource: write it as pods, pods/log, leases.coordination.k8s.io or *", text)
	}
	known := map[string][]string{} // subresources by group
	for _, k := range kinds.All {
		if plural == all || k.Plural == plural {
			known[k.Group] = append(known[k.Group], k.Subresources...)
		}
	}
	objects := len(known) > 0
	for _, o := range others {
		// pods does not include pod metrics, but pods/explain is unambiguous.
		if o.plural == plural && (grouped || !objects || o.group == "" || slices.Contains(o.subresources, subresource)) {
			known[o.group] = append(known[o.group], o.subresources...)
		}
	}
	for of, subresources := range known {
		if grouped && of != group {
			continue
		}
		if subresource == "" || subresource == all && len(subresources) > 0 || slices.Contains(subresources, subresource) || slices.Contains(subresources, all) {
			g.groups = append(g.groups, of)
		}
	}
	slices.Sort(g.groups)
	if len(g.groups) > 0 {
		return g, nil
	}
	return g, unknownResource(text, full, known)
}

// unknownResource returns the error for an unknown resource.
func unknownResource(text, full string, known map[string][]string) error {
	if len(known) == 0 {
		var have []string
		for _, k := range kinds.All {
			have = append(have, k.Resource().String())
		}
		slices.Sort(have)
		return fmt.Errorf("the local API has no resource %q: use one of %s, or * for all", full, strings.Join(slices.Compact(have), ", "))
	}
	_, subresource, has := strings.Cut(text, "/")
	if !has {
		return fmt.Errorf("the local API has no resource %q in that group: leave the group away", full)
	}
	var have []string
	for _, subresources := range known {
		have = append(have, subresources...)
	}
	slices.Sort(have)
	return fmt.Errorf("%s has no subresource %q: it has %q", full, subresource, slices.Compact(have))
}

// global reports whether a resource is cluster-scoped. A Namespace counts as within itself.
func (g grant) global() bool {
	if g.plural == all || g.plural == "namespaces" {
		return false
	}
	for _, k := range kinds.All {
		if k.Plural == g.plural && slices.Contains(g.groups, k.Group) {
			return !k.Namespaced
		}
	}
	for _, v := range kinds.Virtuals {
		for _, r := range v.All {
			if of, _, _ := strings.Cut(r.Name, "/"); of == g.plural && slices.Contains(g.groups, v.Group) {
				return !r.Namespaced
			}
		}
	}
	return g.plural != "localsubjectaccessreviews"
}
