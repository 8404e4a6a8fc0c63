package trusted

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	authenticationv1 "k8s.io/api/authentication/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"

	"berth/internal/cluster/kube"
	"berth/internal/cluster/kube/kubetest"
	"berth/internal/localapi/kinds"
	"berth/internal/localapi/store"
)

var discard = slog.New(slog.DiscardHandler)

// world is a store with the agent's client over it.
type world struct {
	*testing.T
	store  *store.Store
	client *kube.Client
}

// getting answers reads out of the store, as the client of the agent reads too.
func getting(s *store.Store, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		q := kinds.Read(r)
		if q.Verb != "get" {
			next.ServeHTTP(w, r)
			return
		}
		item, err := s.Get(store.Key{Resource: q.Kind().Stored, Namespace: q.Namespace, Name: q.Name})
		if err != nil {
			kinds.Fail(w, r, apierrors.NewNotFound(q.Kind().Resource(), q.Name))
			return
		}
		o, err := kinds.Decode(item.Value, item.Revision)
		if err != nil {
			kinds.Fail(w, r, err)
			return
		}
		kinds.Answer(w, r, http.StatusOK, o)
	})
}

func newWorld(t *testing.T, contentType string) world {
	t.Helper()
	s, err := store.Open(store.Config{Path: filepath.Join(t.TempDir(), "api.db")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	calls := New(Config{Store: s, Sign: func(_ context.Context, namespace, account string, r *authenticationv1.TokenRequest) error {
		if account != "default" {
			return apierrors.NewNotFound(v1.Resource("serviceaccounts"), account)
		}
		r.Status.Token = namespace + "/" + account + " for " + r.Spec.Audiences[0]
		return nil
	}})
	server := httptest.NewServer(getting(s, calls))
	t.Cleanup(server.Close)
	client, err := kube.Open(kube.Config{REST: &rest.Config{Host: server.URL}, ContentType: contentType, Log: discard})
	if err != nil {
		t.Fatal(err)
	}
	return world{t, s, client}
}

// inBoth runs a test with each of the formats that the agent speaks.
func inBoth(t *testing.T, test func(w world)) {
	for _, format := range []string{runtime.ContentTypeProtobuf, runtime.ContentTypeJSON} {
		t.Run(filepath.Base(format), func(t *testing.T) { test(newWorld(t, format)) })
	}
}

func (w world) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

func TestNode(t *testing.T) {
	inBoth(t, func(w world) {
		ctx := w.Context()
		n, err := w.client.CreateNode(ctx, &v1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: "n", Labels: map[string]string{"a": "1", "b": "2"}},
			Status:     v1.NodeStatus{Conditions: []v1.NodeCondition{{Type: "Ready", Status: "False"}, {Type: "Disk", Status: "True"}}},
		})
		w.must(err)
		if n.UID == "" || n.CreationTimestamp.IsZero() || n.ResourceVersion == "" {
			w.Errorf("metadata = %+v", n.ObjectMeta)
		}
		if _, err := w.client.CreateNode(ctx, n); !apierrors.IsAlreadyExists(err) {
			w.Errorf("a second node of the name: %v", err)
		}
		changed := n.DeepCopy()
		changed.Status.Conditions[0].Status = "True"
		changed.Labels = nil // no part of the status
		n, err = w.client.PatchNodeStatus(ctx, n, changed)
		w.must(err)
		if n.Status.Conditions[0].Status != "True" || n.Status.Conditions[1].Type != "Disk" || len(n.Labels) != 2 {
			w.Errorf("after a patch of the status: %+v, labels %v", n.Status, n.Labels)
		}
		changed = n.DeepCopy()
		changed.Labels = map[string]string{"b": "3"}
		changed.Status.Conditions = nil // no part of the rest
		n, err = w.client.PatchNode(ctx, n, changed)
		w.must(err)
		if diff := cmp.Diff(map[string]string{"b": "3"}, n.Labels); diff != "" || len(n.Status.Conditions) != 2 {
			w.Errorf("after a patch: %s, status %+v", diff, n.Status)
		}
		other := n.DeepCopy()
		other.UID = "another"
		changed = other.DeepCopy()
		changed.Labels = nil
		if _, err := w.client.PatchNode(ctx, other, changed); !kubetest.IsOtherUID(err) {
			w.Errorf("a patch of another node: %v", err)
		}
		before := w.store.Revision()
		if _, err := w.client.PatchNode(ctx, n, n); err != nil || w.store.Revision() != before {
			w.Errorf("a patch of nothing: %v, revision %d, was %d", err, w.store.Revision(), before)
		}
	})
}

