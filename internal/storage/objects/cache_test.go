package objects

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/ptr"

	"berth/internal/pod"
	"berth/internal/record/events/messagestest"
)

// value reads key "k" of a ConfigMap, or the error.
func value(t *testing.T, o *Objects, name string) string {
	t.Helper()
	m, err := o.ConfigMap(t.Context(), "ns", name)
	messagestest.SawError(err)
	if err != nil {
		return err.Error()
	}
	return m.Data["k"]
}

// watches are the ConfigMaps of objects with the strategy Watch.
func watches(o *Objects) *cache[v1.ConfigMap] { return o.configMaps.(*cache[v1.ConfigMap]) }

func TestOneWatchPerObject(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		s.setConfigMap("ns", "a", map[string]string{"k": "1"})
		o := start(t, s)
		if got := value(t, o, "a"); got != `object "ns"/"a" not registered` {
			t.Errorf("got %s", got)
		}
		one, two := podWith("1", []string{"a"}, nil), podWith("2", []string{"a", "b"}, nil)
		o.Register(one)
		o.Register(two)
		o.Register(two)
		if got := s.watched(); !slices.Equal(got, []string{"ns/a", "ns/b"}) {
			t.Errorf("watched: %v", got)
		}
		if got := value(t, o, "a"); got != "1" {
			t.Errorf("got %s", got)
		}
		_, err := o.ConfigMap(t.Context(), "ns", "b")
		if !apierrors.IsNotFound(err) || err.Error() != `configmap "b" not found` {
			t.Errorf("got %v", err)
		}
		if got := told(o); got != nil {
			t.Errorf("told %v of what they read themselves", got)
		}

		o.Unregister("1")
		if got := s.watched(); !slices.Equal(got, []string{"ns/a", "ns/b"}) {
			t.Errorf("watched: %v", got)
		}
		two.Spec.Volumes = two.Spec.Volumes[1:]
		o.Register(two)
		if got := s.watched(); !slices.Equal(got, []string{"ns/b"}) {
			t.Errorf("watched: %v", got)
		}
		o.Unregister("2")
		o.Unregister("never seen")
		if got := s.watched(); len(got) != 0 || len(watches(o).items) != 0 || len(watches(o).pods) != 0 {
			t.Errorf("left: %v, %v, %v", got, watches(o).items, watches(o).pods)
		}
		if got := value(t, o, "b"); got != `object "ns"/"b" not registered` {
			t.Errorf("got %s", got)
		}
	})
}

func TestPodsAreToldOfChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		s.setConfigMap("ns", "a", map[string]string{"k": "1"})
		o := start(t, s)
		o.Register(podWith("1", []string{"a"}, nil))
		o.Register(podWith("2", nil, []string{"a"}))
		o.Register(podWith("3", []string{"b"}, nil))
		if got := told(o); got != nil {
			t.Errorf("told at first sight: %v", got)
		}
		s.setConfigMap("ns", "a", map[string]string{"k": "2"})
		if got := told(o); !slices.Equal(got, []string{"1", "2"}) {
			t.Errorf("told %v", got)
		}
		if got := value(t, o, "a"); got != "2" {
			t.Errorf("got %s", got)
		}
		s.setConfigMap("ns", "b", map[string]string{"k": "new"})
		if got := told(o); !slices.Equal(got, []string{"3"}) {
			t.Errorf("told %v", got)
		}
		s.change(func(string) {}) // a list that brings nothing new
		if got := told(o); got != nil {
			t.Errorf("told %v of nothing", got)
		}
		s.deleteConfigMap("ns", "b")
		if got := told(o); !slices.Equal(got, []string{"3"}) {
			t.Errorf("told %v", got)
		}
	})
}

func TestServerThatDoesNotAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		s.silent = true
		s.setConfigMap("ns", "a", map[string]string{"k": "1"})
		o := start(t, s)
		o.Register(podWith("1", []string{"a"}, nil))
		began := time.Now()
		if got := value(t, o, "a"); got != "failed to sync configmap cache: timed out waiting for the condition" || time.Since(began) != time.Second {
			t.Errorf("got %s after %s", got, time.Since(began))
		}
		ctx, cancel := context.WithCancelCause(t.Context())
		leave := errors.New("a stronger wish")
		cancel(leave)
		if _, err := o.ConfigMap(ctx, "ns", "a"); !errors.Is(err, leave) {
			t.Errorf("got %v", err)
		}
		s.change(func(string) { s.silent = false })
		if got := told(o); !slices.Equal(got, []string{"1"}) {
			t.Errorf("told %v: a pod that could not wait must hear that it need not", got)
		}
		if got := value(t, o, "a"); got != "1" {
			t.Errorf("got %s", got)
		}
	})
}

func TestImmutableObjectIsNotWatched(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		s.secrets[key{"ns", "s"}] = &v1.Secret{Immutable: ptr.To(true), Data: map[string][]byte{"k": []byte("v")}}
		o := start(t, s)
		p := podWith("1", nil, nil)
		p.Spec.Volumes = []v1.Volume{{Name: "s", VolumeSource: v1.VolumeSource{Secret: &v1.SecretVolumeSource{SecretName: "s"}}}}
		o.Register(p)
		if got := s.watched(); len(got) != 0 {
			t.Errorf("watched: %v", got)
		}
		time.Sleep(time.Hour)
		o.Register(p)
		got, err := o.Secret(t.Context(), "ns", "s")
		if err != nil || string(got.Data["k"]) != "v" {
			t.Errorf("got %v, %v", got, err)
		}
		if got := s.watched(); len(got) != 0 {
			t.Errorf("watched again: %v", got)
		}
	})
}

func TestIdleWatchEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		s.setConfigMap("ns", "env", map[string]string{"k": "1"})
		s.setConfigMap("ns", "shown", map[string]string{"k": "1"})
		o := start(t, s)
		o.Register(podWith("1", []string{"shown"}, []string{"env"}))
		time.Sleep(4 * time.Minute)
		if got := value(t, o, "env"); got != "1" {
			t.Errorf("got %s", got)
		}
		time.Sleep(4 * time.Minute)
		if got := s.watched(); !slices.Equal(got, []string{"ns/env", "ns/shown"}) {
			t.Errorf("watched: %v", got)
		}
		time.Sleep(90 * time.Second)
		if got := s.watched(); !slices.Equal(got, []string{"ns/shown"}) {
			t.Errorf("watched: %v; want only what a volume shows", got)
		}
		s.setConfigMap("ns", "env", map[string]string{"k": "2"})
		if got := value(t, o, "env"); got != "2" {
			t.Errorf("got %s: an old copy was served", got)
		}
		if got := s.watched(); !slices.Equal(got, []string{"ns/env", "ns/shown"}) {
			t.Errorf("watched: %v", got)
		}
		time.Sleep(10 * time.Minute)
		o.Register(podWith("2", []string{"env"}, nil))
		if got := s.watched(); !slices.Equal(got, []string{"ns/env", "ns/shown"}) {
			t.Errorf("watched: %v; a volume shows it now", got)
		}
	})
}

func TestServices(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		s.silent = true
		o := start(t, s)
		static, other := podWith("static", nil, nil), podWith("1", nil, nil)
		static.Annotations = map[string]string{pod.ConfigSourceAnnotation: string(pod.FileSource)}
		began := time.Now()
		if got, err := o.Services(t.Context(), static); got != nil || err != nil || time.Since(began) != 0 {
			t.Errorf("a static pod: got %v, %v after %s", got, err, time.Since(began))
		}
		if _, err := o.Services(t.Context(), other); err == nil || err.Error() != "services have not yet been read at least once, cannot construct envvars" {
			t.Errorf("got %v", err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := o.Services(ctx, other); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
		s.change(func(string) { s.silent = false })
		if got := told(o); !slices.Equal(got, []string{"1"}) {
			t.Errorf("told %v: a pod that could not wait must hear that it need not", got)
		}
		if got, err := o.Services(t.Context(), other); len(got) != 0 || err != nil {
			t.Errorf("got %v, %v", got, err)
		}
		s.change(func(string) { s.services = append(s.services, &v1.Service{}) })
		if got := told(o); got != nil {
			t.Errorf("told %v; services are only read when containers start", got)
		}
		if got, err := o.Services(t.Context(), static); len(got) != 1 || err != nil {
			t.Errorf("got %v, %v", got, err)
		}
	})
}

func TestReferences(t *testing.T) {
	local := func(name string) v1.LocalObjectReference { return v1.LocalObjectReference{Name: name} }
	p := podWith("1", []string{"shown", "both"}, []string{"env", "both"})
	p.Spec.ImagePullSecrets = []v1.LocalObjectReference{local("pull"), {}}
	p.Spec.InitContainers = []v1.Container{{Env: []v1.EnvVar{
		{Name: "plain"},
		{Name: "a", ValueFrom: &v1.EnvVarSource{SecretKeyRef: &v1.SecretKeySelector{LocalObjectReference: local("key")}}},
	}}}
	p.Spec.EphemeralContainers = []v1.EphemeralContainer{{EphemeralContainerCommon: v1.EphemeralContainerCommon{
		Env:     []v1.EnvVar{{Name: "b", ValueFrom: &v1.EnvVarSource{ConfigMapKeyRef: &v1.ConfigMapKeySelector{LocalObjectReference: local("debug")}}}},
		EnvFrom: []v1.EnvFromSource{{SecretRef: &v1.SecretEnvSource{LocalObjectReference: local("debug")}}},
	}}}
	p.Spec.Volumes = append(p.Spec.Volumes,
		v1.Volume{VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}},
		v1.Volume{VolumeSource: v1.VolumeSource{Secret: &v1.SecretVolumeSource{SecretName: "volume"}}},
		v1.Volume{VolumeSource: v1.VolumeSource{CSI: &v1.CSIVolumeSource{NodePublishSecretRef: ptr.To(local("publish"))}}},
		v1.Volume{VolumeSource: v1.VolumeSource{ISCSI: &v1.ISCSIVolumeSource{}}},
		v1.Volume{VolumeSource: v1.VolumeSource{AzureFile: &v1.AzureFileVolumeSource{SecretName: "azure"}}},
		v1.Volume{VolumeSource: v1.VolumeSource{Projected: &v1.ProjectedVolumeSource{Sources: []v1.VolumeProjection{
			{ConfigMap: &v1.ConfigMapProjection{LocalObjectReference: local("projected")}},
			{Secret: &v1.SecretProjection{LocalObjectReference: local("projected")}},
			{ServiceAccountToken: &v1.ServiceAccountTokenProjection{}},
		}}}},
	)
	configMaps, secrets := pod.References(p)
	if d := cmp.Diff(map[string]pod.ReferenceUse{"shown": pod.Mounted, "both": pod.Mounted, "env": pod.ReadAtStart, "debug": pod.ReadAtStart, "projected": pod.Mounted}, configMaps); d != "" {
		t.Errorf("config maps: %s", d)
	}
	want := map[string]pod.ReferenceUse{"pull": pod.ReadAtStart, "key": pod.ReadAtStart, "debug": pod.ReadAtStart, "volume": pod.Mounted, "publish": pod.ReadAtStart, "azure": pod.ReadAtStart, "projected": pod.Mounted}
	if d := cmp.Diff(want, secrets); d != "" {
		t.Errorf("secrets: %s", d)
	}
}
