package images

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	kubeletconfig "k8s.io/kubelet/config/v1"

	"berth/internal/pod"
)

// Accounts reads the service accounts of pods, and issues their tokens.
type Accounts interface {
	// ServiceAccount returns the pod's service account.
	ServiceAccount(ctx context.Context, p *v1.Pod) (*v1.ServiceAccount, error)
	// ImageToken returns a token of the account for the audience, bound to the pod.
	ImageToken(ctx context.Context, p *v1.Pod, account *v1.ServiceAccount, audience string) (string, error)
}

// tokenVersion is the only version of the exec protocol that supports tokens.
const tokenVersion = "credentialprovider.kubelet.k8s.io/v1"

// validateTokens validates a provider's tokenAttributes, and reports errors by fail (KEP-4412;
// ServiceAccountTokenAttributes of kubelet.config.k8s.io/v1).
func validateTokens(t *kubeletconfig.ServiceAccountTokenAttributes, version string, fail func(field, format string, args ...any)) {
	if version != tokenVersion {
		fail("tokenAttributes", "needs apiVersion: %s, which alone gives tokens to providers", tokenVersion)
	}
	if t.ServiceAccountTokenAudience == "" {
		fail("tokenAttributes.serviceAccountTokenAudience", "is required")
	}
	switch t.CacheType {
	case kubeletconfig.TokenServiceAccountTokenCacheType, kubeletconfig.ServiceAccountServiceAccountTokenCacheType:
	case "":
		fail("tokenAttributes.cacheType", "is required: Token or ServiceAccount")
	default:
		fail("tokenAttributes.cacheType", "%q must be Token or ServiceAccount", t.CacheType)
	}
	if t.RequireServiceAccount == nil {
		fail("tokenAttributes.requireServiceAccount", "is required: true or false")
	} else if !*t.RequireServiceAccount && len(t.RequiredServiceAccountAnnotationKeys) > 0 {
		fail("tokenAttributes.requiredServiceAccountAnnotationKeys", "needs requireServiceAccount: true")
	}
	seen := map[string]string{}
	for _, list := range []struct {
		field string
		keys  []string
	}{
		{"requiredServiceAccountAnnotationKeys", t.RequiredServiceAccountAnnotationKeys},
		{"optionalServiceAccountAnnotationKeys", t.OptionalServiceAccountAnnotationKeys},
	} {
		for i, key := range list.keys {
			field := fmt.Sprintf("tokenAttributes.%s[%d]", list.field, i)
			if wrong := validation.IsQualifiedName(key); len(wrong) > 0 {
				fail(field, "%q: %s", key, strings.Join(wrong, "; "))
			}
			if other, ok := seen[key]; ok {
				fail(field, "%q is also in %s", key, other)
			}
			seen[key] = list.field
		}
	}
}

// claimant is the pod that credentials are requested for.
type claimant struct {
	pod *v1.Pod
	// account reads the pod's service account, once; nil for a pod without one.
	account func() (*v1.ServiceAccount, error)
}

func (p *Providers) claimant(ctx context.Context, po *v1.Pod) claimant {
	c := claimant{pod: po}
	// Static pods have no service account, whatever their spec: the API server has no such pods.
	if po.Spec.ServiceAccountName != "" && !pod.IsStatic(po) {
		c.account = sync.OnceValues(func() (*v1.ServiceAccount, error) { return p.accounts.ServiceAccount(ctx, po) })
	}
	return c
}

// identity is the account that a provider is called for; the zero value is the node.
type identity struct {
	account     *v1.ServiceAccount // nil: the node
	annotations map[string]string  // those that the provider receives
	token       func(context.Context) (string, error)
	scope       string // separates cached credentials by identity
}

// recorded returns the account's form in records, nil for the node.
func (id identity) recorded() *pullServiceAccount {
	if id.account == nil {
		return nil
	}
	return &pullServiceAccount{UID: string(id.account.UID), Namespace: id.account.Namespace, Name: id.account.Name}
}

func (id identity) String() string {
	if id.account == nil {
		return "node"
	}
	return "service account " + id.account.Namespace + "/" + id.account.Name
}

// errNoAccount means that the pod has no service account, which the provider requires.
var errNoAccount = errors.New("the pod has no service account")

// identify returns the identity that the provider is called for. It is errNoAccount if the provider
// does not apply to the pod.
func (pr *provider) identify(c claimant) (identity, error) {
	t := pr.conf.TokenAttributes
	switch {
	case t == nil || c.account == nil && !*t.RequireServiceAccount:
		return identity{}, nil
	case c.account == nil:
		return identity{}, errNoAccount
	}
	account, err := c.account()
	if err != nil {
		return identity{}, err
	}
	id := identity{account: account, annotations: map[string]string{}}
	for _, key := range slices.Concat(t.RequiredServiceAccountAnnotationKeys, t.OptionalServiceAccountAnnotationKeys) {
		if value, ok := account.Annotations[key]; ok {
			id.annotations[key] = value
		} else if slices.Contains(t.RequiredServiceAccountAnnotationKeys, key) {
			return identity{}, fmt.Errorf("service account %s/%s has no annotation %q, which the provider requires", account.Namespace, account.Name, key)
		}
	}
	return id, nil
}

// authorize completes the identity of a service account: it sets how its token is obtained, and its
// cache scope. If credentials expire with the token, the token is part of the scope.
func (id *identity) authorize(ctx context.Context, accounts Accounts, po *v1.Pod, t *kubeletconfig.ServiceAccountTokenAttributes) error {
	id.token = func(ctx context.Context) (string, error) {
		return accounts.ImageToken(ctx, po, id.account, t.ServiceAccountTokenAudience)
	}
	var known string
	if t.CacheType == kubeletconfig.TokenServiceAccountTokenCacheType {
		token, err := id.token(ctx)
		if err != nil {
			return err
		}
		known, id.token = token, func(context.Context) (string, error) { return token, nil }
	}
	b, _ := json.Marshal([]any{id.recorded(), id.annotations, known}) // marshalling cannot fail, and map keys are sorted
	sum := sha256.Sum256(b)
	id.scope = hex.EncodeToString(sum[:])
	return nil
}

// opens reports whether the pod has one of the service accounts, and would still be given
// credentials for the image with it.
func (p *Providers) opens(ctx context.Context, n names, po *v1.Pod, with []pullServiceAccount) (bool, error) {
	if p == nil || len(with) == 0 {
		return false, nil
	}
	claimant := p.claimant(ctx, po)
	var err error
	for _, pr := range p.matching(n) {
		id, ierr := pr.identify(claimant)
		switch {
		case ierr == nil && id.account != nil && slices.Contains(with, *id.recorded()):
			return true, nil
		case ierr != nil && !errors.Is(ierr, errNoAccount):
			err = ierr
		}
	}
	return false, err
}