func TestPod(t *testing.T) {
	inBoth(t, func(w world) {
		ctx := w.Context()
		pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "a"}, Spec: v1.PodSpec{NodeName: "n", Containers: []v1.Container{{Name: "c", Image: "i"}}}}
		w.must(w.client.CreatePod(ctx, pod))
		p, err := w.client.GetPod(ctx, "a", "p")
		w.must(err)
		w.must(w.client.PatchPodStatus(ctx, "a", "p", []byte(`{"metadata":{"uid":"`+string(p.UID)+`"},"spec":{"nodeName":"m"},"status":{"phase":"Running"}}`)))
		p, err = w.client.GetPod(ctx, "a", "p")
		w.must(err)
		if p.Status.Phase != v1.PodRunning || p.Spec.NodeName != "n" || p.Generation != 1 {
			w.Errorf("after a patch of the status: phase %s, node %s, generation %d", p.Status.Phase, p.Spec.NodeName, p.Generation)
		}
		if err := w.client.PatchPodStatus(ctx, "a", "p", []byte(`{"metadata":{"uid":"x"},"status":{"phase":"Failed"}}`)); !kubetest.IsOtherUID(err) {
			w.Errorf("a patch of another pod: %v", err)
		}
		if err := w.client.PatchPodStatus(ctx, "a", "q", []byte(`{"status":{"phase":"Failed"}}`)); !apierrors.IsNotFound(err) {
			w.Errorf("a patch of no pod: %v", err)
		}
		if err := w.client.DeletePod(ctx, "a", "p", "x"); !kubetest.IsOtherUID(err) {
			w.Errorf("a deletion of another pod: %v", err)
		}
		w.must(w.client.DeletePod(ctx, "a", "p", p.UID))
		if _, err := w.client.GetPod(ctx, "a", "p"); !apierrors.IsNotFound(err) {
			w.Errorf("the pod is still there: %v", err)
		}
		if err := w.client.DeletePod(ctx, "a", "p", p.UID); !apierrors.IsNotFound(err) {
			w.Errorf("a second deletion: %v", err)
		}
	})
}

// What is made in a namespace that is not there makes it, and nothing is made in one that ends.
func TestNamespaces(t *testing.T) {
	inBoth(t, func(w world) {
		ctx := w.Context()
		pod := func(name string) *v1.Pod { return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "a"}} }
		w.must(w.client.CreatePod(ctx, pod("p")))
		key := store.Key{Resource: "namespaces", Name: "a"}
		item, err := w.store.Get(key)
		w.must(err)
		o, err := kinds.Decode(item.Value, item.Revision)
		w.must(err)
		ns := o.(*v1.Namespace)
		if ns.UID == "" || ns.Status.Phase != v1.NamespaceActive || ns.Labels[v1.LabelMetadataName] != "a" || len(ns.Spec.Finalizers) != 1 {
			w.Errorf("namespace = %+v", ns)
		}
		w.must(w.client.CreatePod(ctx, pod("q")))
		if again, err := w.store.Get(key); err != nil || again.Revision != item.Revision {
			w.Errorf("the namespace was written again: %d, %v", again.Revision, err)
		}
		ns.DeletionTimestamp = new(metav1.Now())
		value, err := kinds.Encode(ns)
		w.must(err)
		_, err = w.store.Write(key, item.Revision, value)
		w.must(err)
		err = w.client.CreatePod(ctx, pod("r"))
		if !apierrors.IsForbidden(err) || !apierrors.HasStatusCause(err, v1.NamespaceTerminatingCause) {
			w.Errorf("a pod in a namespace that ends: %v", err)
		}
		if _, err := w.client.GetPod(ctx, "a", "r"); !apierrors.IsNotFound(err) {
			w.Errorf("it is there: %v", err)
		}
	})
}

