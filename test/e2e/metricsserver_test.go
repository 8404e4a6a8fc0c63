//go:build e2e && metricsserver

package e2e

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"berth/internal/cluster/kube"
	"berth/test/addons"
)

// metricsServerService has the API server find the metrics server at THE_PORT of the loopback.
// THE_NAMESPACE is the test's.
const metricsServerService = `apiVersion: v1
kind: Service
metadata: {name: metrics-server, namespace: THE_NAMESPACE}
spec: {type: ExternalName, externalName: localhost}
---
apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {name: v1beta1.metrics.k8s.io}
spec:
  group: metrics.k8s.io
  version: v1beta1
  service: {name: metrics-server, namespace: THE_NAMESPACE, port: THE_PORT}
  insecureSkipTLSVerify: true # it signs its own certificate
  groupPriorityMinimum: 100
  versionPriority: 100
`

// quietPort returns a free port of the loopback that the kernel gives to no outgoing connection.
func quietPort(t *testing.T) int {
	t.Helper()
	for range 1000 {
		port := 20000 + rand.IntN(10000)
		if l, err := net.Listen("tcp", net.JoinHostPort("localhost", strconv.Itoa(port))); err == nil {
			l.Close()
			return port
		}
	}
	t.Fatal("no port from 20000 on is free")
	return 0
}

// accountKubeconfig writes a kubeconfig with a token of the test's ServiceAccount.
func (c *cluster) accountKubeconfig(account string) string {
	c.t.Helper()
	admin, err := kube.LoadKubeconfig(c.plane.dir + "/admin.kubeconfig")
	if err != nil {
		c.t.Fatal(err)
	}
	token := strings.TrimSpace(c.kubectl("create", "token", account))
	text := fmt.Sprintf(`{"apiVersion": "v1", "kind": "Config", "current-context": "c",
"clusters": [{"name": "c", "cluster": {"server": %q, "certificate-authority-data": %q}}],
"users": [{"name": "c", "user": {"token": %q}}], "contexts": [{"name": "c", "context": {"cluster": "c", "user": "c"}}]}`,
		admin.Host, base64.StdEncoding.EncodeToString(admin.CAData), token)
	file := c.place.Dir + "/" + account + ".kubeconfig"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		c.t.Fatal(err)
	}
	return file
}

// startMetricsServer runs the Kubernetes project's metrics server with the rights of its own
// deployment, and has the API server serve what it says.
func (c *cluster) startMetricsServer() {
	c.t.Helper()
	binary := os.Getenv("METRICS_SERVER")
	if _, err := os.Stat(binary); err != nil {
		c.t.Fatalf("METRICS_SERVER must name the metrics server, as make e2e-top does: %v", err)
	}
	port := strconv.Itoa(quietPort(c.t))
	c.t.Cleanup(func() {
		// Before the namespace, whose end waits for every API that there is.
		plane := &controlPlane{t: c.t, ctx: context.Background(), binary: c.plane.binary, dir: c.plane.dir}
		_, err := plane.kubectl("admin", "", "delete", "--ignore-not-found", "apiservice/v1beta1.metrics.k8s.io", "clusterrole/system:metrics-server",
			"clusterrolebinding/system:metrics-server", "clusterrolebinding/metrics-server:system:auth-delegator")
		if err != nil {
			c.t.Errorf("clean up: %v", err)
		}
		if _, err := plane.kubectl("admin", "", "delete", "--ignore-not-found", "-n", "kube-system", "rolebinding/metrics-server-auth-reader"); err != nil {
			c.t.Errorf("clean up: %v", err)
		}
	})
	service := strings.NewReplacer("THE_NAMESPACE", c.namespace, "THE_PORT", port).Replace(metricsServerService)
	c.plane.mustKubectl(addons.MetricsServerAccount(c.namespace)+"---\n"+service, "apply", "-f", "-")
	account := c.accountKubeconfig("metrics-server")
	log, err := os.Create(c.place.Dir + "/metrics-server.log")
	if err != nil {
		c.t.Fatal(err)
	}
	defer log.Close()
	cmd := exec.Command(binary, "--kubeconfig", account, "--authentication-kubeconfig", account, "--authorization-kubeconfig", account,
		"--bind-address", "127.0.0.1", "--secure-port", port, "--cert-dir", c.place.Dir+"/metrics-server",
		"--kubelet-use-node-status-port", "--kubelet-preferred-address-types", "InternalIP", "--kubelet-insecure-tls", // the node signs its own certificate
		"--metric-resolution", "10s", "--kubelet-request-timeout", "9s")
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() {
		_ = cmd.Process.Kill() // one that has ended is no harm
		_ = cmd.Wait()         // killed
		if c.t.Failed() {
			said, err := os.ReadFile(log.Name())
			c.t.Logf("the metrics server: %v\n%s", err, said)
		}
	})
}

