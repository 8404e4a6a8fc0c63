package auth

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/go-jose/go-jose/v4/jwt"
	authenticationv1 "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"berth/internal/localapi/kinds"
)

const (
	defaultTokenLife = int64(time.Hour / time.Second)
	minTokenLife     = int64(10 * time.Minute / time.Second)
	maxTokenLife     = int64(1) << 32
	// warnedLife is the lifetime, in seconds, that pods request in their default token volume. Such
	// a token is valid for a year, for clients that read it once, and has the time from which its
	// use causes a warning.
	warnedLife   = int64(3607)
	extendedLife = 365 * day
)

func isNotFound(err error) bool { return apierrors.IsNotFound(err) }

// Request signs a token for a service account, in the status of the request. Errors are API errors.
func (t *Tokens) Request(ctx context.Context, namespace, name string, r *authenticationv1.TokenRequest) error {
	account, err := t.cfg.Objects.Get(ctx, kinds.Find("", "v1", "serviceaccounts"), namespace, name)
	if err != nil {
		return err
	}
	if r.Spec.ExpirationSeconds == nil {
		life := defaultTokenLife
		r.Spec.ExpirationSeconds = &life
	}
	if len(r.Spec.Audiences) == 0 {
		r.Spec.Audiences = slices.Clone(t.cfg.Audiences)
	}
	kind := authenticationv1.SchemeGroupVersion.WithKind("TokenRequest").GroupKind()
	if errs := checkMetadata(r, namespace, name); len(errs) > 0 {
		return apierrors.NewInvalid(kind, name, errs)
	}
	if errs := validateTokenRequest(r); len(errs) > 0 {
		return apierrors.NewInvalid(kind, "", errs)
	}
	k := kubernetesClaims{Namespace: namespace, ServiceAccount: *referenceTo(account)}
	if err := t.bind(ctx, &k, r.Spec.BoundObjectRef); err != nil {
		return err
	}
	return t.sign(k, r, name)
}

func checkMetadata(r *authenticationv1.TokenRequest, namespace, name string) (errs field.ErrorList) {
	at := field.NewPath("metadata")
	if r.Name != "" && r.Name != name {
		errs = append(errs, field.Invalid(at.Child("name"), r.Name, "must match the service account name if specified"))
	}
	if r.Namespace != "" && r.Namespace != namespace {
		errs = append(errs, field.Invalid(at.Child("namespace"), r.Namespace, "must match the service account namespace if specified"))
	}
	return errs
}

func validateTokenRequest(r *authenticationv1.TokenRequest) field.ErrorList {
	life, at := *r.Spec.ExpirationSeconds, field.NewPath("spec", "expirationSeconds")
	switch {
	case life < minTokenLife:
		return field.ErrorList{field.Invalid(at, life, "may not specify a duration less than 10 minutes")}
	case life > maxTokenLife:
		return field.ErrorList{field.Invalid(at, life, "may not specify a duration larger than 2^32 seconds")}
	}
	return nil
}

// bind adds the object that a token is bound to.
func (t *Tokens) bind(ctx context.Context, k *kubernetesClaims, ref *authenticationv1.BoundObjectReference) error {
	if ref == nil {
		return nil
	}
	bindable := map[string]string{"Pod": "pods", "Secret": "secrets", "Node": "nodes"}
	kind := kinds.Find("", ref.APIVersion, bindable[ref.Kind])
	if kind == nil {
		return apierrors.NewBadRequest(fmt.Sprintf("cannot bind token to object of type %s", schema.FromAPIVersionAndKind(ref.APIVersion, ref.Kind)))
	}
	namespace := k.Namespace
	if !kind.Namespaced {
		namespace = ""
	}
	o, err := t.cfg.Objects.Get(ctx, kind, namespace, ref.Name)
	if err != nil {
		return err
	}
	if ref.UID != "" && ref.UID != o.GetUID() {
		return apierrors.NewConflict(kind.Resource(), ref.Name, fmt.Errorf(
			"the UID in the bound object reference (%s) does not match the UID in record. The object might have been deleted and then recreated", ref.UID))
	}
	switch o := o.(type) {
	case *v1.Pod:
		if o.Spec.ServiceAccountName != k.ServiceAccount.Name {
			return apierrors.NewBadRequest(fmt.Sprintf("cannot bind token for serviceaccount %q to pod running with different serviceaccount name.", k.ServiceAccount.Name))
		}
		k.Pod = referenceTo(o)
		if k.Node, err = t.nodeOf(ctx, o); err != nil {
			return err
		}
	case *v1.Secret:
		k.Secret = referenceTo(o)
	case *v1.Node:
		k.Node = referenceTo(o)
	}
	return nil
}

// nodeOf returns the node of a pod, with the name only if the node does not exist.
func (t *Tokens) nodeOf(ctx context.Context, pod *v1.Pod) (*reference, error) {
	if pod.Spec.NodeName == "" {
		return nil, nil
	}
	node, err := t.cfg.Objects.Get(ctx, kinds.Find("", "v1", "nodes"), "", pod.Spec.NodeName)
	switch {
	case isNotFound(err):
		return &reference{Name: pod.Spec.NodeName}, nil
	case err != nil:
		return nil, err
	}
	return referenceTo(node), nil
}

func (t *Tokens) sign(k kubernetesClaims, r *authenticationv1.TokenRequest, account string) error {
	now := time.Now()
	expires := now.Add(time.Duration(*r.Spec.ExpirationSeconds) * time.Second)
	end := expires
	foreign := slices.ContainsFunc(r.Spec.Audiences, func(a string) bool { return !slices.Contains(t.cfg.Audiences, a) })
	if k.Pod != nil && *r.Spec.ExpirationSeconds == warnedLife && !foreign {
		k.WarnAfter, end = numericDate(expires), now.Add(extendedLife)
	}
	token, err := jwt.Signed(t.signer).Claims(jwt.Claims{
		Issuer: t.cfg.Issuer, Subject: serviceAccountPrefix + k.Namespace + ":" + account,
		Expiry: numericDate(end), NotBefore: numericDate(now), IssuedAt: numericDate(now), ID: string(uuid.NewUUID()),
	}).Claims(claims{r.Spec.Audiences, k}).Serialize()
	if err != nil {
		return fmt.Errorf("sign a token of %s/%s: %w", k.Namespace, account, err)
	}
	r.Name, r.Namespace, r.UID, r.CreationTimestamp = account, k.Namespace, uuid.NewUUID(), metav1.NewTime(now)
	r.Status = authenticationv1.TokenRequestStatus{Token: token, ExpirationTimestamp: metav1.NewTime(expires)}
	return nil
}
