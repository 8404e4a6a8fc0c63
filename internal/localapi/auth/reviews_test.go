package auth_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	"berth/internal/localapi/kinds"
)

const (
	authorization  = "/apis/authorization.k8s.io/v1/"
	authentication = "/apis/authentication.k8s.io/v1/"
)

// review posts one and returns its status.
func (s *server) review(c *http.Client, path, kind, spec string) string {
	s.t.Helper()
	group, _, _ := strings.Cut(strings.TrimPrefix(path, "/apis/"), "/")
	got := s.do(c, "POST "+path, `{"apiVersion":"`+group+`/v1","kind":"`+kind+`","spec":`+spec+`}`)
	var o struct {
		Status  json.RawMessage
		Message string
	}
	if err := json.Unmarshal([]byte(got.body), &o); err != nil {
		s.t.Fatalf("%d %s: %v", got.code, got.body, err)
	}
	if got.code != http.StatusCreated {
		return o.Message
	}
	return string(o.Status)
}

func TestReviews(t *testing.T) {
	s := newServer(t, rules)
	s.putAccount()
	ci, reviewer := s.client("ci"), s.client("reviewer")
	byLine := func(line string) string {
		return `{"allowed":true,"reason":"allowed by line ` + line + ` of ` + s.rulesPath() + `"}`
	}
	for _, c := range []struct {
		name             string
		client           *http.Client
		path, kind, spec string
		want             string
	}{
		{"may", ci, authorization + "selfsubjectaccessreviews", "SelfSubjectAccessReview", `{"resourceAttributes":{"verb":"list","resource":"pods","namespace":"x"}}`, byLine("3")},
		{"may not", ci, authorization + "selfsubjectaccessreviews", "SelfSubjectAccessReview", `{"resourceAttributes":{"verb":"list","resource":"pods"}}`, `{"allowed":false}`},
		{"may a path", ci, authorization + "selfsubjectaccessreviews", "SelfSubjectAccessReview", `{"nonResourceAttributes":{"verb":"get","path":"/version"}}`, `{"allowed":true,"reason":"allowed to the group system:authenticated"}`},
		{"neither", ci, authorization + "selfsubjectaccessreviews", "SelfSubjectAccessReview", `{}`, `.authorization.k8s.io "" is invalid: spec.resourceAttributes: Invalid value: null: exactly one of nonResourceAttributes or resourceAttributes must be specified`},
		{"both", ci, authorization + "selfsubjectaccessreviews", "SelfSubjectAccessReview", `{"nonResourceAttributes":{},"resourceAttributes":{}}`, `.authorization.k8s.io "" is invalid: spec.nonResourceAttributes: Invalid value: {"Path":"","Verb":""}: cannot be specified in combination with resourceAttributes`},
		{"of another", reviewer, authorization + "subjectaccessreviews", "SubjectAccessReview", `{"user":"m","groups":["readers"],"resourceAttributes":{"verb":"list","resource":"nodes"}}`, byLine("20")},
		{"of masters", reviewer, authorization + "subjectaccessreviews", "SubjectAccessReview", `{"groups":["system:masters"],"resourceAttributes":{"verb":"*","resource":"*"}}`, `{"allowed":true}`},
		{"of nobody", reviewer, authorization + "subjectaccessreviews", "SubjectAccessReview", `{"resourceAttributes":{"verb":"*","resource":"*"}}`, `.authorization.k8s.io "" is invalid: spec.user: Invalid value: "": at least one of user or group must be specified`},
		{"all resources", reviewer, authorization + "subjectaccessreviews", "SubjectAccessReview", `{"user":"prometheus","resourceAttributes":{"verb":"get"}}`, `{"allowed":false}`},
		{"of another namespace", reviewer, authorization + "namespaces/x/localsubjectaccessreviews", "LocalSubjectAccessReview", `{"user":"ci","resourceAttributes":{"namespace":"y","verb":"get","resource":"pods"}}`, `.authorization.k8s.io "" is invalid: spec.resourceAttributes.namespace: Invalid value: "y": must match metadata.namespace`},
		{"local", reviewer, authorization + "namespaces/x/localsubjectaccessreviews", "LocalSubjectAccessReview", `{"user":"ci","resourceAttributes":{"namespace":"x","verb":"get","resource":"pods"}}`, byLine("3")},
		{"who may not review", ci, authorization + "subjectaccessreviews", "SubjectAccessReview", `{}`, `subjectaccessreviews.authorization.k8s.io is forbidden: User "ci" cannot create resource "subjectaccessreviews" in API group "authorization.k8s.io" at the cluster scope`},
		{"rules of no namespace", ci, authorization + "selfsubjectrulesreviews", "SelfSubjectRulesReview", `{}`, "no namespace on request"},
		{
			"rules", ci, authorization + "selfsubjectrulesreviews", "SelfSubjectRulesReview", `{"namespace":"x"}`,
			`{"resourceRules":[{"verbs":["create"],"apiGroups":["authorization.k8s.io"],"resources":["selfsubjectaccessreviews"]},{"verbs":["create"],"apiGroups":["authorization.k8s.io"],"resources":["selfsubjectrulesreviews"]},` +
				`{"verbs":["create"],"apiGroups":["authentication.k8s.io"],"resources":["selfsubjectreviews"]},{"verbs":["get","list","watch"],"apiGroups":[""],"resources":["pods"]},{"verbs":["get","list","watch"],"apiGroups":[""],"resources":["pods/log"]}],` +
				`"nonResourceRules":[{"verbs":["get"],"nonResourceURLs":["/api","/api/*","/apis","/apis/*","/healthz","/livez","/openapi","/openapi/*","/readyz","/version","/version/"]}],"incomplete":false}`,
		},
		{"no token", reviewer, authentication + "tokenreviews", "TokenReview", `{}`, "token is required for TokenReview in authentication"},
		{"rubbish", reviewer, authentication + "tokenreviews", "TokenReview", `{"token":"rubbish"}`, `{"user":{},"error":"invalid bearer token"}`},
	} {
		if diff := cmp.Diff(c.want, s.review(c.client, c.path, c.kind, c.spec)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.name, diff)
		}
	}
}

