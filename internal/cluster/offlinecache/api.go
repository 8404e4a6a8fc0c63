package offlinecache

import (
	"context"
	"fmt"
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
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"

	"berth/internal/cluster/kube"
)

// API is the API server for readers of the objects that pods refer to. It caches the server's
// answers, and serves them from the cache while Cache is serving. All other calls go to the
// server.
type API struct {
	kube.Follower
	Cache *Cache
}

// cachedTokenSeconds is the expirationSeconds of a token that is served from the cache: the API
// server may be available when the token is requested again.
const cachedTokenSeconds = 60

// FollowConfigMap calls seen with each version of the ConfigMap, nil if it does not exist.
func (a API) FollowConfigMap(ctx context.Context, namespace, name string, seen func(*v1.ConfigMap)) {
	followOne(ctx, a.Cache, ref{configMaps, namespace, name}, func(ctx context.Context, seen func(*v1.ConfigMap)) {
		a.Follower.FollowConfigMap(ctx, namespace, name, seen)
	}, seen)
}

// FollowSecret calls seen with each version of the Secret, nil if it does not exist.
func (a API) FollowSecret(ctx context.Context, namespace, name string, seen func(*v1.Secret)) {
	followOne(ctx, a.Cache, ref{secrets, namespace, name}, func(ctx context.Context, seen func(*v1.Secret)) {
		a.Follower.FollowSecret(ctx, namespace, name, seen)
	}, seen)
}

// FollowRuntimeClass calls seen with each version of the RuntimeClass, nil if it does not exist.
func (a API) FollowRuntimeClass(ctx context.Context, name string, seen func(*nodev1.RuntimeClass)) {
	followOne(ctx, a.Cache, ref{Kind: classes, Name: name}, func(ctx context.Context, seen func(*nodev1.RuntimeClass)) {
		a.Follower.FollowRuntimeClass(ctx, name, seen)
	}, seen)
}

// followOne follows one object and caches it.
func followOne[T any](ctx context.Context, c *Cache, r ref, server func(context.Context, func(*T)), seen func(*T)) {
	follow(ctx, c, func() (*T, bool) { return cached[T](c, r) }, func(ctx context.Context, seen func(*T)) {
		server(ctx, func(o *T) {
			store(c, r, o)
			seen(o)
		})
	}, seen)
}

// FollowServices calls seen with all Services; from the cache, only with those that pods of this
// node get environment variables of.
func (a API) FollowServices(ctx context.Context, seen func([]*v1.Service)) {
	c := a.Cache
	follow(ctx, c, c.cachedServices, func(ctx context.Context, seen func([]*v1.Service)) {
		a.Follower.FollowServices(ctx, func(all []*v1.Service) {
			c.storeServices(all)
			seen(all)
		})
	}, seen)
}

// FollowClusterTrustBundles calls seen with all ClusterTrustBundles; from the cache, only with
// those that pods of this node project.
func (a API) FollowClusterTrustBundles(ctx context.Context, seen func([]*certificatesv1beta1.ClusterTrustBundle)) {
	c := a.Cache
	follow(ctx, c, c.cachedBundles, func(ctx context.Context, seen func([]*certificatesv1beta1.ClusterTrustBundle)) {
		a.Follower.FollowClusterTrustBundles(ctx, func(all []*certificatesv1beta1.ClusterTrustBundle) {
			c.storeBundles(all)
			seen(all)
		})
	}, seen)
}

// read returns the cached object while the cache is serving and has an entry; otherwise it reads
// the server and caches the answer.
func read[T any](c *Cache, r ref, server func() (*T, error)) (*T, error) {
	if c.isServing() {
		switch o, ok := cached[T](c, r); {
		case ok && o == nil:
			return nil, apierrors.NewNotFound(schema.GroupResource{Resource: strings.ToLower(string(r.Kind))}, r.Name)
		case ok:
			return o, nil
		}
	}
	o, err := server()
	switch {
	case err == nil:
		store(c, r, o)
	case apierrors.IsNotFound(err):
		store[T](c, r, nil)
	case c.isServing():
		err = fmt.Errorf("%v is not cached%s, waiting for the API server: %w", r, c.hint(r.Kind), err)
	}
	return o, err
}

// ReadConfigMap returns a ConfigMap, possibly from the cache.
func (a API) ReadConfigMap(ctx context.Context, namespace, name string, options metav1.GetOptions) (*v1.ConfigMap, error) {
	return read(a.Cache, ref{configMaps, namespace, name}, func() (*v1.ConfigMap, error) {
		return a.Follower.ReadConfigMap(ctx, namespace, name, options)
	})
}

// ReadSecret returns a Secret, possibly from the cache.
func (a API) ReadSecret(ctx context.Context, namespace, name string, options metav1.GetOptions) (*v1.Secret, error) {
	return read(a.Cache, ref{secrets, namespace, name}, func() (*v1.Secret, error) {
		return a.Follower.ReadSecret(ctx, namespace, name, options)
	})
}

