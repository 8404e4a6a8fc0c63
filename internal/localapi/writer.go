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

	"berth/internal/localapi/gc"
	"berth/internal/localapi/kinds"
	"berth/internal/localapi/loopback"
)

type trustedWriter struct{ trusted http.Handler }

// Create creates an object.
func (w trustedWriter) Create(ctx context.Context, o kinds.Object) error {
	return send(ctx, w.trusted, http.MethodPost, o, "")
}

// Update replaces an object and its status.
func (w trustedWriter) Update(ctx context.Context, o kinds.Object) error {
	return send(ctx, w.trusted, http.MethodPut, o, o.GetName())
}

// Delete deletes exactly this version of an object, once its finalizers are removed.
func (w trustedWriter) Delete(ctx context.Context, o kinds.Object) error {
	uid, version := o.GetUID(), o.GetResourceVersion()
	return remove(ctx, w.trusted, gc.Ref{Kind: kinds.Of(o), Namespace: o.GetNamespace(), Name: o.GetName()},
		metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid, ResourceVersion: &version}})
}

// send sends an object to its own path, or to that of its resource if name is "".
func send(ctx context.Context, to http.Handler, method string, o kinds.Object, name string) error {
	kind := kinds.Of(o)
	if kind == nil {
		return fmt.Errorf("the local API has no kind for %T", o)
	}
	body, err := runtime.Encode(kinds.Codecs().LegacyCodec(kind.GroupVersion()), o)
	if err != nil {
		return err
	}
	return call{to, method, path(gc.Ref{Kind: kind, Namespace: o.GetNamespace(), Name: name}, ""), runtime.ContentTypeJSON}.do(ctx, body)
}

func remove(ctx context.Context, to http.Handler, o gc.Ref, how metav1.DeleteOptions) error {
	how.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "DeleteOptions"}
	body, err := json.Marshal(how)
	if err != nil {
		return err
	}
	return call{to, http.MethodDelete, path(o, ""), runtime.ContentTypeJSON}.do(ctx, body)
}

// gcWriter writes for the garbage collector. What needs no validation (the default objects of a
// namespace, the deletion of an event) is a trusted write, which starts no API writer.
type gcWriter struct{ trusted, admit http.Handler }

// Create creates an object.
func (w gcWriter) Create(ctx context.Context, o kinds.Object) error {
	return send(ctx, w.trusted, http.MethodPost, o, "")
}

// Delete deletes an object with the given options.
func (w gcWriter) Delete(ctx context.Context, o gc.Ref, how metav1.DeleteOptions) error {
	to := w.admit
	if o.Kind.Stored == "events" {
		to = w.trusted
	}
	return remove(ctx, to, o, how)
}

// Patch applies a JSON merge patch.
func (w gcWriter) Patch(ctx context.Context, o gc.Ref, subresource string, patch []byte) error {
	return call{w.admit, http.MethodPatch, path(o, subresource), string(types.MergePatchType)}.do(ctx, patch)
}

// Finalize writes the finalizers of a namespace.
func (w gcWriter) Finalize(ctx context.Context, ns *v1.Namespace) error {
	ns = ns.DeepCopy()
	ns.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Namespace"}
	body, err := json.Marshal(ns)
	if err != nil {
		return err
	}
	return call{w.admit, http.MethodPut, path(gc.Ref{Kind: kinds.Find("", "v1", "namespaces"), Name: ns.Name}, "finalize"), runtime.ContentTypeJSON}.do(ctx, body)
}

// path returns the path of an object, or of its resource if it has no name.
func path(o gc.Ref, subresource string) string {
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

// call is one loopback request.
type call struct {
	to                        http.Handler
	method, path, contentType string
}

// do sends the request. An API error is an apierrors status error.
func (c call) do(ctx context.Context, body []byte) error {
	r, err := http.NewRequestWithContext(ctx, c.method, "http://local"+c.path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	r.Header.Set("Content-Type", c.contentType)
	r.Header.Set("Accept", runtime.ContentTypeJSON)
	answer, err := loopback.Transport{Handler: c.to}.RoundTrip(r)
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