func TestTokenReview(t *testing.T) {
	s := newServer(t, rules)
	s.putAccount()
	reviewer := s.client("reviewer")
	made := s.do(reviewer, "POST /api/v1/namespaces/x/serviceaccounts/robot/token",
		`{"kind":"TokenRequest","apiVersion":"authentication.k8s.io/v1","spec":{"audiences":["a","b"],"boundObjectRef":{"kind":"Pod","apiVersion":"v1","name":"web"}}}`)
	var request authenticationv1.TokenRequest
	if err := json.Unmarshal([]byte(made.body), &request); err != nil || made.code != http.StatusCreated || request.Status.Token == "" || request.Name != "robot" || request.Namespace != "x" {
		t.Fatalf("%d %s: %v", made.code, made.body, err)
	}
	_, claims := claimsOf(t, request.Status.Token)
	want := `{"authenticated":true,"user":{"username":"system:serviceaccount:x:robot","uid":"uid-of-robot","groups":["system:serviceaccounts","system:serviceaccounts:x","system:authenticated"],` +
		`"extra":{"authentication.kubernetes.io/credential-id":["JTI=` + claims["jti"].(string) + `"],"authentication.kubernetes.io/node-name":["here"],"authentication.kubernetes.io/node-uid":["uid-of-here"],` +
		`"authentication.kubernetes.io/pod-name":["web"],"authentication.kubernetes.io/pod-uid":["uid-of-web"]}},"audiences":["a"]}`
	if got := s.review(reviewer, authentication+"tokenreviews", "TokenReview", `{"audiences":["c","a"],"token":"`+request.Status.Token+`"}`); got != want {
		t.Error(cmp.Diff(want, got))
	}
	if got := s.review(reviewer, authentication+"tokenreviews", "TokenReview", `{"token":"`+request.Status.Token+`"}`); !strings.Contains(got, `"error":"token audiences [\"a\" \"b\"] is invalid`) {
		t.Errorf("for the API: %s", got)
	}
	for _, c := range []struct {
		request string
		code    int
	}{
		{"GET " + authentication + "selfsubjectreviews", http.StatusForbidden},
		{"POST /api/v1/namespaces/x/serviceaccounts/none/token", http.StatusNotFound},
	} {
		if got := s.do(reviewer, c.request, `{"kind":"TokenRequest","apiVersion":"authentication.k8s.io/v1"}`); got.code != c.code {
			t.Errorf("%s: %d %s", c.request, got.code, got.body)
		}
	}
	admin := s.client("admin", "system:masters")
	for _, request := range []string{"GET " + authentication + "tokenreviews", "PUT " + authorization + "selfsubjectaccessreviews", "GET /api/v1/namespaces/x/serviceaccounts/robot/token"} {
		if got := s.do(admin, request, ""); got.code != http.StatusMethodNotAllowed || got.header.Get("Allow") != "POST" {
			t.Errorf("%s: %d %s", request, got.code, got.body)
		}
	}
}

