package objects

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"testing/synctest"

	v1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"berth/internal/record/journal"
)

func localConfigMap(name, value string) *v1.ConfigMap {
	m := &v1.ConfigMap{Data: map[string]string{"k": value}}
	m.Namespace, m.Name = "ns", name
	return m
}

func localSecret(name, value string) *v1.Secret {
	s := &v1.Secret{Data: map[string][]byte{"k": []byte(value)}}
	s.Namespace, s.Name = "ns", name
	return s
}

func newLocal() *Local {
	handlers := func(context.Context) ([]string, error) { return []string{"", "runc", "kata"}, nil }
	return NewLocal(journal.New(slog.New(slog.DiscardHandler)), handlers)
}

// podWithSecret returns a pod that mounts the Secret.
func podWithSecret(uid, name string) *v1.Pod {
	p := podWith(uid, nil, nil)
	p.Spec.Volumes = []v1.Volume{{Name: "v", VolumeSource: v1.VolumeSource{Secret: &v1.SecretVolumeSource{SecretName: name}}}}
	return p
}

func TestLocalTellsPodsOfChanges(t *testing.T) {
	a, b, s := localConfigMap("a", "1"), localConfigMap("b", "1"), localSecret("a", "1")
	a2, b2, s2 := localConfigMap("a", "2"), localConfigMap("b", "2"), localSecret("a", "2")
	elsewhere := localConfigMap("a", "other")
	elsewhere.Namespace = "elsewhere"
	steps := []struct {
		name       string
		configMaps []*v1.ConfigMap
		secrets    []*v1.Secret
		want       []string
	}{
		{name: "nothing yet"},
		{"they come", []*v1.ConfigMap{a, b}, []*v1.Secret{s}, []string{"env", "secret", "volume"}},
		{"in another order", []*v1.ConfigMap{b, a}, []*v1.Secret{s}, nil},
		{"copies of the same", []*v1.ConfigMap{a.DeepCopy(), b.DeepCopy()}, []*v1.Secret{s.DeepCopy()}, nil},
		{"a volume's changes", []*v1.ConfigMap{a2, b}, []*v1.Secret{s}, []string{"volume"}},
		{"a variable's changes", []*v1.ConfigMap{a2, b2}, []*v1.Secret{s}, []string{"env"}},
		{"a Secret changes that has a ConfigMap's name", []*v1.ConfigMap{a2, b2}, []*v1.Secret{s2}, []string{"secret"}},
		{"one comes in another namespace", []*v1.ConfigMap{a2, b2, elsewhere}, []*v1.Secret{s2}, nil},
		{"one goes", []*v1.ConfigMap{a2, elsewhere}, []*v1.Secret{s2}, []string{"env"}},
		{"all go", nil, nil, []string{"secret", "volume"}},
	}
	synctest.Test(t, func(t *testing.T) {
		l := newLocal()
		l.Register(podWith("volume", []string{"a"}, nil))
		l.Register(podWith("env", nil, []string{"b"}))
		l.Register(podWith("none", nil, nil))
		l.Register(podWithSecret("secret", "a"))
		for _, step := range steps {
			l.Set(Defined{ConfigMaps: step.configMaps, Secrets: step.secrets})
			if got := told(l); !slices.Equal(got, step.want) {
				t.Errorf("%s: told %v, want %v", step.name, got, step.want)
			}
		}
	})
}

func TestLocalSaysWhyAPodIsLookedAt(t *testing.T) {
	l := newLocal()
	l.Register(podWith("1", []string{"a"}, []string{"b"}))
	a, b := localConfigMap("a", "1"), localConfigMap("b", "1")
	l.Set(Defined{ConfigMaps: []*v1.ConfigMap{a, b}})
	l.Set(Defined{ConfigMaps: []*v1.ConfigMap{a, localConfigMap("b", "2")}})
	l.Set(Defined{ConfigMaps: []*v1.ConfigMap{a}})
	var got []string
	for _, e := range l.journal.Read("ns", "p-1") {
		got = append(got, e.Component+" "+e.Decision+": "+e.Why)
	}
	want := []string{
		"objects look again: configmap a is there", "objects look again: configmap b is there", "objects look again: configmap b changed",
		"objects look again: configmap b is gone",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %q", got)
	}
}

// A loop that sleeps on the inbox wakes when an object changes, and the reader then sees the
// change.
func TestLocalWakesTheLoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLocal()
		l.Register(podWith("1", []string{"a"}, nil))
		seen := make(chan string)
		go func() {
			defer close(seen)
			for range 2 {
				<-l.Changed().Wake()
				for range l.Changed().Take() {
					m, err := l.ConfigMap(t.Context(), "ns", "a")
					if err != nil {
						seen <- err.Error()
						continue
					}
					seen <- m.Data["k"]
				}
			}
		}()
		l.Set(Defined{ConfigMaps: []*v1.ConfigMap{localConfigMap("a", "1")}})
		if got := <-seen; got != "1" {
			t.Errorf("got %s", got)
		}
		l.Set(Defined{})
		if got := <-seen; got != `configmap "a" not found` {
			t.Errorf("got %s", got)
		}
		<-seen
	})
}

