// Package prometheus has Prometheus's own discovery of targets ask the local API.
package prometheus

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/discovery"
	sd "github.com/prometheus/prometheus/discovery/kubernetes"
	"github.com/prometheus/prometheus/discovery/targetgroup"
	"go.yaml.in/yaml/v2"
	authenticationv1 "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"berth/internal/localapi"
)

// patience bounds each wait; it is no expectation of speed.
const patience = time.Minute

// machine is a local API, written to as the agent writes, without a program that judges.
type machine struct {
	*testing.T
	*localapi.Server
	dir    string
	client kubernetes.Interface
}

func newMachine(t *testing.T) *machine {
	t.Helper()
	dir, err := os.MkdirTemp("", "prom") // of a short name, for sockets
	if err != nil {
		t.Fatal(err)
	}
	api, err := localapi.Open(localapi.Config{
		RootDir: dir, RunDir: dir, NodeName: "n1", Address: "127.0.0.1:0", Answers: localapi.Answers{Node: http.NotFoundHandler()}, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- api.Serve(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := errors.Join(<-ended, api.Close(), os.RemoveAll(dir)); err != nil {
			t.Error(err)
		}
	})
	own := rest.CopyConfig(api.REST())
	own.QPS = -1
	client, err := kubernetes.NewForConfig(own)
	if err != nil {
		t.Fatal(err)
	}
	return &machine{t, api, dir, client}
}

// of is the error of a call whose answer is not needed.
func of[T any](_ T, err error) error { return err }

// rules are what Prometheus's documentation asks for: to read what it discovers.
const rules = `rules:
- users: ["system:serviceaccount:default:prometheus"]
  verbs: [get, list, watch]
  resources: [nodes, pods, namespaces]
`

// account writes the rules, and files as a pod of the service account has, and returns a
// configuration that names them.
func (m *machine) account() string {
	m.Helper()
	ctx := m.Context()
	err := of(m.client.CoreV1().ServiceAccounts("default").Create(ctx, &v1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "prometheus"}}, metav1.CreateOptions{}))
	if err != nil {
		m.Fatal(err)
	}
	token, err := m.client.CoreV1().ServiceAccounts("default").CreateToken(ctx, "prometheus", &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		m.Fatal(err)
	}
	admin, err := clientcmd.BuildConfigFromFlags("", filepath.Join(m.dir, "kubeconfig"))
	if err != nil {
		m.Fatal(err)
	}
	for name, content := range map[string]string{"access.yaml": rules, "token": token.Status.Token, "ca.crt": string(admin.CAData)} {
		if err := os.WriteFile(filepath.Join(m.dir, name), []byte(content), 0o600); err != nil {
			m.Fatal(err)
		}
	}
	return fmt.Sprintf("api_server: https://%s\nauthorization: {credentials_file: %s/token}\ntls_config: {ca_file: %s/ca.crt}\n", m.Address(), m.dir, m.dir)
}

// targets are those of a discovery, by the source of their group.
type targets struct {
	*testing.T
	registry *prometheus.Registry
	updates  chan []*targetgroup.Group
	known    map[string]*targetgroup.Group
}

// discover runs a discovery, of a configuration as users write it, until the test ends.
func (m *machine) discover(text string) *targets {
	m.Helper()
	var cfg sd.SDConfig
	if err := yaml.UnmarshalStrict([]byte(text), &cfg); err != nil {
		m.Fatal(err)
	}
	t := &targets{m.T, prometheus.NewRegistry(), make(chan []*targetgroup.Group), map[string]*targetgroup.Group{}}
	metrics := cfg.NewDiscovererMetrics(t.registry, nil)
	if err := metrics.Register(); err != nil {
		m.Fatal(err)
	}
	d, err := cfg.NewDiscoverer(discovery.DiscovererOptions{Logger: slog.New(slog.NewTextHandler(m.Output(), nil)), Metrics: metrics})
	if err != nil {
		m.Fatal(err)
	}
	ctx, stop := context.WithCancel(m.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		d.Run(ctx, t.updates)
	}()
	m.Cleanup(func() {
		stop()
		<-ended
	})
	return t
}

