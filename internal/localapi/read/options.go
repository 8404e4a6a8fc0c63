package read

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"strconv"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion/scheme"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"berth/internal/localapi/kinds"
	"berth/internal/localapi/store"
)

func (q *request) listOptions() (*internalversion.ListOptions, selector, error) {
	o := &internalversion.ListOptions{}
	if err := scheme.ParameterCodec.DecodeParameters(q.r.URL.Query(), metav1.SchemeGroupVersion, o); err != nil {
		return nil, selector{}, apierrors.NewBadRequest(err.Error())
	}
	internalversion.SetListOptionsDefaults(o, true)
	if errs := validation.ValidateListOptions(o, true); len(errs) > 0 {
		return nil, selector{}, apierrors.NewInvalid(schema.GroupKind{Group: metav1.GroupName, Kind: "ListOptions"}, "", errs)
	}
	sel, err := newSelector(q.kind, o)
	if err != nil {
		return nil, selector{}, apierrors.NewBadRequest(err.Error())
	}
	return o, sel, nil
}

type selector struct {
	labels labels.Selector // nil: all
	fields fields.Selector // nil: all
	// values is set if a field is not part of the key, so that objects must be decoded.
	values bool
}

func newSelector(k *kinds.Kind, o *internalversion.ListOptions) (selector, error) {
	var s selector
	if o.LabelSelector != nil && !o.LabelSelector.Empty() {
		s.labels = o.LabelSelector
	}
	if o.FieldSelector == nil {
		return s, nil
	}
	f, err := o.FieldSelector.Transform(func(label, value string) (string, string, error) {
		name, err := k.Field(label)
		s.values = s.values || name != kinds.NameField && name != kinds.NamespaceField
		return name, value, err
	})
	if err == nil && !f.Empty() {
		s.fields = f
	}
	return s, err
}

// all reports whether every object matches.
func (s selector) all() bool { return s.labels == nil && s.fields == nil }

// name returns the name that objects must have, "" if any.
func (s selector) name() string {
	if s.fields == nil {
		return ""
	}
	name, _ := s.fields.RequiresExactMatch(kinds.NameField)
	return name
}

func (s selector) matches(o object) (bool, error) {
	if s.labels != nil {
		set, err := o.labels()
		if err != nil || !s.labels.Matches(set) {
			return false, err
		}
	}
	if s.fields == nil {
		return true, nil
	}
	values := fields.Set{}
	if s.values {
		stored, err := o.stored()
		if err != nil {
			return false, err
		}
		values = o.kind.Values(stored)
	}
	values[kinds.NameField], values[kinds.NamespaceField] = o.key.Name, o.key.Namespace
	return s.fields.Matches(values), nil
}

func parseVersion(text string) (uint64, error) {
	revision, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return 0, field.Invalid(field.NewPath("resourceVersion"), text, err.Error())
	}
	return revision, nil
}

// token is a continue token, in kube-apiserver's format.
type token struct {
	APIVersion string `json:"v"`
	Revision   int64  `json:"rv"` // -1 is the newest
	Start      string `json:"start"`
}

const tokenVersion = "meta.k8s.io/v1"

// newest is the revision of a token that continues with the current objects.
const newest = -1

func (q *request) tokenAfter(k store.Key, revision int64) (string, error) {
	t := token{APIVersion: tokenVersion, Revision: revision, Start: k.Name + "\x00"}
	if q.kind.Namespaced && q.Namespace == "" {
		t.Start = k.Namespace + "/" + t.Start
	}
	text, err := json.Marshal(t)
	return base64.RawURLEncoding.EncodeToString(text), err
}

func (q *request) readToken(text string) (after store.Key, revision int64, err error) {
	var t token
	data, err := base64.RawURLEncoding.DecodeString(text)
	if err == nil {
		err = json.Unmarshal(data, &t)
	}
	switch {
	case err != nil:
	case t.APIVersion != tokenVersion:
		err = fmt.Errorf("server does not recognize this encoded version %v", t.APIVersion)
	case t.Revision == 0:
		err = fmt.Errorf("incorrect encoded start resourceVersion (version %s)", tokenVersion)
	case t.Start == "":
		err = fmt.Errorf("encoded start key empty (version %s)", tokenVersion)
	case path.Clean("/"+t.Start) != "/"+strings.TrimPrefix(t.Start, "/"):
		err = errors.New(t.Start)
	}
	if err != nil {
		return store.Key{}, 0, apierrors.NewBadRequest(fmt.Sprintf("invalid continue token: continue key is not valid: %v", err))
	}
	start := strings.TrimSuffix(strings.TrimPrefix(t.Start, "/"), "\x00")
	after = store.Key{Resource: q.kind.Stored, Namespace: q.Namespace, Name: start}
	switch {
	case !q.kind.Namespaced:
		after.Namespace = ""
	case q.Namespace == "":
		after.Namespace, after.Name, _ = strings.Cut(start, "/")
	}
	return after, t.Revision, nil
}

// position is where a list starts, and its revision.
type position struct {
	after    store.Key
	revision uint64 // 0 is the newest
	limit    int64  // 0 is all
}

// positionOf reads the position from the options. "API Concepts" in the Kubernetes documentation
// has the table of their combinations.
func (q *request) positionOf(o *internalversion.ListOptions) (position, error) {
	p := position{limit: max(o.Limit, 0)}
	if o.Continue != "" {
		after, revision, err := q.readToken(o.Continue)
		if err == nil && o.ResourceVersion != "" && o.ResourceVersion != "0" {
			err = apierrors.NewBadRequest("specifying resource version is not allowed when using continue")
		}
		p.after, p.revision = after, uint64(max(revision, 0))
		return p, err
	}
	if o.ResourceVersion == "" {
		return p, nil
	}
	revision, err := parseVersion(o.ResourceVersion)
	if err != nil {
		return p, apierrors.NewBadRequest(fmt.Sprintf("invalid resource version: %v", err))
	}
	if o.ResourceVersionMatch == metav1.ResourceVersionMatchExact || o.ResourceVersionMatch == "" && p.limit > 0 {
		p.revision = revision // 0, which only a limit allows, is any
	}
	if revision == 0 {
		p.limit = 0 // as kube-apiserver, which serves this from its cache
	}
	return p, q.notOlderThan(o.ResourceVersion)
}
