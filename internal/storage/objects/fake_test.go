package objects

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth/internal/pod"
)

// server is an API server in memory. Followers are told at once, and of everything.
type server struct {
	mu         sync.Mutex
	version    int
	silent     bool // lists are never answered
	configMaps map[key]*v1.ConfigMap
	secrets    map[key]*v1.Secret
	services   []*v1.Service
	classes    map[string]*nodev1.RuntimeClass
	followers  map[chan struct{}]key
	tokenErr   error
	ahead      time.Duration // of its clock, before this node's
	tokens     []*authenticationv1.TokenRequest
	account    *v1.ServiceAccount
	accountErr error
}

func newServer() *server {
	return &server{configMaps: map[key]*v1.ConfigMap{}, secrets: map[key]*v1.Secret{}, classes: map[string]*nodev1.RuntimeClass{}, followers: map[chan struct{}]key{}}
}

// change does something to the state and tells all followers.
func (s *server) change(f func(version string)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version++
	f(strconv.Itoa(s.version))
	for c := range s.followers {
		select {
		case c <- struct{}{}:
		default:
		}
	}
}

func (s *server) setConfigMap(namespace, name string, data map[string]string) {
	s.change(func(version string) {
		m := &v1.ConfigMap{Data: data}
		m.Namespace, m.Name, m.ResourceVersion = namespace, name, version
		s.configMaps[key{namespace, name}] = m
	})
}

func (s *server) deleteConfigMap(namespace, name string) {
	s.change(func(string) { delete(s.configMaps, key{namespace, name}) })
}

func (s *server) follow(ctx context.Context, k key, tell func()) {
	wake := make(chan struct{}, 1)
	wake <- struct{}{}
	s.mu.Lock()
	s.followers[wake] = k
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.followers, wake)
	}()
	for {
		select {
		case <-ctx.Done():
			return
		case <-wake:
		}
		s.mu.Lock()
		silent := s.silent
		s.mu.Unlock()
		if !silent {
			tell()
		}
	}
}

func (s *server) FollowConfigMap(ctx context.Context, namespace, name string, seen func(*v1.ConfigMap)) {
	k := key{namespace, name}
	s.follow(ctx, k, func() {
		s.mu.Lock()
		m := s.configMaps[k]
		s.mu.Unlock()
		seen(m)
	})
}

func (s *server) FollowSecret(ctx context.Context, namespace, name string, seen func(*v1.Secret)) {
	k := key{namespace, name}
	s.follow(ctx, k, func() {
		s.mu.Lock()
		m := s.secrets[k]
		s.mu.Unlock()
		seen(m)
	})
}

func (s *server) setClass(name, handler string) {
	s.change(func(version string) {
		c := &nodev1.RuntimeClass{Handler: handler}
		c.Name, c.ResourceVersion = name, version
		s.classes[name] = c
	})
}

func (s *server) FollowRuntimeClass(ctx context.Context, name string, seen func(*nodev1.RuntimeClass)) {
	s.follow(ctx, key{name: name}, func() {
		s.mu.Lock()
		c := s.classes[name]
		s.mu.Unlock()
		seen(c)
	})
}

func (s *server) FollowServices(ctx context.Context, seen func([]*v1.Service)) {
	s.follow(ctx, key{}, func() {
		s.mu.Lock()
		all := slices.Clone(s.services)
		s.mu.Unlock()
		seen(all)
	})
}

func (s *server) CreateToken(_ context.Context, namespace, account string, r *authenticationv1.TokenRequest) (*authenticationv1.TokenRequest, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.tokenErr != nil {
		return nil, s.tokenErr
	}
	s.tokens = append(s.tokens, r)
	out := r.DeepCopy()
	out.Status.Token = fmt.Sprintf("token %d of %s/%s", len(s.tokens), namespace, account)
	out.Status.ExpirationTimestamp = metav1.Time{Time: time.Now().Add(s.ahead).Add(time.Duration(*r.Spec.ExpirationSeconds) * time.Second)}
	return out, nil
}

func (s *server) GetServiceAccount(context.Context, string, string) (*v1.ServiceAccount, error) {
	return s.account, s.accountErr
}

func (s *server) failTokens(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tokenErr = err
}

// watched returns the objects that are followed, sorted.
func (s *server) watched() []string {
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []string
	for _, k := range s.followers {
		if k != (key{}) {
			out = append(out, k.namespace+"/"+k.name)
		}
	}
	slices.Sort(out)
	return out
}

// start runs Objects over the server until the test ends.
func start(t *testing.T, s *server) *Objects {
	t.Helper()
	o, err := New(Config{API: s, Classes: s, Accounts: s, SyncFrequency: time.Minute, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- o.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("Run ended with %v", err)
		}
		if left := s.watched(); len(left) != 0 {
			t.Errorf("still watched: %v", left)
		}
	})
	return o
}

// told returns the pods that were told of a change since it was last called.
func told(o interface{ Changed() *pod.Inbox[pod.UID] }) []string {
	synctest.Wait()
	var out []string
	for _, uid := range o.Changed().Take() {
		out = append(out, string(uid))
	}
	slices.Sort(out)
	return out
}

// podWith returns a pod that mounts the ConfigMaps in volumes and has those in env in its
// environment.
func podWith(uid string, mounted, inEnv []string) *v1.Pod {
	p := &v1.Pod{}
	p.UID, p.Namespace, p.Name, p.Spec.ServiceAccountName = pod.UID(uid), "ns", "p-"+uid, "account"
	c := v1.Container{Name: "c"}
	for _, name := range mounted {
		p.Spec.Volumes = append(p.Spec.Volumes, v1.Volume{Name: name, VolumeSource: v1.VolumeSource{
			ConfigMap: &v1.ConfigMapVolumeSource{LocalObjectReference: v1.LocalObjectReference{Name: name}},
		}})
	}
	for _, name := range inEnv {
		c.EnvFrom = append(c.EnvFrom, v1.EnvFromSource{ConfigMapRef: &v1.ConfigMapEnvSource{LocalObjectReference: v1.LocalObjectReference{Name: name}}})
	}
	p.Spec.Containers = []v1.Container{c}
	return p
}
