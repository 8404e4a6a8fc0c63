package auth_test

import (
	"net/http"
	"strings"
	"testing"

	"berth/internal/localapi/auth"
)

// Where nobody may write, not even an administrator may, and each is told why; what is read,
// entered or asked goes on by the rules.
func TestReadOnly(t *testing.T) {
	s := newServerOf(t, rules, auth.Config{ReadOnly: "look elsewhere"}, nil)
	admin := s.client("ann", "system:masters")
	const pod = "/api/v1/namespaces/x/pods/p"
	for _, request := range []string{
		"GET " + pod, "GET /api/v1/pods?watch=1", "GET " + pod + "/log", "POST " + pod + "/exec", "GET " + pod + "/portforward", "POST " + pod + "/attach", "HEAD " + pod,
	} {
		if got := s.do(admin, request, ""); got.code != http.StatusOK {
			t.Errorf("%s: %d %s", request, got.code, got.body)
		}
	}
	for request, want := range map[string]string{
		"DELETE " + pod:                             `pods "p" is forbidden: User "ann" cannot delete resource "pods" in API group "" in the namespace "x": look elsewhere`,
		"POST /api/v1/namespaces/x/pods":            `pods is forbidden: User "ann" cannot create resource "pods" in API group "" in the namespace "x": look elsewhere`,
		"PATCH " + pod + "/status":                  `pods "p" is forbidden: User "ann" cannot patch resource "pods/status" in API group "" in the namespace "x": look elsewhere`,
		"PUT /api/v1/nodes/n":                       `nodes "n" is forbidden: User "ann" cannot update resource "nodes" in API group "" at the cluster scope: look elsewhere`,
		"DELETE /api/v1/namespaces/x/pods":          `pods is forbidden: User "ann" cannot deletecollection resource "pods" in API group "" in the namespace "x": look elsewhere`,
		"POST /apis/apps/v1/deployments":            `deployments.apps is forbidden: User "ann" cannot create resource "deployments" in API group "apps" at the cluster scope: look elsewhere`,
		"POST /api/v1/namespaces/x/pods/p/eviction": `pods "p" is forbidden: User "ann" cannot create resource "pods/eviction" in API group "" in the namespace "x": look elsewhere`,
	} {
		if got := s.do(admin, request, ""); got.code != http.StatusForbidden || got.status(t).Message != want {
			t.Errorf("%s: %d %s", request, got.code, got.body)
		}
	}
	if got := s.do(s.client("nobody"), "GET "+pod, ""); got.code != http.StatusForbidden || strings.Contains(got.body, "elsewhere") {
		t.Errorf("somebody without rules: %d %s", got.code, got.body)
	}
	for verb, want := range map[string]string{"delete": `"allowed":false,"reason":"look elsewhere"`, "get": `"allowed":true`} {
		review := `{"kind":"SelfSubjectAccessReview","apiVersion":"authorization.k8s.io/v1","spec":{"resourceAttributes":{"verb":"` + verb + `","resource":"pods"}}}`
		if got := s.do(admin, "POST "+authorization+"selfsubjectaccessreviews", review); got.code != http.StatusCreated || !strings.Contains(got.body, want) {
			t.Errorf("may the administrator %s: %d %s, want %s", verb, got.code, got.body, want)
		}
	}
}
