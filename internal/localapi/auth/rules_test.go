package auth_test

import (
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"berth/internal/localapi/auth"
	"berth/internal/localapi/kinds"
)

func rulesOf(t testing.TB, content string) (*auth.RulesFile, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "access.yaml")
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return auth.NewRulesFile(path, slog.New(slog.DiscardHandler)), path
}

func TestRulesThatAreBroken(t *testing.T) {
	const head = "rules:\n- users: [ci]\n"
	for _, c := range []struct{ content, want string }{
		{"rules: [", "yaml: line 1: did not find expected node content"},
		{"- a", "line 1: there must be fields with values"},
		{"rule: []", `line 1: rule: there is no such field: use ["rules"]`},
		{"rules: []\nrules: []", "line 2: rules: the field is there twice"},
		{"rules: {}", "line 1: rules: it is a list of rules"},
		{"rules:\n- ci", "line 2: rules[0]: there must be fields with values"},
		{"rules: []\n---\nrules: []", "line 2: a second document"},
		{"rules: []\n---\n[", "did not find expected node content"},
		{"a: &a []\nrules: *a", "line 1: a: there is no such field"},
		{head + "  user: [x]", "line 3: rules[0].user: there is no such field"},
		{head + "  verbs: get", "line 3: rules[0].verbs: it is a list with at least one element"},
		{head + "  verbs: []", "line 3: rules[0].verbs: it is a list with at least one element"},
		{head + "  verbs: [1]", "line 3: rules[0].verbs[0]: it must be text"},
		{head + "  verbs:\n  - get\n  - gett\n  resources: [pods]", `line 5: rules[0].verbs[1]: "gett" is no verb: use get, list, watch,`},
		{head + "  verbs: [list]\n  nonResourceURLs: [/x]", `"list" is no verb: use get, head,`},
		{head + "  verbs: [get]", "line 2: rules[0]: the rule is about nothing"},
		{head + "  resources: [pods]", "line 2: rules[0]: the rule allows nothing"},
		{"rules:\n- verbs: [get]\n  resources: [pods]", "line 2: rules[0]: the rule has no subject"},
		{head + "  verbs: [get]\n  resources: [pod]", `line 4: rules[0].resources[0]: the local API has no resource "pod": use one of configmaps,`},
		{head + "  verbs: [get]\n  resources: [pods/logs]", `pods has no subresource "logs": it has ["attach"`},
		{head + "  verbs: [get]\n  resources: [pods.apps]", `the local API has no resource "pods.apps" in that group`},
		{head + "  verbs: [get]\n  resources: [pods/]", `"pods/" is no resource`},
		{head + "  verbs: [get]\n  resources: [deployments.apps]", `the local API has no resource "deployments.apps"`},
		{head + "  verbs: [get]\n  namespaces: [x]\n  resources: [nodes]", "nodes are in no namespace"},
		{head + "  verbs: [get]\n  namespaces: [x]\n  resources: [tokenreviews]", "tokenreviews are in no namespace"},
		{head + "  verbs: [get]\n  namespaces: [x]\n  nonResourceURLs: [/x]", "line 4: rules[0].namespaces: paths are in no namespace"},
		{head + "  verbs: [get]\n  resources: [pods]\n  nonResourceURLs: [/x]", "line 5: rules[0].nonResourceURLs: a rule is about resources or about paths"},
		{head + "  verbs: [get]\n  resourceNames: [x]\n  nonResourceURLs: [/x]", "paths have no names"},
		{head + "  verbs: [get]\n  nonResourceURLs: [x]", `"x" is no path`},
		{head + "  verbs: [get]\n  nonResourceURLs: ['/*/x']", `"/*/x" is no path`},
		{head + "  verbs: [get]\n  resources: [pods]\n  groups: [\"a\\nb\"]", `"a\nb" is no name`},
		{strings.Repeat("#\n", 600<<10), "has more than 1048576 bytes"},
	} {
		f, path := rulesOf(t, c.content)
		err := f.Health()
		if err == nil || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%.100q:\n got %v\nwant %s", c.content, err, c.want)
		}
	}
	for _, content := range []string{"", "# nothing\n", "rules:\n", "rules: []\n", "{}", "null"} {
		if f, _ := rulesOf(t, content); f.Health() != nil || len(f.Rules()) != 0 {
			t.Errorf("%q: %v, %v", content, f.Health(), f.Rules())
		}
	}
}

