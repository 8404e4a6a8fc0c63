//go:build e2e

// Package localapi tests the whole local API, as an agent is to run it: store, reads, registry,
// access, garbage, binder and manifests, behind TLS.
package localapi

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"berth/internal/cluster/kube"
	"berth/internal/cluster/kube/kubetest"
	"berth/internal/localapi"
	"berth/internal/localapi/apiserver"
)

// nodeName is what pods are bound to.
const nodeName = "n1"

// program returns the path that the environment names.
func program(t *testing.T, variable string) string {
	t.Helper()
	path := os.Getenv(variable)
	if path == "" {
		t.Fatalf("%s does not name a program: run make e2e", variable)
	}
	path, err := filepath.EvalSymlinks(path)
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// server is a local API that serves.
type server struct {
	*testing.T
	*localapi.Server
	dir string
}

// start serves the API of a folder until the test ends, or stop is called. change is given what the
// API is made of.
func start(t *testing.T, dir string, change ...func(*localapi.Config)) (s *server, stop func()) {
	t.Helper()
	for _, name := range []string{"root", "run"} {
		if err := os.MkdirAll(filepath.Join(dir, name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	documents, err := apiserver.OpenDocuments(os.Getenv("APISERVER") + ".documents")
	if err != nil {
		t.Fatal(err)
	}
	cfg := localapi.Config{
		RootDir: dir + "/root", RunDir: dir + "/run", NodeName: nodeName, Address: "127.0.0.1:0", Registry: program(t, "APISERVER"), Documents: documents,
		Answers: localapi.Answers{Node: http.HandlerFunc(nodeAPI)}, Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
	}
	for _, c := range change {
		c(&cfg)
	}
	api, err := localapi.Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- api.Run(ctx) }()
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := errors.Join(<-ended, api.Close()); err != nil {
			t.Errorf("the API ends: %v", err)
		}
	}
	t.Cleanup(stop)
	return &server{t, api, dir}, stop
}

// register creates the Node, as the agent does.
func (s *server) register() {
	s.Helper()
	s.must(`{"apiVersion":"v1","kind":"Node","metadata":{"name":"`+nodeName+`"},"status":{"allocatable":{"cpu":"8","memory":"8Gi","pods":"100"}}}`, []string{"create", "-f", "-"})
}

// scheduled waits until a pod is bound to the node.
func (s *server) scheduled(pod string) {
	s.Helper()
	s.must("", []string{"wait", "--for=condition=PodScheduled", "pod/" + pod, "--timeout=30s"})
}

// nodeAPI stands for the agent's: each log is one line.
func nodeAPI(w http.ResponseWriter, r *http.Request) { fmt.Fprintf(w, "the log of %s\n", r.URL.Path) }

// follows has the node's logs go on until who follows them goes.
func follows(cfg *localapi.Config) {
	cfg.Node = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		nodeAPI(w, r)
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	})
}

// folder is one of a short name, below which sockets can be.
func folder(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "api")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// config is the administrator's.
func (s *server) config() *rest.Config {
	s.Helper()
	c, err := clientcmd.BuildConfigFromFlags("", s.dir+"/run/kubeconfig")
	if err != nil {
		s.Fatal(err)
	}
	c.WarningHandlerWithContext = rest.NoWarnings{} // that pods of other nodes are started by nobody
	return c
}

// kubectl runs the real one and returns what it printed; the error has what it said.
func (s *server) kubectl(in string, args ...string) (string, error) {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), time.Minute)
	defer cancel()
	c := exec.CommandContext(ctx, program(s.T, "CONTROLPLANE"), append([]string{"kubectl", "--kubeconfig", s.dir + "/run/kubeconfig", "--cache-dir", s.dir + "/cache"}, args...)...)
	c.Stdin = strings.NewReader(in)
	out, err := c.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return string(out), err
}

// must is kubectl that must succeed, and print each of the texts.
func (s *server) must(in string, args []string, texts ...string) string {
	s.Helper()
	out, err := s.kubectl(in, args...)
	if err != nil {
		s.Fatal(err)
	}
	for _, text := range texts {
		if !strings.Contains(out, text) {
			s.Errorf("kubectl %s: %q lacks %q", strings.Join(args, " "), out, text)
		}
	}
	return out
}

