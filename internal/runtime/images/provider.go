package images

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/singleflight"
	v1 "k8s.io/api/core/v1"
	kubeletconfig "k8s.io/kubelet/config/v1"
	credentialprovider "k8s.io/kubelet/pkg/apis/credentialprovider/v1"
	"sigs.k8s.io/yaml"

	"berth/internal/record/journal"
)

// Providers are the node's credential provider plugins: programs that return the credentials of
// images (https://kubernetes.io/docs/tasks/administer-cluster/kubelet-credential-provider/). They
// are safe for concurrent use.
type Providers struct {
	all      []*provider
	accounts Accounts // nil if none has tokenAttributes
}

// provider is one plugin and its cached credentials.
type provider struct {
	conf    kubeletconfig.CredentialProvider
	program string
	match   []location
	metrics *pluginMetrics
	running singleflight.Group

	mu    sync.Mutex
	cache map[cacheKey]cached // guarded by mu
}

// LoadProviders reads the configuration, a file or a directory of files (.json, .yaml, .yml; in the
// order of their names), and looks up each program in binDir. Errors name the file and the field.
// Without accounts no provider may have tokenAttributes. Metrics are registered with r, if it is
// not nil.
func LoadProviders(config, binDir string, accounts Accounts, r prometheus.Registerer) (*Providers, error) {
	files := []string{config}
	if fi, err := os.Stat(config); err != nil {
		return nil, fmt.Errorf("credential providers: %w", err)
	} else if fi.IsDir() {
		entries, err := os.ReadDir(config)
		if err != nil {
			return nil, fmt.Errorf("credential providers: %w", err)
		}
		files = nil
		for _, e := range entries {
			if slices.Contains([]string{".json", ".yaml", ".yml"}, filepath.Ext(e.Name())) && !e.IsDir() {
				files = append(files, filepath.Join(config, e.Name()))
			}
		}
		if len(files) == 0 {
			return nil, fmt.Errorf("credential providers: %s has no file that ends in .json, .yaml or .yml", config)
		}
	}
	p := &Providers{accounts: accounts}
	seen, hash := map[string]string{}, sha256.New()
	for _, file := range files {
		if err := p.load(file, binDir, loaded{seen, hash}); err != nil {
			return nil, fmt.Errorf("credential providers: %s: %w", file, err)
		}
	}
	configInfo(r, fmt.Sprintf("sha256:%x", hash.Sum(nil)))
	count := newPluginMetrics(r)
	for _, pr := range p.all {
		pr.metrics = count
	}
	return p, nil
}

// loaded accumulates over the files: the file of each plugin, by its name, and the hash of all
// content.
type loaded struct {
	seen map[string]string
	hash hash.Hash
}

func (p *Providers) load(file, binDir string, l loaded) error {
	b, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	l.hash.Write(b) // never fails
	var conf kubeletconfig.CredentialProviderConfig
	if err := yaml.UnmarshalStrict(b, &conf); err != nil {
		return err
	}
	group, _, _ := strings.Cut(conf.APIVersion, "/")
	if group != kubeletconfig.GroupName || conf.Kind != "CredentialProviderConfig" {
		return fmt.Errorf("apiVersion %q, kind %q: must be %s, CredentialProviderConfig", conf.APIVersion, conf.Kind, kubeletconfig.SchemeGroupVersion)
	}
	if len(conf.Providers) == 0 {
		return errors.New("providers: at least one is required")
	}
	var errs []error
	for i, c := range conf.Providers {
		pr, err := newProvider(c, binDir)
		if c.TokenAttributes != nil && p.accounts == nil {
			err = errors.Join(err, fmt.Errorf(
				"tokenAttributes: provider %q wants tokens of service accounts, which an API server issues, and the agent has none: leave them out, or name one by --kubeconfig", c.Name))
		}
		if other, ok := l.seen[c.Name]; ok && c.Name != "" {
			err = errors.Join(err, fmt.Errorf("name: %q is also in %s", c.Name, other))
		}
		l.seen[c.Name] = file
		if err != nil {
			errs = append(errs, fmt.Errorf("providers[%d]: %w", i, err))
			continue
		}
		p.all = append(p.all, pr)
	}
	return errors.Join(errs...)
}

