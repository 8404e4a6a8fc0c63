package auth

import (
	"context"
	"errors"
	"net/http"
	"strings"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion/scheme"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"berth/internal/localapi/kinds"
)

// review is a kind of object that is created to be answered and is not stored.
type review struct {
	kind       string
	namespaced bool
	new        func() runtime.Object
	answer     func(a *Access, ctx context.Context, q kinds.Request, o runtime.Object) error
}

// answering adapts a typed answer function.
func answering[T any](f func(a *Access, ctx context.Context, q kinds.Request, o *T) error) func(*Access, context.Context, kinds.Request, runtime.Object) error {
	return func(a *Access, ctx context.Context, q kinds.Request, o runtime.Object) error {
		return f(a, ctx, q, any(o).(*T))
	}
}

var reviews = map[schema.GroupVersion]map[string]review{
	authenticationv1.SchemeGroupVersion: {
		"tokenreviews":       {"TokenReview", false, func() runtime.Object { return &authenticationv1.TokenReview{} }, answering((*Access).reviewToken)},
		"selfsubjectreviews": {"SelfSubjectReview", false, func() runtime.Object { return &authenticationv1.SelfSubjectReview{} }, answering((*Access).reviewSelf)},
	},
	authorizationv1.SchemeGroupVersion: {
		"subjectaccessreviews":      {"SubjectAccessReview", false, func() runtime.Object { return &authorizationv1.SubjectAccessReview{} }, answering((*Access).reviewSubject)},
		"localsubjectaccessreviews": {"LocalSubjectAccessReview", true, func() runtime.Object { return &authorizationv1.LocalSubjectAccessReview{} }, answering((*Access).reviewLocal)},
		"selfsubjectaccessreviews":  {"SelfSubjectAccessReview", false, func() runtime.Object { return &authorizationv1.SelfSubjectAccessReview{} }, answering((*Access).reviewSelfAccess)},
		"selfsubjectrulesreviews":   {"SelfSubjectRulesReview", false, func() runtime.Object { return &authorizationv1.SelfSubjectRulesReview{} }, answering((*Access).reviewRules)},
	},
}

func isReview(q kinds.Request) bool {
	v, ok := reviews[q.GroupVersion][q.Resource]
	return ok && q.Name == "" && v.namespaced == (q.Namespace != "")
}

func (a *Access) serveReview(w http.ResponseWriter, r *http.Request) {
	q := readRequest(r)
	v := reviews[q.GroupVersion][q.Resource]
	if q.Verb != "create" {
		notAllowed(w, r)
		return
	}
	o, kind := v.new(), q.GroupVersion.WithKind(v.kind)
	err := checkOptions(r)
	if err == nil {
		err = decode(w, r, o, kind)
	}
	if err == nil {
		err = v.answer(a, r.Context(), q, o)
	}
	if err != nil {
		writeError(w, r, err)
		return
	}
	write(w, r, http.StatusCreated, o)
}

// checkOptions validates the create options and the accepted formats.
func checkOptions(r *http.Request) error {
	// Tables and metadata are known formats, and are rejected after the review is answered.
	if _, err := accepted(r); err != nil && !strings.Contains(r.Header.Get("Accept"), "as=") {
		err := failure(http.StatusNotAcceptable, metav1.StatusReasonNotAcceptable, "406: Not Acceptable\n\nAvailable representations: "+strings.Join(kinds.MediaTypes(), ", "))
		err.ErrStatus.Details = &metav1.StatusDetails{}
		return err
	}
	o := &metav1.CreateOptions{}
	if err := scheme.ParameterCodec.DecodeParameters(r.URL.Query(), metav1.SchemeGroupVersion, o); err != nil {
		return apierrors.NewBadRequest(err.Error())
	}
	if errs := validation.ValidateCreateOptions(o); len(errs) > 0 {
		return apierrors.NewInvalid(schema.GroupKind{Group: metav1.GroupName, Kind: "CreateOptions"}, "", errs)
	}
	return nil
}