func TestLocalForgetsPods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLocal()
		l.Register(podWith("1", []string{"a"}, []string{"b"}))
		l.Register(podWithSecret("2", "a"))
		l.Register(podWith("1", []string{"a"}, nil)) // it refers to less now
		l.Set(Defined{ConfigMaps: []*v1.ConfigMap{localConfigMap("b", "1")}})
		if got := told(l); got != nil {
			t.Errorf("told %v of what no pod refers to any more", got)
		}
		l.Register(podWith("1", nil, nil))
		l.Unregister("2")
		l.Unregister("never seen")
		l.Set(Defined{ConfigMaps: []*v1.ConfigMap{localConfigMap("a", "1")}, Secrets: []*v1.Secret{localSecret("a", "1")}})
		if got := told(l); got != nil {
			t.Errorf("told %v of what no pod refers to any more", got)
		}
		if len(l.configMaps.pods)+len(l.secrets.pods) > 0 {
			t.Errorf("kept: %v, %v", l.configMaps.pods, l.secrets.pods)
		}
	})
}

func TestLocalAnswersLikeAnAPIServer(t *testing.T) {
	l := newLocal()
	l.Set(Defined{ConfigMaps: []*v1.ConfigMap{localConfigMap("a", "1")}, Secrets: []*v1.Secret{localSecret("s", "2")}})
	m, err := l.ConfigMap(t.Context(), "ns", "a")
	if err != nil || m.Data["k"] != "1" {
		t.Errorf("ConfigMap: got %v, %v", m, err)
	}
	s, err := l.Secret(t.Context(), "ns", "s")
	if err != nil || string(s.Data["k"]) != "2" {
		t.Errorf("Secret: got %v, %v", s, err)
	}
	if _, err := l.ConfigMap(t.Context(), "default", "a"); !apierrors.IsNotFound(err) || err.Error() != `configmap "a" not found` {
		t.Errorf("ConfigMap of another namespace: got %v", err)
	}
	if _, err := l.Secret(t.Context(), "ns", "a"); !apierrors.IsNotFound(err) || err.Error() != `secret "a" not found` {
		t.Errorf("no such Secret: got %v", err)
	}
	services, err := l.Services(t.Context(), podWith("1", nil, nil))
	if err != nil || len(services) > 0 {
		t.Errorf("services: got %v, %v", services, err)
	}
	const want = "service account tokens need an API server: remove the serviceAccountToken source from the volume"
	if _, err := l.Token(t.Context(), podWith("1", nil, nil), &v1.ServiceAccountTokenProjection{}); err == nil || err.Error() != want {
		t.Errorf("token: got %v", err)
	}
}

func TestLocalRuntimeHandler(t *testing.T) {
	class := func(name, handler string) *nodev1.RuntimeClass {
		c := &nodev1.RuntimeClass{Handler: handler}
		c.Name = name
		return c
	}
	l := newLocal()
	l.Set(Defined{RuntimeClasses: []*nodev1.RuntimeClass{class("strong", "kata"), class("runc", "kata"), class("odd", "wasm")}})
	for _, tt := range []struct{ name, want, err string }{
		{name: "strong", want: "kata"},
		{name: "runc", want: "kata"}, // the class wins over the handler
		{name: "kata", want: "kata"},
		{name: "odd", err: `RuntimeClass "odd": the runtime has no handler "wasm": its handlers are: kata, runc`},
		{name: "none", err: `RuntimeClass "none" not found: manifests define: odd, runc, strong; handlers of the runtime, which can be named as well, are: kata, runc`},
	} {
		p := podWith("1", nil, nil)
		p.Spec.RuntimeClassName = &tt.name
		got, err := l.RuntimeHandler(t.Context(), p)
		if text := fmt.Sprint(err); got != tt.want || err != nil && text != tt.err || err == nil && tt.err != "" {
			t.Errorf("%s: got %q, %v", tt.name, got, err)
		}
	}
}

func TestLocalTellsPodsOfClasses(t *testing.T) {
	class := &nodev1.RuntimeClass{Handler: "kata"}
	class.Name = "strong"
	synctest.Test(t, func(t *testing.T) {
		l := newLocal()
		p := podWith("waits", nil, nil)
		p.Spec.RuntimeClassName = &class.Name
		l.Register(p)
		l.Set(Defined{RuntimeClasses: []*nodev1.RuntimeClass{class}})
		if got := told(l); !slices.Equal(got, []string{"waits"}) {
			t.Errorf("told %v, want the pod that names the class", got)
		}
	})
}