func newProvider(c kubeletconfig.CredentialProvider, binDir string) (*provider, error) {
	var errs []error
	fail := func(field, format string, args ...any) { errs = append(errs, fmt.Errorf(field+": "+format, args...)) }
	pr := &provider{conf: c, cache: map[cacheKey]cached{}}
	if c.Name == "" || c.Name == "." || c.Name == ".." || strings.ContainsAny(c.Name, "/\\ \t\n") {
		fail("name", "%q must be the file name of a program, without spaces", c.Name)
	} else if program, err := exec.LookPath(filepath.Join(binDir, c.Name)); err != nil {
		fail("name", "the program is not in --image-credential-provider-bin-dir: %w", err)
	} else {
		pr.program = program
	}
	if len(c.MatchImages) == 0 {
		fail("matchImages", "at least one is required")
	}
	for i, pattern := range c.MatchImages {
		l, err := parseLocation(pattern)
		if err == nil && strings.Contains(pattern, "://") {
			err = fmt.Errorf("%q: leave out the scheme", pattern)
		}
		if err != nil {
			fail(fmt.Sprintf("matchImages[%d]", i), "%w", err)
		}
		pr.match = append(pr.match, l)
	}
	if d := c.DefaultCacheDuration; d == nil {
		fail("defaultCacheDuration", "is required; 0s keeps nothing")
	} else if d.Duration < 0 {
		fail("defaultCacheDuration", "%v is less than 0", d.Duration)
	}
	if !slices.Contains(providerVersions, c.APIVersion) {
		fail("apiVersion", "%q must be one of %s", c.APIVersion, strings.Join(providerVersions, ", "))
	}
	for i, e := range c.Env {
		if e.Name == "" || strings.ContainsAny(e.Name, "=\x00") {
			fail(fmt.Sprintf("env[%d].name", i), "%q is not the name of a variable", e.Name)
		}
	}
	if c.TokenAttributes != nil {
		validateTokens(c.TokenAttributes, c.APIVersion, fail)
	}
	return pr, errors.Join(errs...)
}

// providerVersions are the versions of the exec protocol; the fields in use, except tokens, are the
// same in all of them.
var providerVersions = []string{
	tokenVersion, "credentialprovider.kubelet.k8s.io/v1beta1", "credentialprovider.kubelet.k8s.io/v1alpha1",
}

// matching returns the providers that match the image, in order.
func (p *Providers) matching(n names) []*provider {
	image := locate(n.full)
	var found []*provider
	for _, pr := range p.all {
		if slices.ContainsFunc(pr.match, func(l location) bool { return l.matches(image) }) {
			found = append(found, pr)
		}
	}
	return found
}

// lookup returns the providers' credentials for the image and the pod, in order, together with the
// errors of those that failed.
func (p *Providers) lookup(ctx context.Context, n names, po *v1.Pod, log *slog.Logger) ([]credential, error) {
	if p == nil {
		return nil, nil
	}
	claimant := p.claimant(ctx, po)
	var found []credential
	var errs []error
	for _, pr := range p.matching(n) {
		matched, err := p.consult(ctx, pr, n, claimant, log)
		if err != nil && !errors.Is(err, errNoAccount) {
			errs = append(errs, fmt.Errorf("credential provider %q: %w", pr.conf.Name, err))
		}
		found = append(found, matched...)
	}
	return found, errors.Join(errs...)
}

// consult returns one provider's credentials for the image and the pod.
func (p *Providers) consult(ctx context.Context, pr *provider, n names, c claimant, log *slog.Logger) ([]credential, error) {
	id, err := pr.identify(c)
	if err != nil {
		return nil, err
	}
	if id.account != nil {
		if err := id.authorize(ctx, p.accounts, c.pod, pr.conf.TokenAttributes); err != nil {
			return nil, err
		}
	}
	image := locate(n.full)
	ring, err := pr.ask(ctx, providerRequest{image: n.full.Name(), registry: image.registry(), identity: id}, log)
	matched := ring.lookup(image)
	for i := range matched {
		matched[i].account = id.recorded()
	}
	return matched, err
}

