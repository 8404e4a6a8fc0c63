package offlinecache

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	certificatesv1beta1 "k8s.io/api/certificates/v1beta1"
	v1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	resourcev1 "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"berth/internal/cluster/kube"
)

// API is the API server for readers of the objects that pods refer to. It caches the server's
// answers, and serves them from the cache while Cache is serving. All other calls go to the
// server.
type API struct {
	kube.PodObjects
	Cache *Cache
}

// cachedTokenSeconds is the expirationSeconds of a token that is served from the cache: the API
// server may be available when the token is requested again.
const cachedTokenSeconds = 60

// FollowConfigMap calls seen with each version of the ConfigMap, nil if it does not exist.
func (a API) FollowConfigMap(ctx context.Context, namespace, name string, seen func(*v1.ConfigMap)) {
	followOne(ctx, a, ref{configMaps, namespace, name}, seen)
}

// FollowSecret calls seen with each version of the Secret, nil if it does not exist.
func (a API) FollowSecret(ctx context.Context, namespace, name string, seen func(*v1.Secret)) {
	followOne(ctx, a, ref{secrets, namespace, name}, seen)
}

// FollowRuntimeClass calls seen with each version of the RuntimeClass, nil if it does not exist.
func (a API) FollowRuntimeClass(ctx context.Context, name string, seen func(*nodev1.RuntimeClass)) {
	followOne(ctx, a, ref{Kind: classes, Name: name}, seen)
}

func followOne[P kube.Watchable](ctx context.Context, a API, r ref, seen func(P)) {
	follow(ctx, a.Cache, func() (P, bool) { return cached[P](a.Cache, r) }, func(ctx context.Context, seen func(P)) {
		kube.FollowOne(ctx, a.Client, r.Namespace, r.Name, func(o P) {
			store(a.Cache.entries, r, o)
			seen(o)
		})
	}, seen)
}

// FollowServices calls seen with all Services; from the cache, only with those that pods of this
// node get environment variables of.
func (a API) FollowServices(ctx context.Context, seen func([]*v1.Service)) {
	follow(ctx, a.Cache, func() ([]*v1.Service, bool) {
		return cachedList(a.Cache, func(l *v1.ServiceList) []v1.Service { return l.Items })
	}, followAll(a, services, selectServices), seen)
}

// FollowClusterTrustBundles calls seen with all ClusterTrustBundles; from the cache, only with
// those that pods of this node project.
func (a API) FollowClusterTrustBundles(ctx context.Context, seen func([]*certificatesv1beta1.ClusterTrustBundle)) {
	follow(ctx, a.Cache, func() ([]*certificatesv1beta1.ClusterTrustBundle, bool) {
		return cachedList(a.Cache, func(l *certificatesv1beta1.ClusterTrustBundleList) []certificatesv1beta1.ClusterTrustBundle {
			return l.Items
		})
	}, followAll(a, trustBundles, selectBundles), seen)
}

// followAll returns a function that follows all objects of a kind and caches the selection of each
// record.
func followAll[P kube.Watchable](a API, of kind, selection func([]P, ref) any) func(context.Context, func([]P)) {
	return func(ctx context.Context, seen func([]P)) {
		kube.FollowAll(ctx, a.Client, kube.Selector{}, func(all []P) {
			listed := slices.Clone(all) // seen may change all
			a.Cache.entries.storeList(of, func(r ref) any { return selection(listed, r) })
			seen(all)
		})
	}
}

type object interface {
	comparable
	runtime.Object
	metav1.Object
}

// read returns the cached object while the cache is serving and has an entry; otherwise it reads
// the server and caches the answer.
func read[P object](ctx context.Context, a API, r ref, options metav1.GetOptions) (P, error) {
	var none P
	c := a.Cache
	if c.isServing() {
		switch o, ok := cached[P](c, r); {
		case ok && o == none:
			return none, apierrors.NewNotFound(schema.GroupResource{Resource: strings.ToLower(string(r.Kind))}, r.Name)
		case ok:
			return o, nil
		}
	}
	o, err := kube.Get[P](ctx, a.Client, r.Namespace, r.Name, options)
	switch {
	case err == nil:
		store(c.entries, r, o)
	case apierrors.IsNotFound(err):
		store(c.entries, r, none)
	case c.isServing():
		err = fmt.Errorf("%v is not cached%s, waiting for the API server: %w", r, c.entries.hint(r.Kind), err)
	}
	return o, err
}

// ReadConfigMap returns a ConfigMap, possibly from the cache.
func (a API) ReadConfigMap(ctx context.Context, namespace, name string, options metav1.GetOptions) (*v1.ConfigMap, error) {
	return read[*v1.ConfigMap](ctx, a, ref{configMaps, namespace, name}, options)
}

// ReadSecret returns a Secret, possibly from the cache.
func (a API) ReadSecret(ctx context.Context, namespace, name string, options metav1.GetOptions) (*v1.Secret, error) {
	return read[*v1.Secret](ctx, a, ref{secrets, namespace, name}, options)
}

// GetServiceAccount returns a service account, possibly from the cache.
func (a API) GetServiceAccount(ctx context.Context, namespace, name string) (*v1.ServiceAccount, error) {
	return read[*v1.ServiceAccount](ctx, a, ref{accounts, namespace, name}, metav1.GetOptions{})
}

