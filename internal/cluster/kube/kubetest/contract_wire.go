package kubetest

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
)

// Media types of patches.
const (
	applyPatch     = "application/apply-patch+yaml"
	mergePatch     = "application/merge-patch+json"
	jsonPatch      = "application/json-patch+json"
	strategicPatch = "application/strategic-merge-patch+json"
)

// ask is one request. In path and body, $id stands for the ID of the clause.
type ask struct {
	method, path string // an empty method means GET
	body         string
	contentType  string // empty means JSON
	accept       string
	agent        string // the User-Agent
}

type reply struct {
	clause *contract
	asked  ask
	code   int
	header http.Header
	body   []byte
}

// within returns the path of a resource of core/v1 in the namespace of the clauses.
func within(rest string) string { return "/api/v1/namespaces/" + namespace + "/" + rest }

// send sends a request and reads its answer. Objects that it creates are deleted when the clause
// ends.
func (c *contract) send(a ask) *reply {
	c.Helper()
	r := c.sendOnly(a)
	path, query, _ := strings.Cut(a.path, "?")
	if r.code != http.StatusCreated || strings.Contains(query, "dryRun") {
		return r
	}
	if a.method == http.MethodPost {
		name := r.text("metadata", "name")
		if name == "" {
			return r // a Status or a table; a path without a name would mean all objects
		}
		path += "/" + name
	}
	c.Cleanup(func() {
		left := c.sendOnly(ask{method: "DELETE", path: path + "?gracePeriodSeconds=0"})
		if left.code == http.StatusOK && left.value("metadata", "finalizers") != nil {
			c.sendOnly(ask{method: "PATCH", path: path, contentType: mergePatch, body: `{"metadata":{"finalizers":null}}`})
		}
	})
	return r
}

func (c *contract) newRequest(ctx context.Context, a ask) *http.Request {
	c.Helper()
	base, _, err := rest.DefaultServerUrlFor(c.Config)
	if err != nil {
		c.Fatal(err)
	}
	at, err := url.Parse(strings.ReplaceAll(a.path, "$id", c.id))
	if err != nil {
		c.Fatal(err)
	}
	r, err := http.NewRequestWithContext(ctx, cmp.Or(a.method, http.MethodGet), base.ResolveReference(at).String(), strings.NewReader(strings.ReplaceAll(a.body, "$id", c.id)))
	if err != nil {
		c.Fatal(err)
	}
	contentType := a.contentType
	if a.body != "" {
		contentType = cmp.Or(contentType, runtime.ContentTypeJSON)
	}
	for name, value := range map[string]string{"Accept": a.accept, "Content-Type": contentType, "User-Agent": a.agent} {
		if value != "" {
			r.Header.Set(name, value)
		}
	}
	return r
}

func (c *contract) sendOnly(a ask) *reply {
	c.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), c.patience) // also during cleanup
	defer cancel()
	r := c.newRequest(ctx, a)
	client, err := rest.HTTPClientFor(c.Config)
	if err != nil {
		c.Fatal(err)
	}
	answer, err := client.Do(r)
	if err != nil {
		c.Fatal(err)
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		c.Fatalf("%s %s: %v", r.Method, r.URL, err)
	}
	return &reply{c, a, answer.StatusCode, answer.Header, body}
}

// value returns the value at a path of the answer's JSON; nil if there is none.
func (r *reply) value(path ...string) any {
	var at any
	if err := json.Unmarshal(r.body, &at); err != nil {
		return nil
	}
	for _, name := range path {
		m, _ := at.(map[string]any)
		at = m[name]
	}
	return at
}

func (r *reply) text(path ...string) string {
	s, _ := r.value(path...).(string)
	return s
}

// version returns the resource version of the answer's object.
func (r *reply) version() string { return r.text("metadata", "resourceVersion") }

// is checks the code of the answer and that it contains want, which is JSON: objects may have more
// fields, null means a missing value, "*" any value except null, $id the ID of the clause.
func (r *reply) is(code int, want string) *reply {
	r.clause.Helper()
	faults := lacking("", r.clause.json(want), r.value())
	if r.code != code {
		faults = append([]string{fmt.Sprintf("code %d, want %d", r.code, code)}, faults...)
	}
	if len(faults) > 0 {
		r.clause.Errorf("%s %s %.300s\n%s\nthe answer: %.3000s", r.asked.method, r.asked.path, r.asked.body, strings.Join(faults, "\n"), r.body)
	}
	return r
}

