package server

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/singleflight"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/util/cache"

	"berth/internal/api/nodeauthz"
)

// AuthorizationMode is a value of KubeletConfiguration's authorization.mode.
type AuthorizationMode string

// The modes of authorization.
const (
	AlwaysAllow AuthorizationMode = "AlwaysAllow"
	Webhook     AuthorizationMode = "Webhook"
)

// Authorization configures the authorization of the HTTPS port (KubeletConfiguration,
// authorization).
type Authorization struct {
	Mode AuthorizationMode
	// Reviewer reviews access at the API server; required for Webhook.
	Reviewer AccessReviewer
	// AllowTTL and DenyTTL are how long a review is cached (webhook.cacheAuthorizedTTL,
	// cacheUnauthorizedTTL); 0: five minutes and 30 seconds.
	AllowTTL, DenyTTL time.Duration
}

// AccessReviewer reviews access at the API server.
type AccessReviewer interface {
	CreateSubjectAccessReview(ctx context.Context, s *authorizationv1.SubjectAccessReview) (*authorizationv1.SubjectAccessReview, error)
}

type authorizer struct {
	Authorization
	node     string
	answers  *cache.LRUExpireCache
	inflight singleflight.Group
}

func newAuthorizer(a Authorization, node string) (*authorizer, error) {
	switch {
	case a.Mode == Webhook && a.Reviewer == nil:
		return nil, errors.New("authorization.mode Webhook: there is no API server to ask; with a kubeconfig there is")
	case a.Mode == Webhook && node == "":
		return nil, errors.New("authorization.mode Webhook: the name of the node is needed")
	case a.Mode != Webhook && a.Mode != AlwaysAllow:
		return nil, fmt.Errorf("authorization.mode %q: must be %s or %s", a.Mode, AlwaysAllow, Webhook)
	case a.AllowTTL < 0 || a.DenyTTL < 0:
		return nil, fmt.Errorf("authorization.webhook.cacheAuthorizedTTL %v, cacheUnauthorizedTTL %v: must not be negative", a.AllowTTL, a.DenyTTL)
	}
	if a.AllowTTL == 0 {
		a.AllowTTL = 5 * time.Minute
	}
	if a.DenyTTL == 0 {
		a.DenyTTL = 30 * time.Second
	}
	return &authorizer{Authorization: a, node: node, answers: cache.NewLRUExpireCache(maxCached)}, nil
}

// authorize reports whether the user has access. The error means that the review failed.
func (a *authorizer) authorize(ctx context.Context, u authenticationv1.UserInfo, attributes nodeauthz.Attributes) (bool, error) {
	if a.Mode == AlwaysAllow {
		return true, nil
	}
	extra := make(map[string]authorizationv1.ExtraValue, len(u.Extra))
	for k, v := range u.Extra {
		extra[k] = authorizationv1.ExtraValue(v)
	}
	var errs []error
	for _, sub := range attributes.Subresources {
		allowed, err := a.review(ctx, authorizationv1.SubjectAccessReviewSpec{
			User: u.Username, UID: u.UID, Groups: u.Groups, Extra: extra,
			ResourceAttributes: &authorizationv1.ResourceAttributes{
				Verb: attributes.Verb, Version: "v1", Resource: "nodes", Subresource: sub, Name: a.node,
			},
		})
		if allowed {
			return true, nil
		}
		errs = append(errs, err)
	}
	return false, errors.Join(errs...)
}

// review reviews access at the API server, once for concurrent requests and again when the cached
// review has expired.
func (a *authorizer) review(ctx context.Context, spec authorizationv1.SubjectAccessReviewSpec) (bool, error) {
	b, err := json.Marshal(spec)
	if err != nil {
		return false, err
	}
	key := sha256.Sum256(b) // constant size, independent of the number of groups
	if v, ok := a.answers.Get(key); ok {
		return v.(bool), nil
	}
	v, err, _ := a.inflight.Do(string(key[:]), func() (any, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), reviewTimeout) // shared by several requests
		defer cancel()
		r, err := a.Reviewer.CreateSubjectAccessReview(ctx, &authorizationv1.SubjectAccessReview{Spec: spec})
		if err != nil {
			return false, fmt.Errorf("review of the access of %q to nodes/%s: %w", spec.User, spec.ResourceAttributes.Subresource, err)
		}
		allowed := r.Status.Allowed && !r.Status.Denied
		ttl := a.DenyTTL
		if allowed {
			ttl = a.AllowTTL
		}
		a.answers.Add(key, allowed, ttl)
		return allowed, nil
	})
	return err == nil && v.(bool), err
}
