package kube_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"berth/internal/cluster/kube"
	"berth/internal/cluster/kube/kubetest"
)

// calls are calls of each kind: what they ask for is named a.
var calls = map[string]func(t *testing.T, c *kube.Client) error{
	"get": func(t *testing.T, c *kube.Client) error { _, err := c.GetPod(t.Context(), "default", "a"); return err },
	"create": func(t *testing.T, c *kube.Client) error {
		_, err := c.CreateNode(t.Context(), &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a"}})
		return err
	},
	"update": func(t *testing.T, c *kube.Client) error {
		_, err := c.UpdateLease(t.Context(), &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "a"}})
		return err
	},
	"patch": func(t *testing.T, c *kube.Client) error {
		return c.PatchPodStatus(t.Context(), "default", "a", []byte(`{"status":{"phase":"Running"}}`))
	},
	"delete": func(t *testing.T, c *kube.Client) error { return c.DeletePod(t.Context(), "default", "a", "") },
	"token": func(t *testing.T, c *kube.Client) error {
		_, err := (kube.PodObjects{Client: c}).CreateToken(t.Context(), "default", "a", &authenticationv1.TokenRequest{})
		return err
	},
	"token review": func(t *testing.T, c *kube.Client) error {
		_, err := c.CreateTokenReview(t.Context(), &authenticationv1.TokenReview{})
		return err
	},
	"access review": func(t *testing.T, c *kube.Client) error {
		_, err := c.CreateSubjectAccessReview(t.Context(), &authorizationv1.SubjectAccessReview{})
		return err
	},
	"certificate": func(t *testing.T, c *kube.Client) error {
		_, err := c.CreateCertificateSigningRequest(t.Context(), &certificatesv1.CertificateSigningRequest{ObjectMeta: metav1.ObjectMeta{Name: "a"}})
		return err
	},
	"probe of a kind": func(t *testing.T, c *kube.Client) error {
		return kube.PodObjects{Client: c}.ProbeClusterTrustBundles(t.Context())
	},
}

func TestServesTokens(t *testing.T) {
	const list = `{"kind":"APIResourceList","groupVersion":"v1","resources":[{"name":"serviceaccounts"}`
	body := ""
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet || r.URL.Path != "/api/v1" || body == "" {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, body)
	}))
	t.Cleanup(server.Close)
	c := open(t, kube.Config{REST: &rest.Config{Host: server.URL}})
	for answer, want := range map[string]string{
		list + `,{"name":"serviceaccounts/token"}]}`: "true ",
		list + "]}":           "false ",
		`{"kind":"APIGroup"}`: `false get /api/v1: the server answered with a "APIGroup" instead of an APIResourceList`,
		`no list of anything`: "false get /api/v1: invalid character 'o' in literal null (expecting 'u')",
		"":                    "false get /api/v1: the server could not find the requested resource",
	} {
		body = answer
		serves, err := (kube.PodObjects{Client: c}).ServesTokens(t.Context())
		if got := fmt.Sprint(serves, " ", text(err)); got != want {
			t.Errorf("answer %s: got %s, want %s", answer, got, want)
		}
	}
}

func TestAnswersThatAreNoneAreErrors(t *testing.T) {
	for name, test := range map[string]struct{ body, want string }{
		"another kind":       {`{"kind":"Secret","apiVersion":"v1","metadata":{"name":"a","namespace":"default","resourceVersion":"9"}}`, "with a Secret instead of a"},
		"a list of another":  {`{"kind":"SecretList","apiVersion":"v1","metadata":{"resourceVersion":"9"},"items":[]}`, "with a SecretList instead of a"},
		"another version":    {`{"kind":"Pod","apiVersion":"v2","metadata":{"name":"a","resourceVersion":"9"}}`, `no kind "Pod" is registered for version "v2"`},
		"without a kind":     {`{"metadata":{"name":"a","namespace":"default","resourceVersion":"9"}}`, "that has no kind or no apiVersion"},
		"empty object":       {`{}`, "that has no kind or no apiVersion"},
		"not an object":      {`[]`, "cannot unmarshal"},
		"half":               {`{"kind":"Pod","apiVersion":"v1",`, "unexpected end of JSON input"},
		"nothing":            {``, ""},
		"an unsaid failure":  {`{"kind":"Status","apiVersion":"v1","status":"Failure","message":"later"}`, "later"},
		"without an outcome": {`{"kind":"Status","apiVersion":"v1"}`, ""},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *kubetest.Server, c *kube.Client) {
				s.Inject(kubetest.Fault{Then: kubetest.Say(test.body)})
				for call, do := range calls {
					if err := do(t, c); err == nil || !strings.Contains(err.Error(), test.want) {
						t.Errorf("%s: error = %v, want one with %q", call, err, test.want)
					}
				}
			})
		})
	}
}

