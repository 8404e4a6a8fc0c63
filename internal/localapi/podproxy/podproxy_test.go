package podproxy

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth/internal/localapi/kinds"
	"berth/internal/localapi/store"
)

func containers(names ...string) []v1.Container {
	var out []v1.Container
	for _, n := range names {
		out = append(out, v1.Container{Name: n})
	}
	return out
}

// newCalls has the pods one (with the container c), many (a and b, and the init container i), none
// and waiting, which has no node.
func newCalls(t *testing.T, node http.HandlerFunc) *Calls {
	t.Helper()
	s, err := store.Open(store.Config{Path: filepath.Join(t.TempDir(), "api.db")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	for name, spec := range map[string]v1.PodSpec{
		"one":     {NodeName: "n", Containers: containers("c")},
		"many":    {NodeName: "n", Containers: containers("a", "b"), InitContainers: containers("i")},
		"none":    {NodeName: "n"},
		"waiting": {Containers: containers("c")},
	} {
		value, err := kinds.Encode(&v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "x", Name: name}, Spec: spec})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Write(store.Key{Resource: "pods", Namespace: "x", Name: name}, 0, value); err != nil {
			t.Fatal(err)
		}
	}
	return New(s, node)
}

func ask(c *Calls, method, target string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	c.ServeHTTP(w, httptest.NewRequest(method, "/api/v1/namespaces/x/pods/"+target, http.NoBody))
	return w
}

func TestWhatTheNodeIsAsked(t *testing.T) {
	c := newCalls(t, func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, r.Method, " ", r.RequestURI, " ", r.URL.Path)
	})
	for target, want := range map[string]string{
		"GET one/log": "/containerLogs/x/one/c",
		"GET one/log?container=c&follow=true&tailLines=3&insecureSkipTLSVerifyBackend=true": "/containerLogs/x/one/c?follow=true&tailLines=3",
		"GET many/log?container=i&previous=true":                                            "/containerLogs/x/many/i?previous=true",
		"POST one/exec?command=sh&command=-c&command=a+b&stdin=true&stdout=true&tty=true":   "/exec/x/one/c?command=sh&command=-c&command=a+b&input=1&output=1&tty=1",
		"GET many/exec?container=b&command=id&stdout=1&stderr=true&stdin=false":             "/exec/x/many/b?command=id&error=1&output=1",
		"POST many/attach?container=a&stdin=true&stdout=true&stderr=true&command=no":        "/attach/x/many/a?error=1&input=1&output=1",
		"POST none/portforward":                    "/portForward/x/none",
		"GET one/portforward?ports=80,443&ports=8": "/portForward/x/one?port=80&port=443&port=8",
	} {
		method, target, _ := strings.Cut(target, " ")
		path, _, _ := strings.Cut(want, "?")
		w := ask(c, method, target)
		if got, want := w.Body.String(), method+" "+want+" "+path; w.Code != http.StatusOK || got != want {
			t.Errorf("%s %s: %d %s, want %s", method, target, w.Code, got, want)
		}
	}
}

// The errors are those that kube-apiserver gives.
func TestRefused(t *testing.T) {
	c := newCalls(t, func(http.ResponseWriter, *http.Request) { t.Error("the node is asked") })
	for target, want := range map[string]string{
		"GET two/log":                          `404 pods "two" not found`,
		"GET many/log":                         "400 a container name must be specified for pod many, choose one of: [a b] or one of the init containers: [i]",
		"GET one/log?container=d":              "400 container d is not valid for pod one",
		"GET none/log":                         "400 a container name must be specified for pod none",
		"POST waiting/exec?command=id":         "400 pod waiting does not have a host assigned",
		"POST waiting/portforward":             "400 pod waiting does not have a host assigned",
		"POST one/log":                         "405 the server does not allow this method on the requested resource",
		"DELETE one/exec":                      "405 the server does not allow this method on the requested resource",
		"GET one/exec?container=../../run/x/y": "400 container ../../run/x/y is not valid for pod one",
	} {
		method, target, _ := strings.Cut(target, " ")
		w := ask(c, method, target)
		var s metav1.Status
		if err := json.Unmarshal(w.Body.Bytes(), &s); err != nil || fmt.Sprint(w.Code, " ", s.Message) != want || int(s.Code) != w.Code {
			t.Errorf("%s %s: %d %s, want %s", method, target, w.Code, w.Body, want)
		}
	}
	if w := ask(c, "GET", "waiting/log"); w.Code != http.StatusOK || w.Body.Len() != 0 {
		t.Errorf("the log of a pod without a node: %d %s", w.Code, w.Body)
	}
}

func TestLogs(t *testing.T) {
	code, said := 0, ""
	c := newCalls(t, func(w http.ResponseWriter, _ *http.Request) {
		if code != http.StatusOK {
			http.Error(w, said, code)
			return
		}
		_, _ = io.WriteString(w, said)
		if err := http.NewResponseController(w).Flush(); err != nil {
			t.Error(err)
		}
	})
	for _, test := range []struct {
		code   int
		said   string
		reason metav1.StatusReason
		want   string
	}{
		{http.StatusOK, "a line\n", "", "a line\n"},
		{http.StatusBadRequest, `container "c" in pod "one" is waiting to start: ContainerCreating`, metav1.StatusReasonBadRequest, `container "c" in pod "one" is waiting to start: ContainerCreating`},
		{http.StatusInternalServerError, "broken", metav1.StatusReasonInternalError, "Internal error occurred: broken"},
		{http.StatusNotFound, "gone", metav1.StatusReasonNotFound, "the server could not find the requested resource (get pods one)"},
		{http.StatusBadRequest, strings.Repeat("x", 3*maxFailure), metav1.StatusReasonBadRequest, strings.Repeat("x", maxFailure)},
	} {
		code, said = test.code, test.said
		w := ask(c, "GET", "one/log")
		got, reason := w.Body.String(), metav1.StatusReason("")
		if test.code != http.StatusOK {
			var s metav1.Status
			if err := json.Unmarshal(w.Body.Bytes(), &s); err != nil {
				t.Errorf("%d: %v in %s", test.code, err, w.Body)
			}
			got, reason = s.Message, s.Reason
		} else if kind := w.Header().Get("Content-Type"); kind != "text/plain" {
			t.Errorf("content type %q", kind)
		}
		if w.Code != test.code || got != test.want || reason != test.reason {
			t.Errorf("%d: %d, %q (%s), want %q (%s)", test.code, w.Code, got, reason, test.want, test.reason)
		}
	}
}