// GetPersistentVolumeClaim returns a claim. A ReadWriteOncePod claim is not served from the cache:
// another pod of the cluster may use it by now.
func (a API) GetPersistentVolumeClaim(ctx context.Context, namespace, name string) (*v1.PersistentVolumeClaim, error) {
	c, err := read[*v1.PersistentVolumeClaim](ctx, a, ref{claims, namespace, name}, metav1.GetOptions{})
	if err == nil && a.Cache.isServing() && slices.Contains(c.Spec.AccessModes, v1.ReadWriteOncePod) {
		return nil, fmt.Errorf("PersistentVolumeClaim %s/%s is %s, and may be another pod's by now: it waits for the API server", namespace, name, v1.ReadWriteOncePod)
	}
	return c, err
}

// GetPersistentVolume returns a volume. A volume that is attached to nodes is not served from the
// cache: it may be attached to another node by now.
func (a API) GetPersistentVolume(ctx context.Context, name string) (*v1.PersistentVolume, error) {
	pv, err := read[*v1.PersistentVolume](ctx, a, ref{Kind: volumes, Name: name}, metav1.GetOptions{})
	if err != nil || !a.Cache.isServing() || pv.Spec.CSI == nil {
		return pv, err
	}
	if d, ok := a.CachedCSIDriver(pv.Spec.CSI.Driver); !ok || d == nil || ptr.Deref(d.Spec.AttachRequired, true) {
		return nil, fmt.Errorf("PersistentVolume %s is attached to nodes by CSI driver %s, and may be attached to another one by now: it waits for the API server", name, pv.Spec.CSI.Driver)
	}
	return pv, nil
}

// GetResourceClaim returns a ResourceClaim. It is never served from the cache: the claim may be
// allocated to another pod by now.
func (a API) GetResourceClaim(ctx context.Context, namespace, name string) (*resourcev1.ResourceClaim, error) {
	c, err := a.PodObjects.GetResourceClaim(ctx, namespace, name)
	if err != nil && a.Cache.isServing() {
		err = fmt.Errorf("ResourceClaim %s/%s waits for the API server, as it may be another pod's by now: %w", namespace, name, err)
	}
	return c, err
}

// CachedCSIDriver returns the cached CSIDriver while the cache is serving, nil and true if the
// server had none.
func (a API) CachedCSIDriver(name string) (*storagev1.CSIDriver, bool) {
	if !a.Cache.isServing() {
		return nil, false
	}
	return cached[*storagev1.CSIDriver](a.Cache, ref{Kind: drivers, Name: name})
}

// CacheCSIDriver caches the API server's answer for a driver, nil if it does not exist.
func (a API) CacheCSIDriver(name string, d *storagev1.CSIDriver) {
	store(a.Cache.entries, ref{Kind: drivers, Name: name}, d)
}

// CreateToken requests a token. A cached token is served even if it has expired, with a short
// lifetime so that it is requested again soon.
func (a API) CreateToken(ctx context.Context, namespace, account string, request *authenticationv1.TokenRequest) (*authenticationv1.TokenRequest, error) {
	c, r := a.Cache, tokenRef(namespace, account, request)
	if c.isServing() {
		if t, _ := cached[*authenticationv1.TokenRequest](c, r); t != nil {
			out := t.DeepCopy()
			out.Spec.ExpirationSeconds = ptr.To[int64](cachedTokenSeconds)
			c.recordExpired(r, t)
			return out, nil
		}
	}
	t, err := a.PodObjects.CreateToken(ctx, namespace, account, request)
	if err != nil {
		if c.isServing() {
			err = fmt.Errorf("%v is not cached%s, waiting for the API server: %w", r, c.entries.hint(tokens), err)
		}
		return nil, err
	}
	if bound := request.Spec.BoundObjectRef; bound != nil {
		c.entries.storeToken(r, bound.UID, t)
	}
	return t, nil
}

// recordExpired records, once per token, that a pod is given an expired token.
func (c *Cache) recordExpired(r ref, t *authenticationv1.TokenRequest) {
	if time.Now().Before(t.Status.ExpirationTimestamp.Time) {
		return
	}
	c.mu.Lock()
	recorded := c.expired[r]
	c.expired[r] = true
	c.mu.Unlock()
	pods := c.entries.cachedPods()
	i := slices.IndexFunc(pods, func(p *v1.Pod) bool { return string(p.UID) == podOfToken(r) })
	if recorded || i < 0 {
		return
	}
	e := entryOf(pods[i], "is given a token that has expired")
	e.Why = fmt.Sprintf("%v, cached until the API server renews it, was valid until %s", r, t.Status.ExpirationTimestamp.Format(time.RFC3339))
	c.Journal.Record(e)
}

// cachedList returns the objects of all cached lists of a kind, each once.
func cachedList[L, T any, P interface {
	*T
	metav1.Object
}](c *Cache, items func(*L) []T) (objects []P, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	out, seen := []P{}, map[types.NamespacedName]bool{}
	for _, l := range c.served {
		list, isList := l.object.(*L)
		if !isList {
			continue
		}
		ok = true
		of := items(list)
		for i := range of {
			o := P(&of[i])
			if name := (types.NamespacedName{Namespace: o.GetNamespace(), Name: o.GetName()}); !seen[name] {
				seen[name] = true
				out = append(out, o)
			}
		}
	}
	return out, ok
}
