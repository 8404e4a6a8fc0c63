package objects

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	authenticationv1 "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"berth/internal/config"
	"berth/internal/pod"
)

// API is the API server as this package needs it. The Follow methods block until ctx is done and
// get over every loss of the connection by themselves. They call seen, from one goroutine, as soon
// as they have read what the server has, and again after every change; what they hand over is
// shared and must not be changed by anybody.
type API interface {
	// FollowConfigMap hands over one ConfigMap, nil when there is none.
	FollowConfigMap(ctx context.Context, namespace, name string, seen func(*v1.ConfigMap))
	// FollowSecret hands over one Secret, nil when there is none.
	FollowSecret(ctx context.Context, namespace, name string, seen func(*v1.Secret))
	// FollowServices hands over the services of all namespaces, each time all of them.
	FollowServices(ctx context.Context, seen func([]*v1.Service))
	// CreateToken asks for a token of the service account (TokenRequest).
	CreateToken(ctx context.Context, namespace, serviceAccount string, request *authenticationv1.TokenRequest) (*authenticationv1.TokenRequest, error)
}

// ClassAPI is the API server as RuntimeClasses need it.
type ClassAPI interface {
	// FollowRuntimeClass hands over one RuntimeClass, nil when there is none, as the methods of API
	// do.
	FollowRuntimeClass(ctx context.Context, name string, seen func(*nodev1.RuntimeClass))
}

// DiscoveryAPI is what the API server says of itself.
type DiscoveryAPI interface {
	// ServesTokens asks whether the server issues tokens of service accounts.
	ServesTokens(ctx context.Context) (bool, error)
}

// ReadAPI is the API server as the strategies Cache and Get need it. What does not exist is a
// NotFound error of the API.
type ReadAPI interface {
	ReadConfigMap(ctx context.Context, namespace, name string, options metav1.GetOptions) (*v1.ConfigMap, error)
	ReadSecret(ctx context.Context, namespace, name string, options metav1.GetOptions) (*v1.Secret, error)
}

// Strategy is how changes of ConfigMaps and Secrets are noticed; the zero value is Watch.
type Strategy struct {
	Name config.ResourceChangeDetectionStrategy
	// Read is what Cache and Get read with.
	Read ReadAPI
	// TTL returns how long a copy serves with the strategy Cache, as the Node says; false: it says
	// nothing. nil: it never does.
	TTL func() (time.Duration, bool)
}

// Config is what Objects need.
type Config struct {
	API      API
	Classes  ClassAPI
	Accounts AccountAPI
	Trust    TrustAPI // nil: no volume shows ClusterTrustBundles
	// Discovery tells a server without tokens from a service account that does not exist; nil:
	// every server is taken to have them.
	Discovery DiscoveryAPI
	// Certificates are those of pods.
	Certificates PodCertificates
	Strategy     Strategy
	// SyncFrequency is KubeletConfiguration's; an object that is only read when containers start is
	// watched for five times as long after it was last read, and for at least a minute. Without
	// watches, it is how often pods are looked at that show objects in volumes.
	SyncFrequency time.Duration
	// Noted is called with why a pod appears in Changed whose object came, changed or went; nil:
	// nobody is told.
	Noted func(p pod.UID, why string)
	// Metrics is where metrics are registered; nil: nowhere.
	Metrics prometheus.Registerer
	Log     *slog.Logger
}

// ErrNoClass says that the RuntimeClass of a pod does not exist.
var ErrNoClass = errors.New("not found")

// Objects keeps what pods refer to. It is safe for concurrent use.
type Objects struct {
	api        API
	changed    *pod.Inbox[pod.UID]
	configMaps store[v1.ConfigMap]
	secrets    store[v1.Secret]
	classes    *cache[nodev1.RuntimeClass]
	tokens     *tokens
	accounts   *accounts
	trust      *trustBundles

	credentials *credentials

	servicesRead chan struct{} // closed when services were read for the first time

	mu       sync.Mutex
	services []*v1.Service    // guarded by mu; replaced, never changed
	known    bool             // guarded by mu; services were read
	missed   map[pod.UID]bool // guarded by mu; pods that gave up waiting for services
}