// notAllowed responds to methods other than POST.
func notAllowed(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Allow", http.MethodPost)
	err := failure(http.StatusMethodNotAllowed, metav1.StatusReasonMethodNotAllowed, "the server does not allow this method on the requested resource")
	err.ErrStatus.Details = &metav1.StatusDetails{}
	writeError(w, r, err)
}

func (a *Access) reviewSelf(ctx context.Context, _ kinds.Request, o *authenticationv1.SelfSubjectReview) error {
	o.CreationTimestamp = metav1.Now()
	o.Status.UserInfo = UserOf(ctx).info()
	return nil
}

func (a *Access) reviewToken(ctx context.Context, _ kinds.Request, o *authenticationv1.TokenReview) error {
	if o.Spec.Token == "" {
		return apierrors.NewBadRequest("token is required for TokenReview in authentication")
	}
	u, audiences, err := a.cfg.Tokens.Check(ctx, o.Spec.Token, o.Spec.Audiences)
	o.Status = authenticationv1.TokenReviewStatus{}
	var bad errToken
	switch {
	case errors.As(err, &bad):
		o.Status.Error = bad.Error()
	case err != nil:
		return apierrors.NewInternalError(err)
	default:
		o.Status.Authenticated, o.Status.User, o.Status.Audiences = true, u.info(), audiences
	}
	return nil
}

func (a *Access) serveToken(w http.ResponseWriter, r *http.Request) {
	q := readRequest(r)
	if q.Verb != "create" {
		notAllowed(w, r)
		return
	}
	var request authenticationv1.TokenRequest
	err := checkOptions(r)
	if err == nil {
		err = decode(w, r, &request, authenticationv1.SchemeGroupVersion.WithKind("TokenRequest"))
	}
	if err == nil {
		err = a.cfg.Tokens.Request(r.Context(), q.Namespace, q.Name, &request)
	}
	if err != nil {
		writeError(w, r, err)
		return
	}
	write(w, r, http.StatusCreated, &request)
}

func (a *Access) reviewSelfAccess(ctx context.Context, _ kinds.Request, o *authorizationv1.SelfSubjectAccessReview) (err error) {
	errs := checkAttributes(o.Spec.ResourceAttributes, o.Spec.NonResourceAttributes)
	if err := invalidReview(o.ObjectMeta, errs); err != nil {
		return err
	}
	o.Status = a.decide(UserOf(ctx), o.Spec.ResourceAttributes, o.Spec.NonResourceAttributes)
	return nil
}

func (a *Access) reviewSubject(_ context.Context, _ kinds.Request, o *authorizationv1.SubjectAccessReview) error {
	if err := invalidReview(o.ObjectMeta, checkSubject(o.Spec)); err != nil {
		return err
	}
	o.Status = a.decide(subject(o.Spec), o.Spec.ResourceAttributes, o.Spec.NonResourceAttributes)
	return nil
}

func (a *Access) reviewLocal(_ context.Context, q kinds.Request, o *authorizationv1.LocalSubjectAccessReview) error {
	meta := o.ObjectMeta
	if meta.Namespace != "" && meta.Namespace != q.Namespace {
		return apierrors.NewBadRequest("the namespace of the provided object does not match the namespace sent on the request")
	}
	o.Namespace, meta.Namespace = q.Namespace, ""
	errs := checkSubject(o.Spec)
	if o.Spec.NonResourceAttributes != nil {
		errs = append(errs, field.Invalid(field.NewPath("spec", "nonResourceAttributes"), o.Spec.NonResourceAttributes, "disallowed on this kind of request"))
	}
	if ra := o.Spec.ResourceAttributes; ra != nil && ra.Namespace != q.Namespace {
		errs = append(errs, field.Invalid(field.NewPath("spec", "resourceAttributes", "namespace"), ra.Namespace, "must match metadata.namespace"))
	}
	if err := invalidReview(meta, errs); err != nil {
		return err
	}
	o.Status = a.decide(subject(o.Spec), o.Spec.ResourceAttributes, nil)
	return nil
}