// until takes updates until all is as it is to be.
func (t *targets) until(what string, done func() bool) {
	t.Helper()
	late := time.After(patience)
	look := time.NewTicker(50 * time.Millisecond) // counters have no event
	defer look.Stop()
	for !done() {
		select {
		case <-look.C:
		case groups := <-t.updates:
			for _, g := range groups {
				if g != nil {
					t.known[g.Source] = g
				}
			}
		case <-late:
			text, _ := json.Marshal(t.known)
			t.Fatalf("%s: after %v the targets are %s", what, patience, text)
		}
	}
}

// has reports whether a group has one target more than none, and those labels.
func (t *targets) has(source string, labels model.LabelSet) bool {
	g := t.known[source]
	if g == nil || len(g.Targets) == 0 {
		return false
	}
	all := maps.Clone(g.Labels)
	maps.Copy(all, g.Targets[0])
	for name, value := range labels {
		if all[name] != value {
			return false
		}
	}
	return true
}

// isGone reports whether a group has no target any more.
func (t *targets) isGone(source string) bool {
	g := t.known[source]
	return g != nil && len(g.Targets) == 0
}

func pod(name, app string) *v1.Pod {
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", Labels: map[string]string{"app": app}, Annotations: map[string]string{"prometheus.io/scrape": "true"}},
		Spec: v1.PodSpec{NodeName: "n1", Containers: []v1.Container{{
			Name: "main", Image: "registry.example/web:1", Ports: []v1.ContainerPort{{Name: "http", ContainerPort: 8080, Protocol: v1.ProtocolTCP}},
		}}},
	}
}

func running(p *v1.Pod, ip string) *v1.Pod {
	p = p.DeepCopy()
	p.Status = v1.PodStatus{
		Phase: v1.PodRunning, PodIP: ip, HostIP: "192.0.2.1", Conditions: []v1.PodCondition{{Type: v1.PodReady, Status: v1.ConditionTrue}},
		ContainerStatuses: []v1.ContainerStatus{{Name: "main", ContainerID: "containerd://c1"}},
	}
	return p
}

// TestPods discovers pods with their node and their namespace, as they come, change and go.
func TestPods(t *testing.T) {
	m := newMachine(t)
	pods, ctx := m.client.CoreV1().Pods("default"), t.Context()
	node := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", Labels: map[string]string{"zone": "cellar"}}}
	if err := errors.Join(
		of(m.client.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{})),
		of(pods.Create(ctx, running(pod("first", "web"), "10.0.0.1"), metav1.CreateOptions{})),
		of(pods.Create(ctx, running(pod("other", "db"), "10.0.0.9"), metav1.CreateOptions{})),
	); err != nil {
		t.Fatal(err)
	}
	found := m.discover(m.account() + "role: pod\nattach_metadata: {node: true, namespace: true}\nselectors: [{role: pod, label: app=web, field: spec.nodeName=n1}]\n")
	labels := model.LabelSet{
		"__address__": "10.0.0.1:8080", "__meta_kubernetes_namespace": "default", "__meta_kubernetes_pod_name": "first", "__meta_kubernetes_pod_ip": "10.0.0.1",
		"__meta_kubernetes_pod_container_name": "main", "__meta_kubernetes_pod_container_image": "registry.example/web:1", "__meta_kubernetes_pod_container_id": "containerd://c1",
		"__meta_kubernetes_pod_container_port_name": "http", "__meta_kubernetes_pod_ready": "true", "__meta_kubernetes_pod_phase": "Running", "__meta_kubernetes_pod_node_name": "n1",
		"__meta_kubernetes_pod_host_ip": "192.0.2.1", "__meta_kubernetes_pod_label_app": "web", "__meta_kubernetes_pod_annotation_prometheus_io_scrape": "true",
		"__meta_kubernetes_node_label_zone": "cellar", "__meta_kubernetes_namespace_label_kubernetes_io_metadata_name": "default",
	}
	found.until("a pod that is there", func() bool { return found.has("pod/default/first", labels) })

	second, err := pods.Create(ctx, pod("second", "web"), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	second.Status = running(second, "10.0.0.2").Status
	if err := errors.Join(of(pods.UpdateStatus(ctx, second, metav1.UpdateOptions{})), pods.Delete(ctx, "first", metav1.DeleteOptions{GracePeriodSeconds: new(int64)})); err != nil {
		t.Fatal(err)
	}
	found.until("a pod that comes, and one that goes", func() bool {
		return found.has("pod/default/second", model.LabelSet{"__address__": "10.0.0.2:8080", "__meta_kubernetes_pod_ready": "true"}) && found.isGone("pod/default/first")
	})
	if found.known["pod/default/other"] != nil {
		t.Errorf("a pod that is not selected is a target: %v", found.known)
	}
}