// GetSecret returns the Secret of a volume, possibly from the cache.
func (a API) GetSecret(ctx context.Context, namespace, name string) (*v1.Secret, error) {
	return read(a.Cache, ref{secrets, namespace, name}, func() (*v1.Secret, error) {
		return a.Follower.GetSecret(ctx, namespace, name)
	})
}

// GetServiceAccount returns a service account, possibly from the cache.
func (a API) GetServiceAccount(ctx context.Context, namespace, name string) (*v1.ServiceAccount, error) {
	return read(a.Cache, ref{accounts, namespace, name}, func() (*v1.ServiceAccount, error) {
		return a.Follower.GetServiceAccount(ctx, namespace, name)
	})
}

// GetPersistentVolumeClaim returns a claim. A ReadWriteOncePod claim is not served from the cache:
// another pod of the cluster may use it by now.
func (a API) GetPersistentVolumeClaim(ctx context.Context, namespace, name string) (*v1.PersistentVolumeClaim, error) {
	c, err := read(a.Cache, ref{claims, namespace, name}, func() (*v1.PersistentVolumeClaim, error) {
		return a.Follower.GetPersistentVolumeClaim(ctx, namespace, name)
	})
	if err == nil && a.Cache.isServing() && isForOnePod(c.Spec.AccessModes) {
		return nil, fmt.Errorf("PersistentVolumeClaim %s/%s is %s, and may be another pod's by now: it waits for the API server", namespace, name, v1.ReadWriteOncePod)
	}
	return c, err
}

func isForOnePod(modes []v1.PersistentVolumeAccessMode) bool {
	for _, m := range modes {
		if m == v1.ReadWriteOncePod {
			return true
		}
	}
	return false
}

// GetPersistentVolume returns a volume. A volume that is attached to nodes is not served from the
// cache: it may be attached to another node by now.
func (a API) GetPersistentVolume(ctx context.Context, name string) (*v1.PersistentVolume, error) {
	pv, err := read(a.Cache, ref{Kind: volumes, Name: name}, func() (*v1.PersistentVolume, error) {
		return a.Follower.GetPersistentVolume(ctx, name)
	})
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
	c, err := a.Follower.GetResourceClaim(ctx, namespace, name)
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
	return cached[storagev1.CSIDriver](a.Cache, ref{Kind: drivers, Name: name})
}

// CacheCSIDriver caches the API server's answer for a driver, nil if it does not exist.
func (a API) CacheCSIDriver(name string, d *storagev1.CSIDriver) {
	store(a.Cache, ref{Kind: drivers, Name: name}, d)
}

// CreateToken requests a token. A cached token is served even if it has expired, with a short
// lifetime so that it is requested again soon.
func (a API) CreateToken(ctx context.Context, namespace, account string, request *authenticationv1.TokenRequest) (*authenticationv1.TokenRequest, error) {
	c, r := a.Cache, tokenRef(namespace, account, request)
	if c.isServing() {
		if t, _ := cached[authenticationv1.TokenRequest](c, r); t != nil {
			out := t.DeepCopy()
			out.Spec.ExpirationSeconds = ptr.To[int64](cachedTokenSeconds)
			c.recordExpired(r, t)
			return out, nil
		}
	}
	t, err := a.Follower.CreateToken(ctx, namespace, account, request)
	if err != nil {
		if c.isServing() {
			err = fmt.Errorf("%v is not cached%s, waiting for the API server: %w", r, c.hint(tokens), err)
		}
		return nil, err
	}
	if bound := request.Spec.BoundObjectRef; bound != nil {
		c.storeToken(r, bound.UID, t)
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
	var about *v1.Pod
	for _, p := range c.pods {
		if string(p.UID) == podOfToken(r) {
			about = p
		}
	}
	c.mu.Unlock()
	if recorded || about == nil {
		return
	}
	e := entryOf(about, "is given a token that has expired")
	e.Why = fmt.Sprintf("%v, cached until the API server renews it, was valid until %s", r, t.Status.ExpirationTimestamp.Format(time.RFC3339))
	c.Journal.Record(e)
}

// cachedServices returns the cached Services.
func (c *Cache) cachedServices() ([]*v1.Service, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	seen, out, any := map[string]bool{}, []*v1.Service{}, false
	for _, l := range c.served {
		list, ok := l.object.(*v1.ServiceList)
		if !ok {
			continue
		}
		any = true
		for i := range list.Items {
			s := &list.Items[i]
			if name := s.Namespace + "/" + s.Name; !seen[name] {
				seen[name] = true
				out = append(out, s)
			}
		}
	}
	return out, any
}

// cachedBundles returns the cached ClusterTrustBundles.
func (c *Cache) cachedBundles() ([]*certificatesv1beta1.ClusterTrustBundle, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	seen, out, any := map[string]bool{}, []*certificatesv1beta1.ClusterTrustBundle{}, false
	for _, l := range c.served {
		list, ok := l.object.(*certificatesv1beta1.ClusterTrustBundleList)
		if !ok {
			continue
		}
		any = true
		for i := range list.Items {
			if b := &list.Items[i]; !seen[b.Name] {
				seen[b.Name] = true
				out = append(out, b)
			}
		}
	}
	return out, any
}