type providerRequest struct {
	image, registry string
	identity        identity
}

// cacheKey is the scope of a plugin's response: one image, one registry, or everything; and an
// identity.
type cacheKey struct {
	kind  credentialprovider.PluginCacheKeyType
	of    string
	scope string
}

type cached struct {
	ring    keyring
	expires time.Time
}

// ask returns the plugin's credentials, from the cache until they expire. Concurrent calls for the
// same image and identity share one run of the program.
func (pr *provider) ask(ctx context.Context, q providerRequest, log *slog.Logger) (keyring, error) {
	if ring, ok := pr.cached(q); ok {
		return ring, nil
	}
	answer := pr.running.DoChan(q.image+" "+q.identity.scope, func() (any, error) {
		// Not the caller's context: the result is shared, and run has its own timeout.
		return pr.run(context.WithoutCancel(ctx), q, log)
	})
	select {
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	case a := <-answer:
		ring, _ := a.Val.(keyring)
		return ring, a.Err
	}
}

func (pr *provider) cached(q providerRequest) (keyring, bool) {
	pr.mu.Lock()
	defer pr.mu.Unlock()
	for _, k := range cacheKeys(q) {
		if c, ok := pr.cache[k]; ok && time.Now().Before(c.expires) {
			return c.ring, true
		}
	}
	return nil, false
}

func cacheKeys(q providerRequest) []cacheKey {
	return []cacheKey{
		{credentialprovider.ImagePluginCacheKeyType, q.image, q.identity.scope},
		{credentialprovider.RegistryPluginCacheKeyType, q.registry, q.identity.scope},
		{credentialprovider.GlobalPluginCacheKeyType, "", q.identity.scope},
	}
}

func (pr *provider) run(ctx context.Context, q providerRequest, log *slog.Logger) (keyring, error) {
	began := time.Now()
	r, err := pr.exec(ctx, q)
	pr.metrics.ran(pr.conf.Name, time.Since(began), err)
	if err != nil {
		return nil, err
	}
	log.Debug("asked a credential provider", "provider", pr.conf.Name, "image", q.image, "for", q.identity.String(), "credentials", len(r.Auth), "took", time.Since(began).Round(time.Millisecond))
	keys := cacheKeys(q)
	i := slices.IndexFunc(keys, func(k cacheKey) bool { return k.kind == r.CacheKeyType })
	if i < 0 {
		return nil, fmt.Errorf("its cacheKeyType is %q: must be Image, Registry or Global", r.CacheKeyType)
	}
	ring := keyring{}
	for pattern, a := range r.Auth {
		ring.add(map[string]auth{pattern: {Username: a.Username, Password: a.Password}}, nil)
	}
	keep := pr.conf.DefaultCacheDuration.Duration
	if r.CacheDuration != nil {
		keep = r.CacheDuration.Duration
	}
	pr.mu.Lock()
	defer pr.mu.Unlock()
	for k, c := range pr.cache {
		if !began.Before(c.expires) {
			delete(pr.cache, k)
		}
	}
	if keep > 0 {
		pr.cache[keys[i]] = cached{ring: ring, expires: time.Now().Add(keep)}
	}
	return ring, nil
}

// nodeCredentials returns the credentials that need no secret of the pod: those of the docker
// config, then those of the providers. Failures are reported and skipped.
func (p *Puller) nodeCredentials(ctx context.Context, r request) []credential {
	auths, err := readDockerConfig(p.dockerConfigs)
	ring := keyring{}
	ring.add(auths, nil)
	matched, gerr := p.providers.lookup(ctx, r.names, r.pod, p.log)
	if err := errors.Join(err, gerr); err != nil && ctx.Err() == nil {
		p.log.Warn("some credentials of the node for an image cannot be had", "image", r.image, "error", err)
		e := p.entry(r, "go on without some credentials of the node")
		e.Error = journal.Error(err)
		p.journal.Record(e)
	}
	return append(ring.lookup(locate(r.full)), matched...)
}
