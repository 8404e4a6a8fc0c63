package objects

import (
	"context"
	"fmt"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"berth/internal/pod"
)

// accountWait is the timeout of reading an account that is cached.
const accountWait = 5 * time.Second

// AccountAPI is the part of the API server that service accounts need.
type AccountAPI interface {
	// GetServiceAccount returns a service account. The node authorizer allows a node to get those
	// of its pods one by one.
	GetServiceAccount(ctx context.Context, namespace, name string) (*v1.ServiceAccount, error)
}

// accounts caches the service accounts of registered pods.
type accounts struct {
	api AccountAPI

	mu   sync.Mutex
	last map[pod.UID]*v1.ServiceAccount // guarded by mu; of all registered pods, nil: not read yet
}

func newAccounts(api AccountAPI) *accounts {
	return &accounts{api: api, last: map[pod.UID]*v1.ServiceAccount{}}
}

func (a *accounts) register(uid pod.UID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if _, ok := a.last[uid]; !ok {
		a.last[uid] = nil
	}
}

func (a *accounts) forget(uid pod.UID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.last, uid)
}

// get reads the account from the server, and falls back to the cache if the server does not answer:
// a container restart must not depend on it. NotFound and Forbidden are answers.
func (a *accounts) get(ctx context.Context, p *v1.Pod) (*v1.ServiceAccount, error) {
	a.mu.Lock()
	last := a.last[p.UID]
	a.mu.Unlock()
	asking := ctx
	if last != nil {
		var cancel context.CancelFunc
		asking, cancel = context.WithTimeout(ctx, accountWait)
		defer cancel()
	}
	account, err := a.api.GetServiceAccount(asking, p.Namespace, p.Spec.ServiceAccountName)
	switch {
	case err == nil:
		a.remember(p.UID, account)
		return account, nil
	case last == nil || ctx.Err() != nil || apierrors.IsNotFound(err) || apierrors.IsForbidden(err):
		return nil, fmt.Errorf("read service account %s/%s: %w", p.Namespace, p.Spec.ServiceAccountName, err)
	}
	return last, nil
}

// remember caches the account of a pod that is still registered.
func (a *accounts) remember(uid pod.UID, account *v1.ServiceAccount) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if _, ok := a.last[uid]; ok {
		a.last[uid] = account
	}
}

// ServiceAccount returns the service account of the pod. It is shared; callers must not change it.
func (o *Objects) ServiceAccount(ctx context.Context, p *v1.Pod) (*v1.ServiceAccount, error) {
	return o.accounts.get(ctx, p)
}

// ImageToken returns a token of the pod's service account for the audience. It is bound to the pod,
// and cached until its renewal is due. The pod is not woken for that: each image pull calls
// ImageToken.
func (o *Objects) ImageToken(ctx context.Context, p *v1.Pod, account *v1.ServiceAccount, audience string) (string, error) {
	return o.tokens.getFor(ctx, p, tokenKey{
		pod: p.UID, namespace: account.Namespace, serviceAccount: account.Name, accountUID: account.UID, audience: audience, seconds: defaultTokenSeconds, quiet: true,
	})
}