// TestFormsOfReviews sends and accepts each form of the API.
func TestFormsOfReviews(t *testing.T) {
	s := newServer(t, rules)
	ci := s.client("ci")
	o := &authorizationv1.SelfSubjectAccessReview{}
	o.Spec.ResourceAttributes = &authorizationv1.ResourceAttributes{Verb: "get", Resource: "pods", Namespace: "x"}
	for _, info := range kinds.Codecs().SupportedMediaTypes() {
		codec := kinds.Codecs().CodecForVersions(info.Serializer, kinds.Codecs().UniversalDeserializer(), authorizationv1.SchemeGroupVersion, authorizationv1.SchemeGroupVersion)
		body, err := runtime.Encode(codec, o)
		if err != nil {
			t.Fatal(err)
		}
		got := s.do(ci, "POST "+authorization+"selfsubjectaccessreviews", string(body), "Content-Type: "+info.MediaType, "Accept: text/html, "+info.MediaType)
		var back authorizationv1.SelfSubjectAccessReview
		if _, _, err := codec.Decode([]byte(got.body), nil, &back); err != nil || got.code != http.StatusCreated || !back.Status.Allowed || got.header.Get("Content-Type") != info.MediaType {
			t.Errorf("%s: %d %q %v: %v", info.MediaType, got.code, got.body, got.header, err)
		}
	}
	got := s.do(ci, "POST "+authentication+"selfsubjectreviews", "kind: SelfSubjectReview\napiVersion: authentication.k8s.io/v1\n", "Content-Type: application/yaml", "Accept: application/yaml")
	var self authenticationv1.SelfSubjectReview
	if err := yaml.Unmarshal([]byte(got.body), &self); err != nil || self.Status.UserInfo.Username != "ci" || !strings.HasPrefix(self.Status.UserInfo.Extra["authentication.kubernetes.io/credential-id"][0], "X509SHA256=") {
		t.Errorf("%d %s: %v", got.code, got.body, err)
	}
	for _, c := range []struct {
		name, body string
		headers    []string
		code       int
		want       string
	}{
		{"no body", "", nil, 400, ""},
		{"half a body", "{", nil, 400, ""},
		{"another kind", `{"kind":"Pod","apiVersion":"v1"}`, nil, 400, ""},
		{"a form that is none", "x", []string{"Content-Type: text/plain"}, 415, "unknown format"},
		{"no form that it accepts", `{"kind":"SelfSubjectReview","apiVersion":"authentication.k8s.io/v1"}`, []string{"Accept: text/html"}, 406, "406: Not Acceptable"},
		{"too much", strings.Repeat(" ", 3<<20+1), nil, 413, "limit is 3145728"},
	} {
		if got := s.do(ci, "POST "+authentication+"selfsubjectreviews", c.body, c.headers...); got.code != c.code || !strings.Contains(got.status(t).Message, c.want) {
			t.Errorf("%s: %d %s", c.name, got.code, got.body)
		}
	}
	unknown := `{"kind":"SelfSubjectReview","apiVersion":"authentication.k8s.io/v1","spec":1}`
	if got := s.do(ci, "POST "+authentication+"selfsubjectreviews", unknown); got.code != http.StatusCreated || got.header.Get("Warning") != `299 - "unknown field \"spec\""` {
		t.Errorf("an unknown field: %d %s %v", got.code, got.body, got.header)
	}
	if got := s.do(ci, "POST "+authentication+"selfsubjectreviews?fieldValidation=Strict", unknown); got.code != http.StatusBadRequest || !strings.Contains(got.body, "unknown field") {
		t.Errorf("an unknown field, strictly: %d %s", got.code, got.body)
	}
}