func TestResourcesOfRules(t *testing.T) {
	in := func(group, resource, subresource string) kinds.Request {
		return kinds.Request{Verb: "get", GroupVersion: schema.GroupVersion{Group: group, Version: "v1"}, Resource: resource, Subresource: subresource, Namespace: "x", Name: "n"}
	}
	const coordination = "coordination.k8s.io"
	for _, c := range []struct {
		rule string
		yes  []kinds.Request
		no   []kinds.Request
	}{
		{"pods", []kinds.Request{in("", "pods", "")}, []kinds.Request{in("", "pods", "log"), in("metrics.k8s.io", "pods", ""), in("", "configmaps", "")}},
		{"pods.metrics.k8s.io", []kinds.Request{in("metrics.k8s.io", "pods", "")}, []kinds.Request{in("", "pods", "")}},
		{"pods/explain", []kinds.Request{in("berth.dev", "pods", "explain")}, []kinds.Request{in("berth.dev", "pods", ""), in("", "pods", "")}},
		{"pods.berth.dev/explain", []kinds.Request{in("berth.dev", "pods", "explain")}, []kinds.Request{in("", "pods", "log")}},
		{"pods/log", []kinds.Request{in("", "pods", "log")}, []kinds.Request{in("", "pods", ""), in("", "pods", "exec")}},
		{"pods/*", []kinds.Request{in("", "pods", "log"), in("", "pods", "exec")}, []kinds.Request{in("", "pods", ""), in("", "nodes", "proxy")}},
		{"*/status", []kinds.Request{in("", "pods", "status"), in("", "nodes", "status")}, []kinds.Request{in("", "pods", ""), in("", "pods", "exec")}},
		{"leases", []kinds.Request{in(coordination, "leases", "")}, []kinds.Request{in("", "leases", "")}},
		{"leases.coordination.k8s.io", []kinds.Request{in(coordination, "leases", "")}, []kinds.Request{in("", "leases", "")}},
		{"events", []kinds.Request{in("", "events", ""), in("events.k8s.io", "events", "")}, nil},
		{"events.events.k8s.io", []kinds.Request{in("events.k8s.io", "events", "")}, []kinds.Request{in("", "events", "")}},
		{"nodes/metrics", []kinds.Request{in("", "nodes", "metrics")}, []kinds.Request{in("", "nodes", "proxy")}},
		{"userextras/example.com/a", []kinds.Request{in("authentication.k8s.io", "userextras", "example.com/a")}, []kinds.Request{in("authentication.k8s.io", "userextras", "example.com/b")}},
		{"*", []kinds.Request{in("", "pods", "exec"), in("apps", "deployments", ""), in("authentication.k8s.io", "tokenreviews", "")}, nil},
	} {
		f, _ := rulesOf(t, "rules:\n- users: [u]\n  verbs: [get]\n  resources: ['"+c.rule+"']\n")
		if err := f.Health(); err != nil {
			t.Errorf("%s: %v", c.rule, err)
		}
		for _, q := range append(c.yes, c.no...) {
			_, ok := f.Rules().Allows(&auth.User{Name: "u"}, q)
			if want := slices.Contains(c.yes, q); ok != want {
				t.Errorf("%s: %s %s/%s: %v", c.rule, q.Group, q.Resource, q.Subresource, ok)
			}
			if _, ok := f.Rules().Allows(&auth.User{Name: "v", Groups: []string{"u"}}, q); ok {
				t.Errorf("%s: another user may", c.rule)
			}
		}
	}
}

// TestChangedRules changes the file in each way that an editor does, and breaks it.
func TestChangedRules(t *testing.T) {
	s := newServer(t, "")
	ci := s.client("ci")
	const mayList = "rules:\n- users: [ci]\n  verbs: [list]\n  resources: [%s]\n"
	expect := func(when, healthy string, code int) {
		t.Helper()
		if got := s.do(ci, "GET /api/v1/pods", ""); got.code != code {
			t.Errorf("%s: %d %s", when, got.code, got.body)
		}
		if err := s.door.Health(); (err == nil) != (healthy == "") || err != nil && !strings.Contains(err.Error(), healthy) {
			t.Errorf("%s: health is %v", when, err)
		}
	}
	expect("no rules", "", http.StatusForbidden)
	s.setRules(fmt.Sprintf(mayList, "pods"))
	expect("written", "", http.StatusOK)
	s.setRules(fmt.Sprintf(mayList, "pode"))
	expect("broken, as large as before", "line 4: rules[0].resources[0]", http.StatusOK)
	s.setRules(fmt.Sprintf(mayList, "nodes"))
	expect("other rules", "", http.StatusForbidden)
	next := s.rulesPath() + ".new"
	if err := os.WriteFile(next, fmt.Appendf(nil, mayList, "pods"), 0o600); err != nil {
		t.Fatal(err)
	}
	old := time.Now().Add(-time.Hour)
	if err := os.Chtimes(next, old, old); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(next, s.rulesPath()); err != nil {
		t.Fatal(err)
	}
	expect("another file, of an older date", "", http.StatusOK)
	expect("the same", "", http.StatusOK)
	if err := os.Remove(s.rulesPath()); err != nil {
		t.Fatal(err)
	}
	expect("removed", "", http.StatusForbidden)
	if err := os.Mkdir(s.rulesPath(), 0o700); err != nil {
		t.Fatal(err)
	}
	expect("a folder", "is a directory", http.StatusForbidden)
	if n := strings.Count(s.log.String(), "rules of the local API not read"); n != 2 {
		t.Errorf("%d lines of two failures:\n%s", n, s.log)
	}
}