// noKind is why the local API does not keep a clause of the contract.
const noKind = "the local API has no such kind"

// lacks are the clauses of the contract that the local API does not keep.
var lacks = map[string]string{
	"CertificateRequestsAreApproved":   noKind,
	"ClaimHasAStatusOfItsOwn":          noKind, // claims of devices
	"PodCertificateRequestsAreOfANode": noKind,
	"SlicesAreDeletedBySelector":       noKind,
	"TrustBundlesAreOfASigner":         noKind,
	"TablesOfOtherForms":               "the API has version v1 of each group alone",
	"VersionsAndGroups":                "the group policy has budgets, of which there are none; and kube-apiserver's list of groups is that of its aggregator, which says apiVersion",
}

// TestContract runs the contract suite of the fake API server, which kube-apiserver keeps, over the
// local API.
func TestContract(t *testing.T) {
	t.Parallel()
	dir := folder(t)
	_, stop := start(t, dir)
	stop()
	s, _ := start(t, dir) // it remembers changes only since it started
	// Room for resizes is asked of the node.
	s.register()
	t.Run("clauses", func(t *testing.T) {
		kubetest.RunContract(t, func(*testing.T) kubetest.Target {
			return kubetest.Target{Config: s.config(), Forgotten: s.forget, Lacks: lacks}
		})
	})
}

// forget has the API forget what it has answered so far: it remembers the last 4096 changes.
func (s *server) forget() string {
	s.Helper()
	client, err := kube.Open(kube.Config{REST: s.REST(), Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		s.Fatal(err)
	}
	var all sync.WaitGroup
	for range 64 {
		all.Go(func() {
			name := strings.ToLower(rand.Text())
			l, err := client.CreateLease(s.Context(), &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}})
			for i := range int32(4096 / 64) {
				if err == nil {
					l.Spec.LeaseTransitions = &i
					l, err = client.UpdateLease(s.Context(), l)
				}
			}
			if err != nil {
				s.Error(err)
			}
		})
	}
	all.Wait()
	return "1"
}