// A pod that is deleted stays as long as somebody's finalizer is on it.
func TestFinalizers(t *testing.T) {
	inBoth(t, func(w world) {
		ctx := w.Context()
		w.must(w.client.CreatePod(ctx, &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "a", Finalizers: []string{"x/y"}}}))
		w.must(w.client.DeletePod(ctx, "a", "p", ""))
		p, err := w.client.GetPod(ctx, "a", "p")
		w.must(err)
		if p.DeletionTimestamp == nil || p.DeletionGracePeriodSeconds == nil || *p.DeletionGracePeriodSeconds != 0 {
			w.Errorf("metadata = %+v", p.ObjectMeta)
		}
		w.must(w.client.PatchPodStatus(ctx, "a", "p", []byte(`{"status":{"phase":"Failed"}}`)))
		if p, err = w.client.GetPod(ctx, "a", "p"); err != nil || p.Status.Phase != v1.PodFailed || p.DeletionTimestamp == nil {
			w.Errorf("an ending pod's status: %+v, %v", p, err)
		}
	})
}

func TestLease(t *testing.T) {
	inBoth(t, func(w world) {
		ctx := w.Context()
		l, err := w.client.CreateLease(ctx, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "n", Namespace: "kube-node-lease"}})
		w.must(err)
		renewed := l.DeepCopy()
		renewed.Spec.HolderIdentity = new("me")
		renewed, err = w.client.UpdateLease(ctx, renewed)
		w.must(err)
		if *renewed.Spec.HolderIdentity != "me" || renewed.UID != l.UID {
			w.Errorf("lease = %+v", renewed)
		}
		l.Spec.HolderIdentity = new("another")
		if _, err := w.client.UpdateLease(ctx, l); !apierrors.IsConflict(err) {
			w.Errorf("an update of an old version: %v", err)
		}
	})
}

func TestEventsAndTokens(t *testing.T) {
	inBoth(t, func(w world) {
		ctx := w.Context()
		e, err := w.client.CreateEvent(ctx, &v1.Event{ObjectMeta: metav1.ObjectMeta{Name: "e", Namespace: "a"}, Count: 1})
		w.must(err)
		again := e.DeepCopy()
		again.Count = 2
		if again, err = w.client.PatchEvent(ctx, e, again); err != nil || again.Count != 2 {
			w.Errorf("event = %+v, %v", again, err)
		}
		if _, err := (kube.PodObjects{Client: w.client}).CreateToken(ctx, "a", "other", &authenticationv1.TokenRequest{}); !apierrors.IsNotFound(err) {
			w.Errorf("a token of no service account: %v", err)
		}
		token, err := (kube.PodObjects{Client: w.client}).CreateToken(ctx, "a", "default", &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{Audiences: []string{"api"}}})
		if err != nil || token.Status.Token != "a/default for api" {
			w.Errorf("token = %+v, %v", token, err)
		}
	})
}

