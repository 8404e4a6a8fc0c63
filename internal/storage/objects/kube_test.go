package objects_test

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth/internal/cluster/kube"
	"berth/internal/cluster/kube/kubetest"
	"berth/internal/pod"
	"berth/internal/record/events/messagestest"
	"berth/internal/storage/objects"
)

// apiServer is the API server as objects see it, over the agent's client.
type apiServer struct {
	kube.PodObjects // CreateToken
}

func (a apiServer) FollowConfigMap(ctx context.Context, namespace, name string, seen func(*v1.ConfigMap)) {
	follow(ctx, a.Client, namespace, name, seen)
}

func (a apiServer) FollowSecret(ctx context.Context, namespace, name string, seen func(*v1.Secret)) {
	follow(ctx, a.Client, namespace, name, seen)
}

func (a apiServer) FollowServices(ctx context.Context, seen func([]*v1.Service)) {
	var w *kube.Watch[*v1.Service]
	w = kube.NewWatch[*v1.Service](a.Client, kube.Selector{}, func() {
		all, _ := w.List()
		seen(all)
	})
	_ = w.Run(ctx)
}

func (a apiServer) FollowRuntimeClass(ctx context.Context, name string, seen func(*nodev1.RuntimeClass)) {
	follow(ctx, a.Client, "", name, seen)
}

func follow[P kube.Watchable](ctx context.Context, c *kube.Client, namespace, name string, seen func(P)) {
	var w *kube.Watch[P]
	w = kube.NewWatch[P](c, kube.Named(namespace, name), func() {
		object, _ := w.Get(namespace, name)
		seen(object)
	})
	_ = w.Run(ctx)
}

// The whole way from the API server to the pod that is told: over the agent's client, whose watches
// break and whose server goes away.
func TestOverTheClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := kubetest.New()
		log := slog.New(slog.DiscardHandler)
		client, err := kube.Open(kube.Config{REST: s.Config(), Version: "v0.0.0-test", Log: log})
		if err != nil {
			t.Fatal(err)
		}
		api := apiServer{kube.PodObjects{Client: client}}
		o, err := objects.New(objects.Config{API: api, Classes: api, Accounts: api, SyncFrequency: time.Minute, Log: log})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- o.Run(ctx) }()
		defer func() {
			cancel()
			if err := <-done; !errors.Is(err, context.Canceled) {
				t.Errorf("Run: %v", err)
			}
		}()

		meta := func(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Namespace: "ns", Name: name} }
		kubetest.Put(s, &v1.ConfigMap{ObjectMeta: meta("other"), Data: map[string]string{"k": "other"}})
		kubetest.Put(s, &v1.Service{ObjectMeta: meta("svc"), Spec: v1.ServiceSpec{ClusterIP: "10.0.0.1"}})
		kubetest.Put(s, &v1.ServiceAccount{ObjectMeta: meta("default")})
		p := kubetest.Put(s, &v1.Pod{ObjectMeta: meta("p"), Spec: v1.PodSpec{
			ServiceAccountName: "default", Containers: []v1.Container{{Name: "c", Image: "i"}},
			Volumes: []v1.Volume{{Name: "v", VolumeSource: v1.VolumeSource{ConfigMap: &v1.ConfigMapVolumeSource{
				LocalObjectReference: v1.LocalObjectReference{Name: "cm"},
			}}}},
		}})
		read := func() string {
			m, err := o.ConfigMap(t.Context(), "ns", "cm")
			messagestest.SawError(err)
			if err != nil {
				return err.Error()
			}
			return m.Data["k"]
		}
		put := func(value string) {
			kubetest.Put(s, &v1.ConfigMap{ObjectMeta: meta("cm"), Data: map[string]string{"k": value}})
		}
		told := func(want ...pod.UID) {
			t.Helper()
			synctest.Wait()
			if got := o.Changed().Take(); !slices.Equal(got, want) {
				t.Errorf("told %v, want %v", got, want)
			}
		}
		o.Register(p)
		if got := read(); got != `configmap "cm" not found` {
			t.Errorf("got %s", got)
		}
		told()
		put("1")
		told(p.UID)
		if got := read(); got != "1" {
			t.Errorf("got %s", got)
		}
		s.BreakWatches()
		put("2")
		time.Sleep(5 * time.Second)
		told(p.UID)

		s.Stop()
		time.Sleep(time.Minute)
		if got := read(); got != "2" {
			t.Errorf("while the server is away: got %s", got)
		}
		told()
		s.Start()
		put("3")
		time.Sleep(30 * time.Second)
		told(p.UID)
		if got := read(); got != "3" {
			t.Errorf("got %s", got)
		}
		if all, err := o.Services(t.Context(), p); err != nil || len(all) != 1 {
			t.Errorf("services: %v, %v", all, err)
		}
		token, err := o.Token(t.Context(), p, &v1.ServiceAccountTokenProjection{Path: "token"})
		if err != nil || token == "" {
			t.Errorf("token: %q, %v", token, err)
		}
		account, err := o.ServiceAccount(t.Context(), p)
		if err != nil || account.UID == "" {
			t.Fatalf("service account: %v, %v", account, err)
		}
		if token, err = o.ImageToken(t.Context(), p, account, "registry"); err != nil || token == "" {
			t.Errorf("token for images: %q, %v", token, err)
		}
		for _, q := range s.Requests() {
			if q.Resource == "configmaps" && q.Query.Get("fieldSelector") != "metadata.name=cm" {
				t.Errorf("more was read than what the pod refers to: %+v", q)
			}
		}
	})
}