func subject(s authorizationv1.SubjectAccessReviewSpec) *User {
	u := &User{Name: s.User, UID: s.UID, Groups: s.Groups, Extra: map[string]authenticationv1.ExtraValue{}}
	for k, v := range s.Extra {
		u.Extra[k] = authenticationv1.ExtraValue(v)
	}
	return u
}

func checkSubject(s authorizationv1.SubjectAccessReviewSpec) field.ErrorList {
	errs := checkAttributes(s.ResourceAttributes, s.NonResourceAttributes)
	if s.User == "" && len(s.Groups) == 0 {
		errs = append(errs, field.Invalid(field.NewPath("spec", "user"), s.User, "at least one of user or group must be specified"))
	}
	return errs
}

func checkAttributes(ra *authorizationv1.ResourceAttributes, na *authorizationv1.NonResourceAttributes) field.ErrorList {
	spec := field.NewPath("spec")
	switch {
	case ra != nil && na != nil:
		return field.ErrorList{field.Invalid(spec.Child("nonResourceAttributes"), struct{ Path, Verb string }{na.Path, na.Verb}, "cannot be specified in combination with resourceAttributes")}
	case ra == nil && na == nil:
		return field.ErrorList{field.Invalid(spec.Child("resourceAttributes"), ra, "exactly one of nonResourceAttributes or resourceAttributes must be specified")}
	}
	return nil
}

func invalidReview(meta metav1.ObjectMeta, errs field.ErrorList) error {
	meta.ManagedFields = nil
	if meta.Name != "" || meta.Namespace != "" || meta.GenerateName != "" || len(meta.Labels)+len(meta.Annotations) > 0 {
		errs = append(errs, field.Invalid(field.NewPath("metadata"), meta, "must be empty"))
	}
	if len(errs) == 0 {
		return nil
	}
	// kube-apiserver names no kind here.
	return apierrors.NewInvalid(schema.GroupKind{Group: authorizationv1.GroupName}, "", errs)
}

// decide reports whether the rules allow a user the request.
func (a *Access) decide(u *User, ra *authorizationv1.ResourceAttributes, na *authorizationv1.NonResourceAttributes) authorizationv1.SubjectAccessReviewStatus {
	q := kinds.Request{}
	if ra != nil {
		q = kinds.Request{
			Verb: ra.Verb, GroupVersion: schema.GroupVersion{Group: ra.Group, Version: ra.Version}, Resource: ra.Resource,
			Subresource: ra.Subresource, Namespace: ra.Namespace, Name: ra.Name,
		}
		if q.Resource == "" {
			q.Resource = all // not a path; only a rule for all resources matches
		}
	} else {
		q.Verb, q.Path = na.Verb, na.Path
	}
	reason, ok := a.allows(u, q)
	return authorizationv1.SubjectAccessReviewStatus{Allowed: ok, Reason: reason}
}

func (a *Access) reviewRules(ctx context.Context, _ kinds.Request, o *authorizationv1.SelfSubjectRulesReview) error {
	if o.Spec.Namespace == "" {
		return apierrors.NewBadRequest("no namespace on request")
	}
	o.Status = authorizationv1.SubjectRulesReviewStatus{ResourceRules: []authorizationv1.ResourceRule{}, NonResourceRules: []authorizationv1.NonResourceRule{}}
	for _, r := range a.cfg.Rules.Rules().of(UserOf(ctx), o.Spec.Namespace) {
		for _, g := range r.grants {
			o.Status.ResourceRules = append(o.Status.ResourceRules, authorizationv1.ResourceRule{
				Verbs: r.Verbs, APIGroups: g.groups, Resources: []string{g.names()}, ResourceNames: r.ResourceNames,
			})
		}
		if len(r.NonResourceURLs) > 0 {
			o.Status.NonResourceRules = append(o.Status.NonResourceRules, authorizationv1.NonResourceRule{Verbs: r.Verbs, NonResourceURLs: r.NonResourceURLs})
		}
	}
	return nil
}