func TestKubeconfig(t *testing.T) {
	s := newServer(t, "# mine\n\nrules:\n# the first\n- users: [a] # as it was\n  verbs: [get]\n  resources: [nodes]\n")
	grant := auth.Grant{
		Rule: auth.Rule{Users: []string{"ci"}, Groups: []string{"dev"}, Verbs: []string{"get", "list"}, Resources: []string{"pods", "pods/log"}, Namespaces: []string{"x"}},
		Life: time.Hour, Server: s.url,
	}
	var content []byte
	var wg sync.WaitGroup
	for i := range 8 { // side by side, and two of each
		g := grant
		g.Rule.Users = []string{fmt.Sprint("ci", i/2)}
		wg.Go(func() {
			made, err := auth.Kubeconfig(s.authority, s.rulesPath(), g)
			if err != nil {
				t.Error(err)
			}
			if i == 0 {
				content = made
			}
		})
	}
	wg.Wait()
	written, err := os.ReadFile(s.rulesPath())
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(written), "verbs: [get, list]"); n != 4 {
		t.Errorf("%d rules of 4 users:\n%s", n, written)
	}
	for _, want := range []string{"# mine\n", "# the first\n", "# as it was\n", "namespaces: [x]\n    resources: [pods, pods/log]"} {
		if !strings.Contains(string(written), want) {
			t.Errorf("%q is not in\n%s", want, written)
		}
	}
	c := clientOf(t, content)
	if got := s.do(c, "GET /api/v1/namespaces/x/pods/p/log", ""); got.code != http.StatusOK || !strings.Contains(got.body, `"Groups":["dev","system:authenticated"]`) {
		t.Errorf("%d %s", got.code, got.body)
	}
	if got := s.do(c, "GET /api/v1/pods", ""); got.code != http.StatusForbidden {
		t.Errorf("%d %s", got.code, got.body)
	}
	if !strings.Contains(string(content), "namespace: x\n") {
		t.Errorf("the namespace is not in\n%s", content)
	}
	for _, c := range []struct {
		change func(*auth.Grant)
		want   string
	}{
		{func(g *auth.Grant) { g.Rule.Users = nil }, "a kubeconfig is of one user"},
		{func(g *auth.Grant) { g.Rule.Users = []string{""} }, "a user needs a name"},
		{func(g *auth.Grant) { g.Rule.Users = []string{"a\nb"} }, `"a\nb" is no name`},
		{func(g *auth.Grant) { g.Life = time.Second }, "it may be for 1m0s to 87600h0m0s"},
		{func(g *auth.Grant) { g.Rule.Resources = []string{"pod"} }, `rule of "ci": resources: the local API has no resource "pod"`},
		{func(g *auth.Grant) { g.Rule.Verbs = nil }, "the rule allows nothing: add verbs"},
	} {
		g := grant
		c.change(&g)
		if _, err := auth.Kubeconfig(s.authority, s.rulesPath(), g); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("got %v, want %s", err, c.want)
		}
	}
	s.setRules("rules: broken")
	if _, err := auth.Kubeconfig(s.authority, s.rulesPath(), grant); err == nil || !strings.Contains(err.Error(), "line 1: rules: it is a list") {
		t.Errorf("over broken rules: %v", err)
	}
	if err := os.Remove(s.rulesPath()); err != nil {
		t.Fatal(err)
	}
	if _, err := auth.Kubeconfig(s.authority, s.rulesPath(), grant); err != nil {
		t.Fatal(err)
	}
	written, err = os.ReadFile(s.rulesPath())
	want := "# Who may do what at the local API of Berth. A change holds at once.\n\nrules:\n  - users: [ci]\n    verbs: [get, list]\n    namespaces: [x]\n    resources: [pods, pods/log]\n"
	if err != nil || string(written) != want {
		t.Errorf("%v\n%s", err, written)
	}
}

