package objects

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
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

// API is the part of the API server that this package needs. The Follow methods block until ctx is
// done and reconnect by themselves. They call seen, from one goroutine, after the first read and
// after every change; its arguments are shared and must not be changed.
type API interface {
	// FollowConfigMap calls seen with the ConfigMap, nil if it does not exist.
	FollowConfigMap(ctx context.Context, namespace, name string, seen func(*v1.ConfigMap))
	// FollowSecret calls seen with the Secret, nil if it does not exist.
	FollowSecret(ctx context.Context, namespace, name string, seen func(*v1.Secret))
	// FollowServices calls seen with the complete list of services of all namespaces.
	FollowServices(ctx context.Context, seen func([]*v1.Service))
	// CreateToken requests a token of the service account (TokenRequest).
	CreateToken(ctx context.Context, namespace, serviceAccount string, request *authenticationv1.TokenRequest) (*authenticationv1.TokenRequest, error)
}

// ClassAPI is the part of the API server that RuntimeClasses need.
type ClassAPI interface {
	// FollowRuntimeClass calls seen with the RuntimeClass, nil if it does not exist, like the
	// methods of API.
	FollowRuntimeClass(ctx context.Context, name string, seen func(*nodev1.RuntimeClass))
}

// DiscoveryAPI is the discovery API of the server.
type DiscoveryAPI interface {
	// ServesTokens reports whether the server issues service account tokens.
	ServesTokens(ctx context.Context) (bool, error)
}

// ServiceSource provides the services of containers' environments.
type ServiceSource interface {
	// Services returns the services that p can reach. They are shared; callers must not change
	// them.
	Services(ctx context.Context, p *v1.Pod) ([]*v1.Service, error)
}

// ReadAPI is the part of the API server that the strategies Cache and Get need. Objects that do not
// exist return a NotFound API error.
type ReadAPI interface {
	ReadConfigMap(ctx context.Context, namespace, name string, options metav1.GetOptions) (*v1.ConfigMap, error)
	ReadSecret(ctx context.Context, namespace, name string, options metav1.GetOptions) (*v1.Secret, error)
}

// Strategy is the change detection of ConfigMaps and Secrets; the zero value is Watch.
type Strategy struct {
	Name config.ResourceChangeDetectionStrategy
	// Read is the API for Cache and Get.
	Read ReadAPI
	// TTL returns the TTL of cached objects for the strategy Cache, from the Node; false: the Node
	// has none. nil: it never has.
	TTL func() (time.Duration, bool)
}

// Config is the configuration of Objects.
type Config struct {
	API      API
	Classes  ClassAPI
	Accounts AccountAPI
	Trust    TrustAPI // nil: ClusterTrustBundles are not supported
	// Discovery distinguishes a server without tokens from a missing service account; nil: every
	// server is assumed to issue them.
	Discovery DiscoveryAPI
	// Services provides the services of containers' environments; nil: those of API.
	Services ServiceSource
	// Handlers lists the runtime's handlers, each of which a pod's runtimeClassName may name
	// without a RuntimeClass; nil: a RuntimeClass is required.
	Handlers func(ctx context.Context) ([]string, error)
	// Certificates configures pod certificates.
	Certificates PodCertificates
	Strategy     Strategy
	// SyncFrequency is KubeletConfiguration's. An object that is only read at container start is
	// watched for five times as long after its last read, at least a minute. Without watches, it is
	// the sync interval of pods with objects in volumes.
	SyncFrequency time.Duration
	// Noted is called with the reason for which a pod is put into Changed; nil: the reason is
	// dropped.
	Noted func(p pod.UID, why string)
	// Metrics is where metrics are registered; nil: they are not.
	Metrics prometheus.Registerer
	Log     *slog.Logger
}

// ErrNoClass is returned if the RuntimeClass of a pod does not exist.
var ErrNoClass = errors.New("not found")

// Objects caches the objects that pods refer to. It is safe for concurrent use.
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

	local    ServiceSource // nil: services of api
	handlers func(ctx context.Context) ([]string, error)

	servicesRead chan struct{} // closed when services were read for the first time

	mu       sync.Mutex
	services []*v1.Service    // guarded by mu; replaced, never changed
	known    bool             // guarded by mu; services were read
	missed   map[pod.UID]bool // guarded by mu; pods that timed out waiting for services
}

// New returns empty Objects, which make no calls before Run.
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
		configMaps: configMaps, secrets: secrets, local: cfg.Services, handlers: cfg.Handlers,
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

// store is secretManager or configMapManager: the objects of one kind that pods refer to.
type store[T any] interface {
	// register replaces the references of this version of the pod by those in uses, by name.
	register(uid pod.UID, version, namespace string, uses map[string]pod.ReferenceUse)
	// get returns a registered object.
	get(ctx context.Context, namespace, name string) (*T, error)
	// run keeps the objects up to date until ctx is done.
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
	if o.local == nil {
		wg.Go(func() { o.api.FollowServices(ctx, o.seenServices) })
	}
	wg.Wait()
	return ctx.Err()
}