// New returns Objects that know nothing and talk to nobody until Run.
func New(cfg Config) (*Objects, error) {
	if cfg.API == nil || cfg.Classes == nil || cfg.Accounts == nil {
		return nil, errors.New("objects: no API server given")
	}
	changed := pod.NewInbox[pod.UID]()
	if cfg.Noted == nil {
		cfg.Noted = func(pod.UID, string) {}
	}
	to := audience{changed, cfg.Noted}
	idle := max(time.Minute, 5*cfg.SyncFrequency)
	configMaps, secrets, err := newStores(cfg, idle, to)
	if err != nil {
		return nil, err
	}
	accounts := newAccounts(cfg.Accounts)
	o := &Objects{
		api: cfg.API, changed: changed, servicesRead: make(chan struct{}), missed: map[pod.UID]bool{},
		configMaps: configMaps, secrets: secrets,
		classes: newCache("runtimeclass",
			func(ctx context.Context, _, name string, seen func(*nodev1.RuntimeClass)) {
				cfg.Classes.FollowRuntimeClass(ctx, name, seen)
			},
			idle, to, func(*nodev1.RuntimeClass) bool { return false }),
		tokens:      newTokens(issuer{cfg.API, cfg.Discovery}.create, changed, cfg.Log),
		accounts:    accounts,
		trust:       newTrustBundles(cfg.Trust, changed),
		credentials: newCredentials(cfg.Certificates, accounts, changed, cfg.Log),
	}
	if cfg.Metrics != nil {
		cfg.Metrics.MustRegister(o)
	}
	return o, nil
}

// store is secretManager or configMapManager: what it knows of the objects of one kind that pods
// refer to.
type store[T any] interface {
	// register makes the references of the pod, in this version of it, those in uses, by name.
	register(uid pod.UID, version, namespace string, uses map[string]pod.ReferenceUse)
	// get returns a registered object.
	get(ctx context.Context, namespace, name string) (*T, error)
	// run keeps what is known up to date until ctx is done.
	run(ctx context.Context)
}

// newStores returns the stores of the strategy.
func newStores(cfg Config, idle time.Duration, to audience) (store[v1.ConfigMap], store[v1.Secret], error) {
	s := cfg.Strategy
	ttl := func() time.Duration { return 0 }
	switch s.Name {
	case "", config.WatchChangeDetectionStrategy:
		return newCache("configmap", cfg.API.FollowConfigMap, idle, to, func(m *v1.ConfigMap) bool { return ptr.Deref(m.Immutable, false) }),
			newCache("secret", cfg.API.FollowSecret, idle, to, func(s *v1.Secret) bool { return ptr.Deref(s.Immutable, false) }), nil
	case config.GetChangeDetectionStrategy:
	case config.TTLCacheChangeDetectionStrategy:
		ttl = func() time.Duration {
			if s.TTL != nil {
				if d, said := s.TTL(); said {
					return d
				}
			}
			return defaultTTL
		}
	default:
		return nil, nil, fmt.Errorf("objects: there is no change detection strategy %q", s.Name)
	}
	if s.Read == nil {
		return nil, nil, fmt.Errorf("objects: the change detection strategy %s needs something to read with", s.Name)
	}
	return newReadings("configmap", s.Read.ReadConfigMap, ttl, cfg.SyncFrequency, to.changed),
		newReadings("secret", s.Read.ReadSecret, ttl, cfg.SyncFrequency, to.changed), nil
}

// Run watches until ctx is done.
func (o *Objects) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	wg.Go(func() { o.configMaps.run(ctx) })
	wg.Go(func() { o.secrets.run(ctx) })
	wg.Go(func() { o.classes.run(ctx) })
	wg.Go(func() { o.tokens.run(ctx) })
	wg.Go(func() { o.trust.run(ctx) })
	wg.Go(func() { o.credentials.run(ctx) })
	wg.Go(func() { o.api.FollowServices(ctx, o.seenServices) })
	wg.Wait()
	return ctx.Err()
}

// Changed is where the pods appear whose objects changed, or whose tokens are to be renewed: a pass
// over such a pod brings its volumes up to date.
func (o *Objects) Changed() *pod.Inbox[pod.UID] { return o.changed }