// TestKubectl is a session of kubectl.
func TestKubectl(t *testing.T) {
	t.Parallel()
	dir := folder(t)
	s, stop := start(t, dir)
	ready := func(what string) []string { return []string{"wait", "--for=create", what, "--timeout=30s"} }
	s.must("", []string{"get", "namespaces", "-o", "name"}, "namespace/default\n", "namespace/kube-system\n", "namespace/kube-public\n", "namespace/kube-node-lease\n")
	s.must("", ready("serviceaccount/default"))
	s.must("", []string{"auth", "whoami"}, "root", "system:masters")

	// A pod gets what admission gives it, and its node.
	const pod = `apiVersion: v1
kind: Pod
metadata: {name: web, labels: {app: web}}
spec:
  containers:
  - {name: main, image: "registry.example/web:1"}
`
	s.must(pod, []string{"apply", "-f", "-"}, "pod/web created")
	s.must(pod, []string{"apply", "-f", "-"}, "pod/web unchanged")
	// It is bound when there is a node.
	s.must("", []string{"wait", "--for=jsonpath={.status.conditions[0].message}=no nodes available to schedule pods", "pod/web", "--timeout=30s"})
	s.register()
	s.scheduled("web")
	s.must("", []string{"get", "pod", "web", "-o", "jsonpath={.spec.nodeName} {.spec.serviceAccountName} {.spec.volumes[0].projected.sources[1].configMap.name} {.status.phase}"},
		nodeName+" default kube-root-ca.crt Pending")
	s.must("", []string{"get", "pods", "-o", "wide"}, "NAME", "READINESS GATES", "web", "0/1", "Pending", nodeName)
	s.must("", []string{"label", "pod", "web", "tier=front"}, "pod/web labeled")
	s.must("", []string{"get", "pods", "-l", "tier=front", "--field-selector", "spec.nodeName=" + nodeName, "-o", "name"}, "pod/web")
	s.must("", []string{"logs", "web"}, "the log of /containerLogs/default/web/main")
	if _, err := s.kubectl(strings.Replace(pod, "web:1", "", 1)+"  hostNetwork: nonsense\n", "apply", "--server-side", "-f", "-"); err == nil || !strings.Contains(err.Error(), "hostNetwork") {
		t.Errorf("a field of a wrong type: %v", err)
	}
	if _, err := s.kubectl("", "patch", "pod", "web", "-p", `{"spec":{"hostNetwork":true}}`); err == nil || !strings.Contains(err.Error(), "pod updates may not change fields other than") {
		t.Errorf("a change of what stays: %v", err)
	}
	s.must("", []string{"describe", "pod", "web"}, "Node:             "+nodeName+"/", "kube-api-access-")
	s.must("", []string{"explain", "pod.spec.nodeName"}, "FIELD: nodeName <string>")

	// Objects go with their owner, and with their namespace.
	s.must("", []string{"create", "namespace", "garden"}, "namespace/garden created")
	s.must("", append(ready("configmap/kube-root-ca.crt"), "-n", "garden"))
	s.must("", []string{"create", "configmap", "tree", "-n", "garden", "--from-literal=leaves=many"})
	uid := s.must("", []string{"get", "configmap", "tree", "-n", "garden", "-o", "jsonpath={.metadata.uid}"})
	s.must(fmt.Sprintf(`{"apiVersion":"v1","kind":"Secret","metadata":{"name":"nest","namespace":"garden","ownerReferences":[{"apiVersion":"v1","kind":"ConfigMap","name":"tree","uid":%q}]}}`, uid),
		[]string{"create", "-f", "-"}, "secret/nest created")
	s.must("", []string{"delete", "configmap", "tree", "-n", "garden"})
	s.must("", []string{"wait", "--for=delete", "secret/nest", "-n", "garden", "--timeout=30s"})
	s.must("", []string{"delete", "namespace", "garden", "--timeout=30s"}, `namespace "garden" deleted`)

	// A claim is protected while a pod uses it, and goes when none does.
	s.must(`{"apiVersion":"v1","kind":"PersistentVolumeClaim","metadata":{"name":"data"},"spec":{"accessModes":["ReadWriteOnce"],"resources":{"requests":{"storage":"1Gi"}}}}`,
		[]string{"create", "-f", "-"}, "persistentvolumeclaim/data created")
	s.must("", []string{"delete", "pvc", "data", "--timeout=30s"})

	// Who is not known is not served, and who may little gets little.
	if code := s.anonymous(); code != http.StatusUnauthorized {
		t.Errorf("nobody gets %d", code)
	}
	s.must("", []string{"auth", "can-i", "list", "pods"}, "yes")
	if out, err := s.kubectl("", "get", "pods", "--as", "nobody"); err == nil || !strings.Contains(err.Error(), `pods is forbidden: User "nobody" cannot list resource "pods"`) {
		t.Errorf("somebody who may nothing: %q, %v", out, err)
	}

	// What was written is there after a restart.
	stop()
	s, _ = start(t, dir)
	s.must("", []string{"get", "pod", "web", "-o", "jsonpath={.metadata.labels.tier}"}, "front")
	s.must("", []string{"delete", "pod", "web", "--force", "--grace-period=0", "--timeout=30s"}, `pod "web" force deleted`)
}

// anonymous is the code that a client without credentials is answered with.
func (s *server) anonymous() int {
	s.Helper()
	c := rest.AnonymousClientConfig(s.config())
	transport, err := rest.TransportFor(c)
	if err != nil {
		s.Fatal(err)
	}
	answer, err := (&http.Client{Transport: transport, Timeout: time.Minute}).Get(c.Host + "/api/v1/pods")
	if err != nil {
		s.Fatal(err)
	}
	defer answer.Body.Close()
	if _, err := io.Copy(io.Discard, answer.Body); err != nil {
		s.Error(err)
	}
	return answer.StatusCode
}