func TestRefused(t *testing.T) {
	w := newWorld(t, runtime.ContentTypeJSON)
	w.must(w.client.CreatePod(t.Context(), &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "a"}}))
	calls := New(Config{Store: w.store})
	for _, c := range []struct {
		method, path, contentType, body string
		code                            int
	}{
		{"POST", "/apis/apps/v1/namespaces/a/deployments", "application/json", `{}`, 404},
		{"POST", "/api/v1/namespaces/a/pods", "application/json", `{`, 400},
		{"POST", "/api/v1/namespaces/a/pods", "application/json", `{"metadata":{}}`, 422},
		{"POST", "/api/v1/namespaces/a/pods/p/binding", "application/json", `{}`, 405},
		{"PUT", "/api/v1/namespaces/a/pods/q", "application/json", `{"metadata":{"name":"q"}}`, 404},
		{"PATCH", "/api/v1/namespaces/a/pods/p", "application/json-patch+json", `[]`, 415},
		{"PATCH", "/api/v1/namespaces/a/pods/p", "application/strategic-merge-patch+json", `[]`, 400},
		{"PATCH", "/api/v1/namespaces/a/pods/p", "application/strategic-merge-patch+json", `{"$patch":"delete"}`, 400},
		{"PATCH", "/api/v1/namespaces/a/pods/p", "application/strategic-merge-patch+json", `{"metadata":{"labels":7}}`, 400},
		{"DELETE", "/api/v1/namespaces/a/pods", "application/json", `{}`, 405},
		{"DELETE", "/api/v1/namespaces/a/pods/p", "application/json", `[]`, 400},
		{"DELETE", "/api/v1/namespaces/a/pods/p", "application/json", `{"kind":"DeleteOptions","apiVersion":"v1","preconditions":{"resourceVersion":"1"}}`, 409},
		{"GET", "/api/v1/namespaces/a/pods/p", "", ``, 405},
		{"POST", "/api/v1/namespaces/a/configmaps", "application/json", `{"metadata":{"name":"big"},"data":{"k":"` + string(bytes.Repeat([]byte("x"), store.MaxValue)) + `"}}`, 413},
		{"POST", "/api/v1/namespaces/a/configmaps", "application/json", string(bytes.Repeat([]byte(" "), maxBody+1)), 413},
	} {
		r := httptest.NewRequest(c.method, c.path, bytes.NewReader([]byte(c.body)))
		r.Header.Set("Content-Type", c.contentType)
		out := httptest.NewRecorder()
		calls.ServeHTTP(out, r)
		var s metav1.Status
		if err := json.Unmarshal(out.Body.Bytes(), &s); err != nil || out.Code != c.code || int(s.Code) != c.code || s.Status != metav1.StatusFailure || s.Message == "" {
			t.Errorf("%s %s: %d %s, want %d", c.method, c.path, out.Code, out.Body, c.code)
		}
	}
}

// BenchmarkPodStatus is one status of a pod, as it is written at each step of its start.
func BenchmarkPodStatus(b *testing.B) {
	s, err := store.Open(store.Config{Path: filepath.Join(b.TempDir(), "api.db"), NoSync: true})
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	calls := New(Config{Store: s})
	do := func(method, path, contentType, body string) {
		r := httptest.NewRequest(method, "/api/v1/namespaces/default"+path, strings.NewReader(body))
		r.Header.Set("Content-Type", contentType)
		w := httptest.NewRecorder()
		if calls.ServeHTTP(w, r); w.Code >= http.StatusBadRequest {
			b.Fatal(w.Body)
		}
	}
	p, err := json.Marshal(&v1.Pod{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}, ObjectMeta: metav1.ObjectMeta{Name: "p", Labels: map[string]string{"app": "web"}},
		Spec: v1.PodSpec{NodeName: "n", Containers: []v1.Container{
			{Name: "main", Image: "example.com/main:1", Args: []string{"serve"}, Ports: []v1.ContainerPort{{ContainerPort: 80}}, Env: []v1.EnvVar{{Name: "A", Value: "b"}}},
			{Name: "side", Image: "example.com/side:1"},
		}},
	})
	if err != nil {
		b.Fatal(err)
	}
	do(http.MethodPost, "/pods", "application/json", string(p))
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		do(http.MethodPatch, "/pods/p/status", "application/strategic-merge-patch+json", fmt.Sprintf(
			`{"status":{"phase":"Running","podIP":"10.0.0.%d","conditions":[{"type":"Ready","status":"True","message":"%d"}],"$setElementOrder/conditions":[{"type":"Ready"}]}}`, i%250, i))
	}
}
