package kinds

import (
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

func TestRead(t *testing.T) {
	core := schema.GroupVersion{Version: "v1"}
	for _, c := range []struct {
		method, target string
		want           Request
	}{
		{"GET", "/api/v1/namespaces/a/pods/p", Request{Verb: "get", GroupVersion: core, Resource: "pods", Namespace: "a", Name: "p"}},
		{"GET", "/api/v1/namespaces/a/pods/p?watch=1", Request{Verb: "get", GroupVersion: core, Resource: "pods", Namespace: "a", Name: "p"}},
		{"GET", "/api/v1/namespaces/a/pods/p/log?follow=true", Request{Verb: "get", GroupVersion: core, Resource: "pods", Subresource: "log", Namespace: "a", Name: "p"}},
		{"GET", "/api/v1/namespaces/a/pods/p/proxy/x/y", Request{Verb: "get", GroupVersion: core, Resource: "pods", Subresource: "proxy/x/y", Namespace: "a", Name: "p"}},
		{"GET", "/api/v1/pods", Request{Verb: "list", GroupVersion: core, Resource: "pods"}},
		{"GET", "/api/v1/pods?watch=true", Request{Verb: "watch", GroupVersion: core, Resource: "pods"}},
		{"GET", "/api/v1/pods?watch", Request{Verb: "watch", GroupVersion: core, Resource: "pods"}},
		{"GET", "/api/v1/pods?watch=False", Request{Verb: "list", GroupVersion: core, Resource: "pods"}},
		{"GET", "/api/v1/pods?watch=0", Request{Verb: "list", GroupVersion: core, Resource: "pods"}},
		{"GET", "/api/v1/pods?watch=false", Request{Verb: "list", GroupVersion: core, Resource: "pods"}},
		{"GET", "/api/v1/pods?watch=no", Request{Verb: "watch", GroupVersion: core, Resource: "pods"}},
		{"GET", "/api/v1/watch/namespaces/a/pods", Request{Verb: "watch", GroupVersion: core, Resource: "pods", Namespace: "a"}},
		{"HEAD", "/api/v1/namespaces/a/pods/p", Request{Verb: "get", GroupVersion: core, Resource: "pods", Namespace: "a", Name: "p"}},
		{"POST", "/api/v1/namespaces/a/pods", Request{Verb: "create", GroupVersion: core, Resource: "pods", Namespace: "a"}},
		{"POST", "/api/v1/namespaces/a/pods/p/exec", Request{Verb: "create", GroupVersion: core, Resource: "pods", Subresource: "exec", Namespace: "a", Name: "p"}},
		{"DELETE", "/api/v1/namespaces/a/pods", Request{Verb: "deletecollection", GroupVersion: core, Resource: "pods", Namespace: "a"}},
		{"DELETE", "/api/v1/namespaces/a/pods/p", Request{Verb: "delete", GroupVersion: core, Resource: "pods", Namespace: "a", Name: "p"}},
		{"GET", "/api/v1/namespaces", Request{Verb: "list", GroupVersion: core, Resource: "namespaces"}},
		{"PUT", "/api/v1/namespaces/a", Request{Verb: "update", GroupVersion: core, Resource: "namespaces", Namespace: "a", Name: "a"}},
		{"PUT", "/api/v1/namespaces/a/finalize", Request{Verb: "update", GroupVersion: core, Resource: "namespaces", Subresource: "finalize", Namespace: "a", Name: "a"}},
		{"PATCH", "/api/v1/nodes/n/status", Request{Verb: "patch", GroupVersion: core, Resource: "nodes", Subresource: "status", Name: "n"}},
		{"GET", "/apis/coordination.k8s.io/v1/namespaces/a/leases/l", Request{Verb: "get", GroupVersion: schema.GroupVersion{Group: "coordination.k8s.io", Version: "v1"}, Resource: "leases", Namespace: "a", Name: "l"}},
		{"GET", "/apis/apps/v1/deployments", Request{Verb: "list", GroupVersion: schema.GroupVersion{Group: "apps", Version: "v1"}, Resource: "deployments"}},
		{"BREW", "/api/v1/pods", Request{GroupVersion: core, Resource: "pods"}},
		{"GET", "/api/v1", Request{Verb: "get"}},
		{"GET", "/apis/apps/v1", Request{Verb: "get"}},
		{"POST", "/version", Request{Verb: "post"}},
		{"GET", "/", Request{Verb: "get"}},
	} {
		r := httptest.NewRequest(c.method, c.target, http.NoBody)
		c.want.Path = r.URL.Path
		if diff := cmp.Diff(c.want, Read(r)); diff != "" {
			t.Errorf("%s %s (-want +got):\n%s", c.method, c.target, diff)
		}
	}
}

func TestKindsAreInTheScheme(t *testing.T) {
	for _, k := range All {
		if kinds, _, err := Scheme().ObjectKinds(k.New()); err != nil || !slices.Contains(kinds, k.GroupVersionKind) {
			t.Errorf("%s: its type is of %v, %v", k.GroupVersionKind, kinds, err)
		}
		if !slices.IsSorted(k.Subresources) {
			t.Errorf("%s: subresources are not sorted: %v", k.GroupVersionKind, k.Subresources)
		}
		if got := Find(k.Group, k.Version, k.Plural); got == nil || got.Kind != k.Kind {
			t.Errorf("%s is not found: %v", k.GroupVersionKind, got)
		}
	}
	if k := Find("apps", "v1", "deployments"); k != nil {
		t.Errorf("there are deployments: %v", k)
	}
	if got := Find("events.k8s.io", "v1", "events").Stored; got != "events" {
		t.Errorf("events of events.k8s.io are stored as %q", got)
	}
}

func TestEncode(t *testing.T) {
	for _, k := range All {
		if k.Stored != k.Resource().String() {
			continue
		}
		o := k.New()
		o.SetName("a")
		o.SetResourceVersion("7")
		value, err := Encode(o)
		if err != nil {
			t.Error(err)
			continue
		}
		if o.GetResourceVersion() != "7" {
			t.Errorf("%s: the object was changed", k.GroupVersionKind)
		}
		back, err := Decode(value, 8)
		if err != nil {
			t.Error(err)
			continue
		}
		if back.GetObjectKind().GroupVersionKind() != k.GroupVersionKind || back.GetResourceVersion() != "8" || back.GetName() != "a" {
			t.Errorf("%s comes back as %s %s, version %s", k.GroupVersionKind, back.GetObjectKind().GroupVersionKind(), back.GetName(), back.GetResourceVersion())
		}
	}
	for _, value := range [][]byte{nil, {}, []byte("k8s\x00"), []byte("k8s\x00\xff\xff"), []byte(`{"kind":"Status","apiVersion":"v1"}`), []byte("{}")} {
		if o, err := Decode(value, 1); err == nil {
			t.Errorf("%q is read as %v", value, o)
		}
	}
}

func TestOf(t *testing.T) {
	for _, k := range All {
		if got := Of(k.New()); got == nil || got.GroupVersionKind != k.GroupVersionKind {
			t.Errorf("an empty %s is of the kind %v", k.Kind, got)
		}
	}
	if got := Of(&v1.Service{}); got != nil {
		t.Errorf("a Service is of the kind %v", got)
	}
}

func TestReadNodeProxy(t *testing.T) {
	for target, want := range map[string]NodeProxy{
		"/api/v1/nodes/n/proxy":                         {"n", "/"},
		"/api/v1/nodes/n/proxy/":                        {"n", "/"},
		"/api/v1/nodes/n/proxy/metrics":                 {"n", "/metrics"},
		"/api/v1/nodes/n/proxy/logs/":                   {"n", "/logs/"},
		"/api/v1/nodes/n/proxy/logs/?query=kubelet":     {"n", "/logs/"},
		"/api/v1/nodes/https:n:10250/proxy/stats/x":     {"https:n:10250", "/stats/x"},
		"/api/v1/nodes/proxy/proxy/proxy":               {"proxy", "/proxy"},
		"/api/v1/nodes/n/proxy/%252e%252e/pods":         {"n", "/%2e%2e/pods"},
		"/api/v1/nodes/n":                               {},
		"/api/v1/nodes/n/status":                        {},
		"/api/v1/nodes/n/proxymetrics":                  {},
		"/api/v1/nodes//proxy/metrics":                  {},
		"/api/v1/watch/nodes/n/proxy/metrics":           {},
		"/api/v1/namespaces/x/nodes/n/proxy/metrics":    {},
		"/api/v1beta1/nodes/n/proxy/metrics":            {},
		"/apis/v1/nodes/n/proxy/metrics":                {},
		"/apis/example.com/v1/nodes/n/proxy/metrics":    {},
		"/api/v1/namespaces/nodes/pods/n/proxy/metrics": {},
	} {
		got, ok := ReadNodeProxy(httptest.NewRequest("GET", target, http.NoBody))
		if got != want || ok != (want != NodeProxy{}) {
			t.Errorf("%s: got %+v %v, want %+v", target, got, ok, want)
		}
		if q := Read(httptest.NewRequest("GET", target, http.NoBody)); ok && (q.Verb != "get" || q.Resource != "nodes" || q.Name != got.Node || q.Namespace != "" || q.Group != "" || q.Version != "v1") {
			t.Errorf("%s: is authorized as %+v", target, q)
		}
	}
}