// Changed returns the inbox of pods whose objects have changed, or whose tokens are due for
// renewal: a pass over such a pod updates its volumes.
func (o *Objects) Changed() *pod.Inbox[pod.UID] { return o.changed }

// Register replaces the pod's references by those of p: new references are followed from now on,
// unreferenced objects are dropped.
func (o *Objects) Register(p *v1.Pod) {
	configMaps, secrets := pod.References(p)
	o.configMaps.register(p.UID, p.ResourceVersion, p.Namespace, configMaps)
	o.secrets.register(p.UID, p.ResourceVersion, p.Namespace, secrets)
	o.classes.register(p.UID, "", "", classOf(p))
	o.accounts.register(p.UID)
	o.trust.register(p)
	o.credentials.register(p)
}

// Unregister deletes all references of the pod, its tokens and keys.
func (o *Objects) Unregister(uid pod.UID) {
	o.configMaps.register(uid, "", "", nil)
	o.secrets.register(uid, "", "", nil)
	o.classes.register(uid, "", "", nil)
	o.tokens.forget(uid)
	o.accounts.forget(uid)
	o.trust.forget(uid)
	o.credentials.forget(uid)
}

// ConfigMap (configMapManager's Get) returns the newest version of a registered ConfigMap. It is
// shared; callers must not change it. It waits up to a second for the first read. A missing object
// is a NotFound API error.
func (o *Objects) ConfigMap(ctx context.Context, namespace, name string) (*v1.ConfigMap, error) {
	return o.configMaps.get(ctx, namespace, name)
}

// Secret (secretManager's Get) is ConfigMap for Secrets.
func (o *Objects) Secret(ctx context.Context, namespace, name string) (*v1.Secret, error) {
	return o.secrets.get(ctx, namespace, name)
}

// RuntimeHandler returns the handler of the registered pod's RuntimeClass (KEP-585), or the handler
// that its runtimeClassName names, if Config.Handlers lists it. It waits up to a second for the
// class.
func (o *Objects) RuntimeHandler(ctx context.Context, p *v1.Pod) (string, error) {
	name := *p.Spec.RuntimeClassName
	handler, err := o.classHandler(ctx, name)
	if o.handlers == nil || err != nil && !errors.Is(err, ErrNoClass) {
		return handler, err
	}
	if err != nil {
		handler = name
	}
	all, failed := o.handlers(ctx)
	if failed != nil {
		return "", failed
	}
	if handler != "" && slices.Contains(all, handler) {
		return handler, nil
	}
	offered := "none with a name"
	if all = slices.DeleteFunc(all, func(h string) bool { return h == "" }); len(all) > 0 {
		slices.Sort(all)
		offered = strings.Join(all, ", ")
	}
	if err != nil {
		return "", fmt.Errorf("%w; handlers of the runtime, which can be named as well, are: %s", err, offered)
	}
	return "", fmt.Errorf("RuntimeClass %q: the runtime has no handler %q: its handlers are: %s", name, handler, offered)
}

// classHandler returns the handler of a RuntimeClass.
func (o *Objects) classHandler(ctx context.Context, name string) (string, error) {
	class, err := o.classes.get(ctx, "", name)
	switch {
	case apierrors.IsNotFound(err):
		return "", fmt.Errorf("RuntimeClass %q %w", name, ErrNoClass)
	case err != nil:
		return "", err
	}
	return class.Handler, nil
}

// Token returns a token of the pod's service account that is bound to the pod, from the cache until
// its renewal is due.
func (o *Objects) Token(ctx context.Context, p *v1.Pod, src *v1.ServiceAccountTokenProjection) (string, error) {
	return o.tokens.get(ctx, p, src)
}

// DriverToken returns a token of the pod's service account for a CSI driver, bound to the pod, and
// its expiry. An empty audience means the API server's; nil seconds mean an hour. The pod is not
// woken for the renewal: each publish calls DriverToken.
func (o *Objects) DriverToken(ctx context.Context, p *v1.Pod, audience string, seconds *int64) (string, time.Time, error) {
	k := tokenKey{pod: p.UID, namespace: p.Namespace, serviceAccount: p.Spec.ServiceAccountName, audience: audience, seconds: defaultTokenSeconds, quiet: true}
	if seconds != nil {
		k.seconds = *seconds
	}
	t, err := o.tokens.tokenFor(ctx, p, k)
	return t.value, t.expires, err
}

// Services returns the services of all namespaces. They are shared; callers must not change them. A
// pod of the API server waits up to a second for the first read; a static pod does not wait, and
// gets the services that are known.
func (o *Objects) Services(ctx context.Context, p *v1.Pod) ([]*v1.Service, error) {
	if o.local != nil {
		return o.local.Services(ctx, p)
	}
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

// classOf returns the name of the pod's RuntimeClass, if any. A pod whose class is missing is
// notified when it is created.
func classOf(p *v1.Pod) map[string]pod.ReferenceUse {
	if name := p.Spec.RuntimeClassName; name != nil && *name != "" {
		return map[string]pod.ReferenceUse{*name: pod.ReadAtStart}
	}
	return nil
}