// Register makes the pod's references those of p: what is new is followed from now on, what nobody
// refers to any more is forgotten.
func (o *Objects) Register(p *v1.Pod) {
	configMaps, secrets := pod.References(p)
	o.configMaps.register(p.UID, p.ResourceVersion, p.Namespace, configMaps)
	o.secrets.register(p.UID, p.ResourceVersion, p.Namespace, secrets)
	o.classes.register(p.UID, "", "", classOf(p))
	o.accounts.register(p.UID)
	o.trust.register(p)
	o.credentials.register(p)
}

// Unregister ends all references of the pod and drops its tokens and keys.
func (o *Objects) Unregister(uid pod.UID) {
	o.configMaps.register(uid, "", "", nil)
	o.secrets.register(uid, "", "", nil)
	o.classes.register(uid, "", "", nil)
	o.tokens.forget(uid)
	o.accounts.forget(uid)
	o.trust.forget(uid)
	o.credentials.forget(uid)
}

// ConfigMap (configMapManager's Get) returns the newest copy of a registered ConfigMap, which is
// shared and must not be changed. It waits up to a second for the first. What does not exist is a
// NotFound error of the API.
func (o *Objects) ConfigMap(ctx context.Context, namespace, name string) (*v1.ConfigMap, error) {
	return o.configMaps.get(ctx, namespace, name)
}

// Secret (secretManager's Get) is ConfigMap for Secrets.
func (o *Objects) Secret(ctx context.Context, namespace, name string) (*v1.Secret, error) {
	return o.secrets.get(ctx, namespace, name)
}

// RuntimeHandler returns the handler of the RuntimeClass that the registered pod names (KEP-585).
// It waits up to a second for the class.
func (o *Objects) RuntimeHandler(ctx context.Context, p *v1.Pod) (string, error) {
	name := *p.Spec.RuntimeClassName
	class, err := o.classes.get(ctx, "", name)
	switch {
	case apierrors.IsNotFound(err):
		return "", fmt.Errorf("RuntimeClass %q %w", name, ErrNoClass)
	case err != nil:
		return "", err
	}
	return class.Handler, nil
}

// Token returns a token of the pod's service account that is bound to the pod, from the cache
// unless it is to be renewed.
func (o *Objects) Token(ctx context.Context, p *v1.Pod, src *v1.ServiceAccountTokenProjection) (string, error) {
	return o.tokens.get(ctx, p, src)
}

// DriverToken returns a token of the pod's service account for a storage driver, bound to the pod,
// and until when it is valid. An empty audience is the API server's own; nil seconds are an hour.
// Nobody is told when it is to be renewed: who publishes a volume asks.
func (o *Objects) DriverToken(ctx context.Context, p *v1.Pod, audience string, seconds *int64) (string, time.Time, error) {
	k := tokenKey{pod: p.UID, namespace: p.Namespace, serviceAccount: p.Spec.ServiceAccountName, audience: audience, seconds: defaultTokenSeconds, quiet: true}
	if seconds != nil {
		k.seconds = *seconds
	}
	t, err := o.tokens.tokenFor(ctx, p, k)
	return t.value, t.expires, err
}

// Services returns the services of all namespaces, which are shared and must not be changed. A pod
// of the API server waits up to a second for them to be read for the first time; a static pod waits
// for nothing of the API server's, and gets what is known.
func (o *Objects) Services(ctx context.Context, p *v1.Pod) ([]*v1.Service, error) {
	if !pod.IsStatic(p) {
		timer := time.NewTimer(syncWait)
		defer timer.Stop()
		select {
		case <-o.servicesRead:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-timer.C:
		}
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.known && !pod.IsStatic(p) {
		o.missed[p.UID] = true
		return nil, errors.New("services have not yet been read at least once, cannot construct envvars")
	}
	return o.services, nil
}

func (o *Objects) seenServices(services []*v1.Service) {
	o.mu.Lock()
	first, missed := !o.known, o.missed
	o.services, o.known, o.missed = services, true, nil
	o.mu.Unlock()
	if first {
		close(o.servicesRead)
	}
	for uid := range missed {
		o.changed.Put(uid)
	}
}

// classOf returns the name of the pod's RuntimeClass, if it names one. A pod whose class is missing
// is told when it comes.
func classOf(p *v1.Pod) map[string]pod.ReferenceUse {
	if name := p.Spec.RuntimeClassName; name != nil && *name != "" {
		return map[string]pod.ReferenceUse{*name: pod.ReadAtStart}
	}
	return nil
}