// must checks the code of the answer, and stops the clause if it differs.
func (r *reply) must(code int) *reply {
	r.clause.Helper()
	if r.code != code {
		r.clause.Fatalf("%s %s %.300s: code %d, want %d: %.2000s", r.asked.method, r.asked.path, r.asked.body, r.code, code, r.body)
	}
	return r
}

// refused checks that the answer is a Status with a code, a reason, which may be empty, and a
// message.
func (r *reply) refused(code int, reason, message string) *reply {
	r.clause.Helper()
	status := map[string]any{"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason, "message": message}
	if reason == "" {
		status["reason"] = nil
	}
	want, err := json.Marshal(status)
	if err != nil {
		r.clause.Fatal(err)
	}
	return r.is(code, string(want))
}

// warnings returns the texts of the answer's Warning headers.
func (r *reply) warnings() []string { return r.header.Values("Warning") }

func (r *reply) warns(want ...string) *reply {
	r.clause.Helper()
	if got := r.warnings(); !slices.Equal(got, want) {
		r.clause.Errorf("%s %s %.300s: warnings %q, want %q", r.asked.method, r.asked.path, r.asked.body, got, want)
	}
	return r
}

// lacking returns the differences of got from want.
func lacking(at string, want, got any) []string {
	switch want := want.(type) {
	case map[string]any:
		g, ok := got.(map[string]any)
		if !ok {
			return []string{fmt.Sprintf("%s is %v, want an object", at, got)}
		}
		var faults []string
		for name, value := range want {
			faults = append(faults, lacking(at+"."+name, value, g[name])...)
		}
		slices.Sort(faults)
		return faults
	case []any:
		g, ok := got.([]any)
		if !ok || len(g) != len(want) {
			return []string{fmt.Sprintf("%s is %v, want %v", at, got, want)}
		}
		var faults []string
		for i := range want {
			faults = append(faults, lacking(fmt.Sprintf("%s[%d]", at, i), want[i], g[i])...)
		}
		return faults
	}
	if want == "*" && got != nil || reflect.DeepEqual(want, got) || isLike(want, got) {
		return nil
	}
	return []string{fmt.Sprintf("%s is %#v, want %#v", at, got, want)}
}

// isLike reports whether a text matches a pattern in which … stands for any text.
func isLike(want, got any) bool {
	pattern, ok := want.(string)
	text, alsoOK := got.(string)
	before, after, cut := strings.Cut(pattern, "…")
	return ok && alsoOK && cut && len(text) >= len(before)+len(after) && strings.HasPrefix(text, before) && strings.HasSuffix(text, after)
}

// json parses JSON of the clause.
func (c *contract) json(text string) any {
	c.Helper()
	var v any
	if err := json.Unmarshal([]byte(strings.ReplaceAll(text, "$id", c.id)), &v); err != nil {
		c.Fatalf("%s: %v", text, err)
	}
	return v
}

// isText checks the media type and the beginning of the body.
func (r *reply) isText(mediaType, begins string) *reply {
	r.clause.Helper()
	if got := r.header.Get("Content-Type"); got != mediaType || !strings.HasPrefix(string(r.body), begins) {
		r.clause.Errorf("%s %s as %s: the answer is %s: %.300q, want %s that begins with %q", r.asked.method, r.asked.path, r.asked.accept, got, r.body, mediaType, begins)
	}
	return r
}

// claims checks the claims of a token.
func (c *contract) claims(token, want string) {
	c.Helper()
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		c.Fatalf("the token has %d parts, want 3", len(parts))
	}
	payload, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		c.Fatal(err)
	}
	var got any
	if err := json.Unmarshal(payload, &got); err != nil {
		c.Fatal(err)
	}
	for _, fault := range lacking("", c.json(want), got) {
		c.Errorf("claims of the token: %s: %s", fault, payload)
	}
}
