//go:build e2e

package e2e

import (
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
)

// A credential provider gets a token of the pod's service account, and what it opens is for pods of
// that account alone.
func TestClusterImagesServiceAccountToken(t *testing.T) {
	t.Parallel()
	const user, password = "jane", "xyzzy-plugh-4711"
	c := newCluster(t)
	r := newRegistry(t, httptest.NewServer)
	audience := "registry-of-" + c.name
	for name, content := range map[string]string{
		"providers.yaml": `apiVersion: kubelet.config.k8s.io/v1
kind: CredentialProviderConfig
providers:
- name: provider
  matchImages: ["127.0.0.*:` + strings.Split(r.host, ":")[1] + `"]
  defaultCacheDuration: 1h
  apiVersion: credentialprovider.kubelet.k8s.io/v1
  tokenAttributes:
    serviceAccountTokenAudience: ` + audience + `
    cacheType: ServiceAccount
    requireServiceAccount: true
    requiredServiceAccountAnnotationKeys: [registry.example/user]
`,
		"provider": fmt.Sprintf(`#!/bin/sh
cat >> %[1]s/asked
echo >> %[1]s/asked
echo '{"kind":"CredentialProviderResponse","apiVersion":"credentialprovider.kubelet.k8s.io/v1","cacheKeyType":"Registry","auth":{"%[2]s":{"username":"%[3]s","password":"%[4]s"}}}'
`, c.place.Dir, r.host, user, password),
	} {
		if err := os.WriteFile(c.place.Dir+"/"+name, []byte(content), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	// Nodes may ask for tokens of this audience, once somebody says so.
	role := c.namespace + "-images"
	t.Cleanup(func() {
		c.tidy("delete", "clusterrole/"+role, "clusterrolebinding/"+role, "--ignore-not-found")
	})
	c.apply(fmt.Sprintf(`apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: %[1]s}
rules:
- {verbs: [request-serviceaccounts-token-audience], apiGroups: [""], resources: [%[2]s]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: %[1]s}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: %[1]s}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: Group, name: "system:nodes"}]
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: other}
`, role, audience))
	c.kubectl("annotate", "serviceaccount/default", "registry.example/user=jane")
	c.identity = append(c.identity, "--image-credential-provider-config", c.place.Dir+"/providers.yaml", "--image-credential-provider-bin-dir", c.place.Dir)
	c.startMember()
	image, _ := r.push(c.node, "team/app")
	r.protect("team/app", user, password)
	run := func(name, policy, account string) {
		c.apply(strings.Replace(puller(name, image, policy), "spec:\n", "spec:\n  nodeSelector: {kubernetes.io/hostname: THE_NODE}\n  serviceAccountName: "+account+"\n", 1))
	}
	run("one", "IfNotPresent", "default")
	p := c.awaitAPIReady("one").named("one")

	b, err := os.ReadFile(c.place.Dir + "/asked")
	if err != nil {
		t.Fatal(err)
	}
	var asked struct {
		Image                     string
		ServiceAccountToken       string
		ServiceAccountAnnotations map[string]string
	}
	if err := json.Unmarshal(b, &asked); err != nil {
		t.Fatalf("the provider was asked %s: %v", b, err)
	}
	c.wantTokenOf(p, asked.ServiceAccountToken, audience)
	if asked.Image != r.host+"/team/app" || len(asked.ServiceAccountAnnotations) != 1 || asked.ServiceAccountAnnotations["registry.example/user"] != "jane" {
		t.Errorf("the provider was asked for %s with %v", asked.Image, asked.ServiceAccountAnnotations)
	}

	run("same", "Never", "default")
	run("other", "Never", "other")
	c.awaitAPIReady("one", "same")
	c.awaitAPI("the pod of another service account to be refused the image", func(of pods) bool {
		for _, s := range of.named("other").Status.ContainerStatuses {
			if s.State.Waiting != nil && s.State.Waiting.Reason == "ErrImageNeverPull" {
				return true
			}
		}
		return false
	})
	run("another", "IfNotPresent", "other")
	until(t, "the agent to say what the provider wants", func() bool {
		another := c.command(c.ctx, "explain", "--all", c.namespace+"/another")
		return strings.Contains(another.out, `has no annotation "registry.example/user"`)
	})
	c.wantNowhere(password, c.place.Dir+"/provider")
	c.wantNowhere(asked.ServiceAccountToken, c.place.Dir+"/asked", c.place.Root+"/pods")
}
