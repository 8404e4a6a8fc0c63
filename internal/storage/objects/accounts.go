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

// accountWait is how long the server is waited for about an account that is known.
const accountWait = 5 * time.Second

// AccountAPI is the API server as the service accounts of pods need it.
type AccountAPI interface {
	// GetServiceAccount reads a service account. The node authorizer lets a node read those of its
	// pods one by one.
	GetServiceAccount(ctx context.Context, namespace, name string) (*v1.ServiceAccount, error)
}

// accounts are the service accounts of registered pods, as they were last read.
type accounts struct {
	api AccountAPI

	mu   sync.Mutex
	last map[pod.UID]*v1.ServiceAccount // guarded by mu; of every registered pod, nil: not read yet
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

// get asks the server, and makes do with what the pod's account was when the server gives no
// answer: a restart of a container does not depend on it. That an account is gone, or may not be
// read, is an answer.
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

// remember remembers the account of a pod that is still registered.
func (a *accounts) remember(uid pod.UID, account *v1.ServiceAccount) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if _, ok := a.last[uid]; ok {
		a.last[uid] = account
	}
}

// ServiceAccount returns the service account of the pod, which is shared and must not be changed.
func (o *Objects) ServiceAccount(ctx context.Context, p *v1.Pod) (*v1.ServiceAccount, error) {
	return o.accounts.get(ctx, p)
}

// ImageToken returns a token of the service account, which is the pod's, for the audience. It is
// bound to the pod, and from the cache unless it is to be renewed. Nobody is told when that is: who
// pulls an image asks.
func (o *Objects) ImageToken(ctx context.Context, p *v1.Pod, account *v1.ServiceAccount, audience string) (string, error) {
	return o.tokens.getFor(ctx, p, tokenKey{
		pod: p.UID, namespace: account.Namespace, serviceAccount: account.Name, accountUID: account.UID, audience: audience, seconds: defaultTokenSeconds, quiet: true,
	})
}