func TestRemoveUser(t *testing.T) {
	for _, c := range []struct {
		name, content, want string
		named               int
	}{
		{"no file", "", "", 0},
		{"none of its", "# mine\nrules:\n    - users: [a]\n      verbs: [get]\n      resources: [pods]\n", "# mine\nrules:\n    - users: [a]\n      verbs: [get]\n      resources: [pods]\n", 0},
		{
			"its own, one with others, one with a group",
			"# mine\nrules:\n  # of ci\n  - users: [ci]\n    verbs: [get]\n    resources: [pods]\n  # of both\n  - users: [ci, a] # two\n    verbs: [list]\n    resources: [pods]\n" +
				"  - users: [ci]\n    groups: [dev]\n    verbs: [watch]\n    resources: [pods]\n  - groups: [ci]\n    verbs: [get]\n    resources: [nodes]\n",
			"# mine\nrules:\n  # of both\n  - users: [a] # two\n    verbs: [list]\n    resources: [pods]\n" +
				"  - groups: [dev]\n    verbs: [watch]\n    resources: [pods]\n  - groups: [ci]\n    verbs: [get]\n    resources: [nodes]\n",
			3,
		},
		{"the last", "rules:\n- users: [ci, ci]\n  verbs: [get]\n  resources: [pods]\n", "rules: []\n", 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			f, path := rulesOf(t, c.content)
			named, err := auth.RemoveUser(path, "ci")
			if err != nil || named != c.named {
				t.Errorf("%d rules, %v; want %d", named, err, c.named)
			}
			got, err := os.ReadFile(path)
			if err != nil || string(got) != c.want {
				t.Errorf("%v, got\n%s\nwant\n%s", err, got, c.want)
			}
			if err := f.Health(); err != nil {
				t.Error(err)
			}
		})
	}
	_, path := rulesOf(t, "rules: broken")
	if _, err := auth.RemoveUser(path, "ci"); err == nil || !strings.Contains(err.Error(), "line 1: rules: it is a list") {
		t.Errorf("of broken rules: %v", err)
	}
}

// TestRulesThroughALink keeps a link a link.
func TestRulesThroughALink(t *testing.T) {
	_, path := rulesOf(t, "rules:\n- users: [ci]\n  verbs: [get]\n  resources: [pods]\n")
	link := filepath.Join(t.TempDir(), "access.yaml")
	if err := os.Symlink(path, link); err != nil {
		t.Fatal(err)
	}
	if _, err := auth.RemoveUser(link, "ci"); err != nil {
		t.Fatal(err)
	}
	if to, err := os.Readlink(link); err != nil || to != path {
		t.Errorf("the link leads to %q, %v", to, err)
	}
	if got, err := os.ReadFile(path); err != nil || string(got) != "rules: []\n" {
		t.Errorf("%q, %v", got, err)
	}
}

// FuzzRules has no content of a file make a rule that is nobody's, or break anything; what is
// good stays good when a rule is added.
func FuzzRules(f *testing.F) {
	for _, seed := range []string{rules, "", "rules:", "rules: [{users: [a], verbs: ['*'], resources: ['*/*']}]", "rules: [{users: &a [x], groups: *a}]", "a: [[[[[[", "rules:\n- <<: {users: [a]}", "\x00", "rules: !!binary x"} {
		f.Add(seed)
	}
	dir := f.TempDir()
	authority, err := auth.OpenAuthority(dir)
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, content string) {
		file, path := rulesOf(t, content)
		if file.Health() != nil {
			return
		}
		for _, r := range file.Rules() {
			if len(r.Users)+len(r.Groups) == 0 || len(r.Verbs) == 0 || (len(r.Resources) == 0) == (len(r.NonResourceURLs) == 0) {
				t.Errorf("%q has the rule %+v", content, r)
			}
		}
		before := len(file.Rules())
		_, err := auth.Kubeconfig(authority, path, auth.Grant{
			Rule: auth.Rule{Users: []string{"somebody else"}, Verbs: []string{"get"}, Resources: []string{"nodes"}}, Life: time.Hour,
		})
		if err == nil && file.Health() == nil && len(file.Rules()) != before && len(file.Rules()) != before+1 {
			t.Errorf("%q: %d rules, and then %d", content, before, len(file.Rules()))
		}
		if err == nil && file.Health() != nil {
			t.Errorf("%q: with one more rule: %v", content, file.Health())
		}
	})
}