// TestNodes discovers the node, by a kubeconfig.
func TestNodes(t *testing.T) {
	m := newMachine(t)
	node := &v1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "n1", Labels: map[string]string{"zone": "cellar"}},
		Status: v1.NodeStatus{
			Addresses:       []v1.NodeAddress{{Type: v1.NodeInternalIP, Address: "192.0.2.1"}, {Type: v1.NodeHostName, Address: "n1"}},
			DaemonEndpoints: v1.NodeDaemonEndpoints{KubeletEndpoint: v1.DaemonEndpoint{Port: 10250}},
		},
	}
	if _, err := m.client.CoreV1().Nodes().Create(t.Context(), node, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	found := m.discover("role: node\nkubeconfig_file: " + m.dir + "/kubeconfig\n")
	labels := model.LabelSet{
		"__address__": "192.0.2.1:10250", "instance": "n1", "__meta_kubernetes_node_name": "n1",
		"__meta_kubernetes_node_address_InternalIP": "192.0.2.1", "__meta_kubernetes_node_label_zone": "cellar",
	}
	found.until("the node", func() bool { return found.has("node/n1", labels) })
}

// TestRolesWithoutKinds asks for targets of kinds that there are none of. Prometheus is told so, as
// by a server that has never heard of them; it tries again, and has no targets.
func TestRolesWithoutKinds(t *testing.T) {
	m := newMachine(t)
	account := m.account()
	admin, err := clientcmd.BuildConfigFromFlags("", filepath.Join(m.dir, "kubeconfig"))
	if err != nil {
		t.Fatal(err)
	}
	client, err := rest.HTTPClientFor(admin)
	if err != nil {
		t.Fatal(err)
	}
	for role, path := range map[string]string{
		"service": "/api/v1/services", "endpoints": "/api/v1/endpoints", "endpointslice": "/apis/discovery.k8s.io/v1/endpointslices", "ingress": "/apis/networking.k8s.io/v1/ingresses",
	} {
		response, err := client.Get(admin.Host + path)
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
		if response.StatusCode != http.StatusNotFound {
			t.Errorf("%s is answered %d", path, response.StatusCode)
		}
		for name, text := range map[string]string{"admin": "kubeconfig_file: " + m.dir + "/kubeconfig\n", "account": account} {
			found := m.discover(text + "role: " + role + "\n")
			found.until(role+" as "+name, func() bool { return found.failures() > 0 })
			if len(found.known) > 0 {
				t.Errorf("%s has targets: %v", role, found.known)
			}
		}
	}
}

// failures is how many requests Prometheus says have failed.
func (t *targets) failures() float64 {
	t.Helper()
	families, err := t.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if strings.HasSuffix(f.GetName(), "_failures_total") {
			return f.Metric[0].GetCounter().GetValue()
		}
	}
	t.Fatalf("there is no count of failures among %d families", len(families))
	return 0
}
