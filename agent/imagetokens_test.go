package agent_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/agent/agenttest"
	"berth/internal/cluster/kube/kubetest"
	"berth/internal/runtime/cri/critest"
)

// Pods pull with what a credential provider has for a token of their service account. What was
// pulled is theirs while the API server is away, and with another agent.
func TestImageTokens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bin := t.TempDir()
		for name, content := range map[string]string{
			"provider": "#!/bin/sh\ncat >> " + bin + "/asked; echo >> " + bin + `/asked
echo '{"kind":"CredentialProviderResponse","apiVersion":"credentialprovider.kubelet.k8s.io/v1","cacheKeyType":"Image","auth":{"registry.example":{"username":"jane","password":"right"}}}'
`,
			"providers.yaml": `apiVersion: kubelet.config.k8s.io/v1
kind: CredentialProviderConfig
providers:
- name: provider
  matchImages: ["registry.example"]
  defaultCacheDuration: 1h
  apiVersion: credentialprovider.kubelet.k8s.io/v1
  tokenAttributes: {serviceAccountTokenAudience: registry, cacheType: ServiceAccount, requireServiceAccount: true}
`,
		} {
			if err := os.WriteFile(filepath.Join(bin, name), []byte(content), 0o700); err != nil {
				t.Fatal(err)
			}
		}
		asked := func(want int) {
			t.Helper()
			b, err := os.ReadFile(bin + "/asked")
			if err != nil || strings.Count(string(b), "\n") != want || strings.Count(string(b), `"serviceAccountToken":"`) != want {
				t.Errorf("the provider was asked %s (%v), want %d times with a token", b, err, want)
			}
		}
		w := agenttest.New(t)
		w.Runtime.Images.AddToRegistry(critest.RegistryImage{Image: critest.Image{Name: "registry.example/app:1"}, Authorize: func(a *runtimeapi.AuthConfig) error {
			if a.GetPassword() != "right" {
				return errors.New("unauthorized")
			}
			return nil
		}})
		w.Flags = map[string]string{"image-credential-provider-config": bin + "/providers.yaml", "image-credential-provider-bin-dir": bin}
		w.Join()
		run := func(name, account string) {
			kubetest.Put(w.API, &v1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: account}})
			kubetest.Put(w.API, &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"}, Spec: v1.PodSpec{
				NodeName: agenttest.NodeName, ServiceAccountName: account,
				Containers: []v1.Container{{Name: "main", Image: "registry.example/app:1", ImagePullPolicy: v1.PullIfNotPresent}},
			}})
			w.Settle(10 * time.Second)
		}
		run("one", "robot")
		wantAPI(t, w, "with a token", "one", 0)
		asked(1)

		w.API.Stop()
		if err := w.Runtime.Kill(containerOf(t, w, "one"), 1); err != nil {
			t.Fatal(err)
		}
		w.Settle(2 * time.Minute)
		if containerOf(t, w, "one") == "" {
			t.Error("the pod may not use its image while the API server is away")
		}
		w.API.Start()
		w.Settle(2 * time.Minute)
		wantAPI(t, w, "after the API server was away", "one", 1)

		w.StopAgent()
		w.StartAgent()
		w.Settle(10 * time.Second)
		run("two", "robot")
		wantAPI(t, w, "the same account", "two", 0)
		asked(1)
		run("three", "other")
		wantAPI(t, w, "another account", "three", 0)
		asked(2)
	})
}