// podMetrics is the part of metrics.k8s.io/v1beta1 PodMetrics that tells of use.
type podMetrics struct {
	Timestamp  time.Time
	Window     string
	Containers []struct {
		Name  string
		Usage map[v1.ResourceName]resource.Quantity
	}
}

// used returns what the metrics API says of the pod's container main, false while it says nothing.
func (c *cluster) used(pod string) (milliCPU, bytes int64, ok bool) {
	c.t.Helper()
	out, err := c.try("get", "--raw", "/apis/metrics.k8s.io/v1beta1/namespaces/"+c.namespace+"/pods/"+pod)
	if err != nil {
		return 0, 0, false
	}
	var m podMetrics
	if err := json.Unmarshal([]byte(out), &m); err != nil {
		c.t.Fatalf("%v: %s", err, out)
	}
	if window, err := time.ParseDuration(m.Window); err != nil || window <= 0 || m.Timestamp.IsZero() || len(m.Containers) != 1 || m.Containers[0].Name != "main" {
		c.t.Fatalf("the metrics of pod %s are %s", pod, out)
	}
	usage := m.Containers[0].Usage
	cpu, memory := usage[v1.ResourceCPU], usage[v1.ResourceMemory]
	return cpu.MilliValue(), memory.Value(), true
}

// kubectl top tells of node and pods what a real metrics server has scraped of the agent.
func TestClusterTop(t *testing.T) {
	c := newCluster(t)
	c.startMember()
	busy := shell(c.helloPod("busy"), `x=$(/usr/bin/head -c 30000000 /dev/zero | /usr/bin/tr '\0' x); while :; do :; done`)
	busy.Spec.Containers[0].Resources.Limits = v1.ResourceList{v1.ResourceCPU: resource.MustParse("200m"), v1.ResourceMemory: resource.MustParse("256Mi")}
	c.create(busy, c.helloPod("idle", "serve"))
	c.awaitAPIReady("busy", "idle")
	c.startMetricsServer()
	told := ""
	t.Cleanup(func() { t.Logf("the metrics API tells of %s", told) })
	c.awaitWithin("the metrics API to tell of a busy and an idle pod", func() bool {
		cpu, bytes, ok := c.used("busy")
		idleCPU, idleBytes, idleOK := c.used("idle")
		told = fmt.Sprintf("busy: %dm, %d bytes (%v); idle: %dm, %d bytes (%v)", cpu, bytes, ok, idleCPU, idleBytes, idleOK)
		return ok && idleOK && cpu > idleCPU && bytes > 30_000_000 && idleBytes > 0
	})
	if cpu, bytes, _ := c.used("busy"); cpu > 300 || bytes > 256<<20 {
		t.Errorf("the busy pod, which may use 200m and 256Mi, uses %dm and %d bytes", cpu, bytes)
	}
	top := c.kubectl("top", "pod", "--containers", "--sort-by", "cpu")
	wantText(t, "kubectl top pod", top, "POD", "CPU(cores)", "MEMORY(bytes)", "busy", "idle", "main", "Mi")
	if strings.Index(top, "busy") > strings.Index(top, "idle") {
		t.Errorf("the idle pod is before the busy one:\n%s", top)
	}
	row := strings.Fields(c.kubectl("top", "node", c.name, "--no-headers"))
	if len(row) != 5 || row[0] != c.name || !strings.HasSuffix(row[1], "m") || row[1] == "0m" || !strings.HasSuffix(row[3], "Mi") || !strings.HasSuffix(row[4], "%") {
		t.Errorf("kubectl top node says %q", row)
	}
}
