//go:build e2e

package e2e

import (
	"context"
	"log/slog"
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"

	"berth/internal/cluster/kube"
	"berth/internal/cluster/kube/kubetest"
)

// TestKubeContract runs the contract suite of the fake API server over a real one.
func TestKubeContract(t *testing.T) {
	c := newControlPlane(t)
	// Pages and old lists are forgotten with what etcd is told to forget.
	c.up(append(slices.Clone(withCertificates), "--arg", "kube-apiserver=--etcd-compaction-interval=3s")...)
	c.must("stop-apiserver")
	c.must("start-apiserver") // it remembers changes only since it started
	config, err := kube.LoadKubeconfig(c.dir + "/admin.kubeconfig")
	if err != nil {
		t.Fatal(err)
	}
	kubetest.RunContract(t, func(*testing.T) kubetest.Target {
		// The objects that a server makes for itself in the beginning have versions above 1.
		return kubetest.Target{Config: config, Forgotten: func() string { return "1" }}
	})
}

// TestKubeWatchOverAnOutage watches through a restart of the API server: what is known stays known,
// and what changed meanwhile is seen.
func TestKubeWatchOverAnOutage(t *testing.T) {
	c := newControlPlane(t)
	c.up()
	config, err := kube.LoadKubeconfig(c.dir + "/admin.kubeconfig")
	if err != nil {
		t.Fatal(err)
	}
	client, err := kube.Open(kube.Config{REST: config, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	w := kube.NewWatch[*v1.ConfigMap](client, kube.Named("default", "story"), nil)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()
	chapter := func(want string) func() bool {
		return func() bool {
			m, ok := w.Get("default", "story")
			return ok && m.Data["chapter"] == want
		}
	}

	<-w.Synced()
	c.mustKubectl("", "create", "configmap", "-n", "default", "story", "--from-literal=chapter=one")
	until(t, "the watch to see the config map", chapter("one"))
	c.must("stop-apiserver")
	until(t, "the watch to notice the outage", func() bool { return w.Err() != nil })
	if !chapter("one")() {
		t.Error("the watch forgot the config map in the outage")
	}
	c.must("start-apiserver")
	c.mustKubectl("", "patch", "configmap", "-n", "default", "story", "-p", `{"data":{"chapter":"two"}}`)
	until(t, "the watch to see what changed", chapter("two"))
	if err := w.Err(); err != nil {
		t.Errorf("the watch works again and says: %v", err)
	}
	stop()
	if err := <-ended; err != nil {
		t.Errorf("Run: %v", err)
	}
}
