package localapi

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"berth/internal/localapi/garbage"
	"berth/internal/localapi/inmemory"
	"berth/internal/localapi/kinds"
)

// writer writes for the garbage collector. What needs no judgement (the objects that each namespace
// has, the end of an event) is written as the agent writes, so that it starts no child.
type writer struct{ own, judge http.Handler }

// Create makes an object.
func (w writer) Create(ctx context.Context, o kinds.Object) error {
	body, err := runtime.Encode(kinds.Codecs().LegacyCodec(v1.SchemeGroupVersion), o)
	if err != nil {
		return err
	}
	gvk, _, err := kinds.Scheme().ObjectKinds(o)
	if err != nil {
		return err
	}
	for i := range kinds.All {
		if kinds.All[i].GroupVersionKind == gvk[0] {
			return call{w.own, http.MethodPost, path(garbage.Ref{Kind: &kinds.All[i], Namespace: o.GetNamespace()}, ""), runtime.ContentTypeJSON}.do(ctx, body)
		}
	}
	return fmt.Errorf("the local API has no %s", gvk[0])
}

// Delete deletes an object.
func (w writer) Delete(ctx context.Context, o garbage.Ref, how metav1.DeleteOptions) error {
	how.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "DeleteOptions"}
	body, err := json.Marshal(how)
	if err != nil {
		return err
	}
	to := w.judge
	if o.Kind.Stored == "events" {
		to = w.own
	}
	return call{to, http.MethodDelete, path(o, ""), runtime.ContentTypeJSON}.do(ctx, body)
}

// Patch carries out a JSON merge patch.
func (w writer) Patch(ctx context.Context, o garbage.Ref, subresource string, patch []byte) error {
	return call{w.judge, http.MethodPatch, path(o, subresource), string(types.MergePatchType)}.do(ctx, patch)
}

// Finalize writes the finalizers of a namespace.
func (w writer) Finalize(ctx context.Context, ns *v1.Namespace) error {
	ns = ns.DeepCopy()
	ns.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Namespace"}
	body, err := json.Marshal(ns)
	if err != nil {
		return err
	}
	return call{w.judge, http.MethodPut, path(garbage.Ref{Kind: kinds.Find("", "v1", "namespaces"), Name: ns.Name}, "finalize"), runtime.ContentTypeJSON}.do(ctx, body)
}

// path is that of an object, or of all of its kind where it has no name.
func path(o garbage.Ref, subresource string) string {
	p := "/apis/" + o.Kind.GroupVersion().String()
	if o.Kind.Group == "" {
		p = "/api/" + o.Kind.Version
	}
	if o.Kind.Namespaced {
		p += "/namespaces/" + o.Namespace
	}
	p += "/" + o.Kind.Plural
	for _, part := range []string{o.Name, subresource} {
		if part != "" {
			p += "/" + part
		}
	}
	return p
}

// call is one request in memory.
type call struct {
	to                        http.Handler
	method, path, contentType string
}

// do sends the request. An error of the API is one of package apierrors.
func (c call) do(ctx context.Context, body []byte) error {
	r, err := http.NewRequestWithContext(ctx, c.method, "http://local"+c.path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	r.Header.Set("Content-Type", c.contentType)
	r.Header.Set("Accept", runtime.ContentTypeJSON)
	answer, err := inmemory.Transport{Handler: c.to}.RoundTrip(r)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil || answer.StatusCode < http.StatusMultipleChoices {
		return err
	}
	var s metav1.Status
	if err := json.Unmarshal(text, &s); err != nil || s.Status != metav1.StatusFailure {
		return fmt.Errorf("%s %s: %d %s", c.method, c.path, answer.StatusCode, text)
	}
	return apierrors.FromObject(&s)
}