// A kept object has a resourceVersion and the name that was asked for; an answer to a question has
// neither.
func TestAnswersAboutAnotherObjectAreErrors(t *testing.T) {
	bubble(t, func(t *testing.T, s *kubetest.Server, c *kube.Client) {
		for body, want := range map[string]string{
			`{"kind":"Pod","apiVersion":"v1","metadata":{"name":"a","namespace":"default"}}`:                       "get pod default/a: the server answered with a Pod without metadata.resourceVersion",
			`{"kind":"Pod","apiVersion":"v1","metadata":{"name":"b","namespace":"default","resourceVersion":"9"}}`: "get pod default/a: the server answered with pod default/b",
			`{"kind":"Pod","apiVersion":"v1","metadata":{"name":"a","namespace":"others","resourceVersion":"9"}}`:  "get pod default/a: the server answered with pod others/a",
			`{"kind":"Status","apiVersion":"v1","status":"Success","metadata":{"resourceVersion":"9"}}`:            "get pod default/a: the server answered with a Status instead of a Pod",
			`{"kind":"Pod","apiVersion":"v1","metadata":{"name":"a","namespace":"default","resourceVersion":"9"}}`: "",
		} {
			s.Heal()
			s.Inject(kubetest.Fault{Then: kubetest.Say(body)})
			_, err := c.GetPod(t.Context(), "default", "a")
			if got := text(err); got != want {
				t.Errorf("answer %s: error %q, want %q", body, got, want)
			}
		}
		s.Heal()
		s.Inject(kubetest.Fault{Then: kubetest.Say(`{"kind":"TokenReview","apiVersion":"authentication.k8s.io/v1","status":{"authenticated":true}}`)})
		if r, err := c.CreateTokenReview(t.Context(), &authenticationv1.TokenReview{}); err != nil || !r.Status.Authenticated {
			t.Errorf("review = %+v, %v, want that it is answered", r, err)
		}
	})
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// lies are lists of pods that are none, and streams of events that are none of pods.
var lies = []struct{ name, list, stream string }{
	{
		"another kind", `{"kind":"SecretList","apiVersion":"v1","metadata":{"resourceVersion":"99999999"},"items":[]}`,
		`{"type":"ADDED","object":{"kind":"Secret","apiVersion":"v1","metadata":{"name":"a","namespace":"default","resourceVersion":"9"}}}`,
	},
	{
		"bookmark of another kind", `{"kind":"Pod","apiVersion":"v1","metadata":{"resourceVersion":"9"}}`,
		`{"type":"BOOKMARK","object":{"kind":"Secret","apiVersion":"v1","metadata":{"resourceVersion":"9","annotations":{"k8s.io/initial-events-end":"true"}}}}`,
	},
	{"empty object", `{}`, `{}`},
	{"without a kind", `{"metadata":{"resourceVersion":"9"},"items":[]}`, `{"type":"DELETED","object":{"metadata":{"name":"a","namespace":"default","resourceVersion":"9"}}}`},
	{
		"without a version", `{"kind":"PodList","apiVersion":"v1","metadata":{},"items":[]}`,
		`{"type":"DELETED","object":{"kind":"Pod","apiVersion":"v1","metadata":{"name":"a","namespace":"default"}}}`,
	},
	{
		"bookmark without a version", `{"kind":"PodList","apiVersion":"v1","items":[]}`,
		`{"type":"BOOKMARK","object":{"kind":"Pod","apiVersion":"v1","metadata":{"annotations":{"k8s.io/initial-events-end":"true"}}}}`,
	},
	{"success", `{"kind":"Status","apiVersion":"v1","status":"Success"}`, `{"type":"DELETED","object":{"kind":"Status","apiVersion":"v1","status":"Success"}}`},
	{"half", `{"kind":"PodList","apiVersion":"v1","items":[`, `{"type":"DELETED","object":{"kind":`},
}

// A list that is none of pods is no list, and what is no event of pods changes none.
func TestWatchTakesNoListsAndEventsThatAreNone(t *testing.T) {
	for _, lie := range lies {
		for name, options := range map[string][]kubetest.Option{"watch-list": nil, "list, then watch": {kubetest.WithoutWatchList()}} {
			t.Run(lie.name+", "+name, func(t *testing.T) {
				bubble(t, func(t *testing.T, s *kubetest.Server, c *kube.Client) {
					kubetest.Put(s, newPod("a", "here"))
					untrue(s, lie.list, lie.stream)
					w := start[*v1.Pod](t, c, kube.OfNode("here"))
					advance(time.Minute)
					if _, synced := w.List(); synced || w.changes > 0 {
						t.Fatalf("before the first true list: synced %v, %d changes", synced, w.changes)
					}
					if w.Err() == nil {
						t.Error("Err = nil while there is no true list")
					}
					s.Heal()
					advance(time.Minute)
					expectNames(t, w, "a")

					untrue(s, lie.list, lie.stream)
					s.BreakWatches()
					advance(time.Minute)
					expectNames(t, w, "a")
					if a, ok := w.Get("default", "a"); !ok || a.UID == "" {
						t.Errorf("a is %+v, %v", a, ok)
					}
					s.Heal()
					kubetest.Put(s, newPod("b", "here"))
					advance(time.Minute)
					expectNames(t, w, "a", "b")
				}, options...)
			})
		}
	}
}

// untrue makes the server say of pods what is not so.
func untrue(s *kubetest.Server, list, stream string) {
	s.Inject(kubetest.Fault{Verb: "list", Resource: "pods", Then: kubetest.Say(list)})
	s.Inject(kubetest.Fault{Verb: "watch", Resource: "pods", Then: kubetest.Say(stream)})
}
