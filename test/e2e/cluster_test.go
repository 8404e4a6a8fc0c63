//go:build e2e

package e2e

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth/internal/cluster/kube"
)

// clusterLimit bounds each test in a cluster, its clean-up apart.
var clusterLimit = patience(6 * time.Minute)

// clusterNodes is how many nodes the tests together may have.
const clusterNodes = 64

// heldPlane is a control plane that runs for as long as its standard input is open, and so
// reachable.
type heldPlane struct {
	binary, dir string
	stdin       io.Closer
}

// withCertificates has an API server serve ClusterTrustBundles and PodCertificateRequests, which
// are off by default.
var withCertificates = []string{
	"--arg", "kube-apiserver=--feature-gates=ClusterTrustBundle=true,ClusterTrustBundleProjection=true,PodCertificateRequest=true",
	"--arg", "kube-apiserver=--runtime-config=certificates.k8s.io/v1beta1=true",
}

// sharedPlane is the control plane of all tests in a cluster. It ends with its standard input, and
// so with the test program.
var sharedPlane = sync.OnceValues(func() (*heldPlane, error) {
	binary := os.Getenv("CONTROLPLANE")
	if _, err := os.Stat(binary); err != nil {
		return nil, fmt.Errorf("CONTROLPLANE must name the control plane for tests, as make e2e does: %w", err)
	}
	dir, err := os.MkdirTemp("/tmp", "bp") // short, as there is a socket in it
	if err != nil {
		return nil, err
	}
	args := append([]string{"up", "--stdin", "--rm", "--dir", dir, "--wait", patience(2 * time.Minute).String()}, withCertificates...)
	for i := range clusterNodes {
		args = append(args, "--node", nodeName(i))
	}
	cmd := exec.Command(binary, args...)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	log, err := os.CreateTemp("", "controlplane-")
	if err != nil {
		return nil, err
	}
	defer os.Remove(log.Name())
	defer log.Close()
	cmd.Stderr = log
	// A session of its own: what ends the tests at a terminal is not to end it before them.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		said, _ := os.ReadFile(log.Name())
		return nil, fmt.Errorf("the control plane does not start: %w, %w\n%s", err, cmd.Wait(), said)
	}
	return &heldPlane{binary: binary, dir: dir, stdin: stdin}, nil
})

func nodeName(i int) string { return fmt.Sprintf("n%d", i+1) }

// How many nodes of the shared control plane tests have had, and have now.
var usedNodes, liveClusters atomic.Int32

// cluster is the control plane with one node of it, on this host, and a namespace of its own.
type cluster struct {
	*node
	plane     *controlPlane
	client    *kube.Client // as the administrator
	name      string       // of the node
	namespace string

	more                            string   // lines of the configuration
	identity                        []string // flags by which the agent finds the API server
	port, healthzPort, readOnlyPort int

	watched *kube.Watch[*v1.Pod] // all pods
	changed chan struct{}        // capacity 1
}

// newCluster makes a node that is not started. Everything is gone when the test ends, the control
// plane apart, which the next test uses.
func newCluster(t *testing.T) *cluster {
	t.Helper()
	return newClusterFor(t, clusterLimit)
}

// newClusterFor makes a node for a test that may take longer than others.
func newClusterFor(t *testing.T, limit time.Duration) *cluster {
	t.Helper()
	shared, err := sharedPlane()
	if err != nil {
		t.Fatal(err)
	}
	c := &cluster{
		node: newNodeFor(t, limit), name: nodeName(int(usedNodes.Add(1)) - 1), changed: make(chan struct{}, 1),
		port: freePort(t), healthzPort: freePort(t), readOnlyPort: freePort(t),
	}
	c.namespace = "of-" + c.name
	c.identity = []string{"--kubeconfig", shared.dir + "/node-" + c.name + ".kubeconfig"}
	ctx, cancel := context.WithTimeoutCause(t.Context(), limit, fmt.Errorf("the test took longer than %v", limit))
	t.Cleanup(cancel)
	c.ctx = ctx
	c.plane = &controlPlane{t: t, ctx: ctx, binary: shared.binary, dir: shared.dir}
	liveClusters.Add(1)
	t.Cleanup(func() {
		liveClusters.Add(-1)
		// The test's own context is done.
		plane := &controlPlane{t: t, ctx: context.Background(), binary: shared.binary, dir: shared.dir}
		if t.Failed() {
			plane.tell()
		}
		if _, err := plane.kubectl("admin", "", "delete", "node/"+c.name, "namespace/"+c.namespace, "clusterrolebinding/"+c.namespace, "--wait=false", "--ignore-not-found"); err != nil {
			t.Errorf("clean up: %v", err)
		}
	})
	if err := c.watch(); err != nil {
		t.Fatal(err)
	}
	c.kubectl("create", "namespace", c.namespace)
	// After an outage of the API server the controllers are slow to come back.
	c.awaitWithin("the ServiceAccount of the namespace", func() bool {
		_, err := c.try("get", "serviceaccount/default", "configmap/kube-root-ca.crt")
		return err == nil
	})
	c.configure("")
	return c
}

// configure has agents that are started from now on read a configuration with more lines.
func (c *cluster) configure(more string) {
	c.t.Helper()
	c.more = more
	if err := os.WriteFile(c.place.Dir+"/kubelet.yaml", []byte(c.config()), 0o600); err != nil {
		c.t.Fatal(err)
	}
}

// reconfigure has agents that are started from now on read a configuration in which one text stands
// instead of another.
func (c *cluster) reconfigure(old, text string) {
	c.t.Helper()
	config := strings.Replace(c.config(), old, text, 1)
	if err := os.WriteFile(c.place.Dir+"/kubelet.yaml", []byte(config), 0o600); err != nil {
		c.t.Fatal(err)
	}
}

// watch begins to watch the pods.
func (c *cluster) watch() error {
	config, err := kube.LoadKubeconfig(c.plane.dir + "/admin.kubeconfig")
	if err != nil {
		return err
	}
	if c.client, err = kube.Open(kube.Config{REST: config, Version: "e2e", Log: slog.New(slog.DiscardHandler)}); err != nil {
		return err
	}
	c.watched = kube.NewWatch[*v1.Pod](c.client, kube.Selector{}, func() {
		select {
		case c.changed <- struct{}{}:
		default:
		}
	})
	ctx, cancel := context.WithCancel(c.ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = c.watched.Run(ctx) // ends with ctx only
	}()
	c.t.Cleanup(func() { cancel(); <-ended })
	return nil
}

// config is the node's KubeletConfiguration.
func (c *cluster) config() string {
	driver := ""
	if d := os.Getenv("BERTH_CGROUP_DRIVER"); d != "" {
		driver = "cgroupDriver: " + d + "\n"
	}
	return fmt.Sprintf(`apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
containerRuntimeEndpoint: embedded
failCgroupV1: false
failSwapOn: false
makeIPTablesUtilChains: false
cgroupRoot: %s
podLogsDir: %s
staticPodPath: %s
port: %d
healthzPort: %d
readOnlyPort: %d
nodeLeaseDurationSeconds: 8
authentication:
  x509: {clientCAFile: %s/pki/ca.crt}
  anonymous: {enabled: false}
  webhook: {enabled: true}
authorization: {mode: Webhook}
%s%s`, c.place.Cgroup, c.podLogs(), c.manifests(), c.port, c.healthzPort, c.readOnlyPort, c.plane.dir, driver, c.more)
}

// launchKubelet starts an agent and does not wait for anything. It dies with the test program, so
// that what sweeps after that finds it dead.
func (c *cluster) launchKubelet() *agent {
	c.t.Helper()
	c.agents++
	a := &agent{
		n: c.node, ended: make(chan struct{}),
		out: fmt.Sprintf("%s/agent-%d.out", c.place.Dir, c.agents),
		log: fmt.Sprintf("%s/agent-%d.log", c.place.Dir, c.agents),
	}
	out, err := os.Create(a.out)
	if err != nil {
		c.t.Fatal(err)
	}
	defer out.Close()
	log, err := os.Create(a.log)
	if err != nil {
		c.t.Fatal(err)
	}
	defer log.Close()
	a.cmd = exec.Command(c.binary, append([]string{
		"kubelet", "--config", c.place.Dir + "/kubelet.yaml",
		"--hostname-override", c.name, "--root-dir", c.place.Root, "--cert-dir", c.place.Root + "/pki", "--run-dir", c.place.Run, "--v", "4",
	}, slices.Concat(handlerFlags(), c.identity)...)...)
	a.cmd.Stdout, a.cmd.Stderr = out, log
	a.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	started := make(chan error)
	go func() {
		// It dies with the thread that started it; this goroutine keeps it.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := a.cmd.Start()
		started <- err
		if err == nil {
			_ = a.cmd.Wait() // the state tells more
		}
		close(a.ended)
	}()
	if err := <-started; err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() {
		if c.t.Failed() {
			c.tellCluster()
		}
		_ = a.cmd.Process.Kill() // one that has ended is no harm
		<-a.ended
		if err := c.removeLogLinks(); err != nil {
			c.t.Errorf("clean up: %v", err)
		}
	})
	return a
}

// clusterLogLinks is where a kubelet has its links to logs; all nodes of a host share it.
const clusterLogLinks = "/var/log/containers"

// removeLogLinks removes the links to logs that were the node's.
func (c *cluster) removeLogLinks() error {
	links, err := filepath.Glob(clusterLogLinks + "/*.log")
	errs := []error{err}
	for _, link := range links {
		if to, err := os.Readlink(link); err == nil && strings.HasPrefix(to, c.place.Dir+"/") {
			errs = append(errs, os.Remove(link))
		}
	}
	return errors.Join(errs...)
}

// tellCluster writes what a failure is understood from while the agent still lives.
func (c *cluster) tellCluster() {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	plane := &controlPlane{t: c.t, ctx: ctx, binary: c.plane.binary, dir: c.plane.dir}
	for _, args := range [][]string{
		{"get", "node", c.name, "-o", "yaml", "--request-timeout=5s"},
		{"get", "pods,events", "-n", c.namespace, "-o", "wide", "--request-timeout=5s"},
	} {
		out, err := plane.kubectl("admin", "", args...)
		c.t.Logf("kubectl %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	pods, _ := c.watched.List()
	for _, p := range pods {
		if p.Spec.NodeName != c.name {
			continue
		}
		status, err := json.Marshal(p.Status)
		c.t.Logf("the API's pod %s/%s %s: %s (%v)", p.Namespace, p.Name, p.UID, status, err)
		c.t.Logf("%s", c.command(ctx, "explain", "--all", p.Namespace+"/"+p.Name))
	}
}

// startKubelet starts an agent and returns when it answers.
func (c *cluster) startKubelet() *agent {
	c.t.Helper()
	a := c.launchKubelet()
	until(c.t, "the agent to answer", func() bool {
		select {
		case <-a.ended:
			c.t.Fatalf("the agent ended at its start, %v:\n%s", a.cmd.ProcessState, a.said())
		default:
		}
		_, err := c.list(c.ctx)
		return err == nil
	})
	return a
}

// startMember starts an agent and returns when its node is ready.
func (c *cluster) startMember() *agent {
	c.t.Helper()
	a := c.startKubelet()
	until(c.t, "the node to be ready", func() bool {
		n, err := c.client.GetNode(c.ctx, c.name)
		return err == nil && nodeCondition(n, v1.NodeReady).Status == v1.ConditionTrue
	})
	return a
}

func nodeCondition(n *v1.Node, kind v1.NodeConditionType) v1.NodeCondition {
	for _, c := range n.Status.Conditions {
		if c.Type == kind {
			return c
		}
	}
	return v1.NodeCondition{}
}

func podCondition(p *v1.Pod, kind v1.PodConditionType) v1.PodCondition {
	for _, c := range p.Status.Conditions {
		if c.Type == kind {
			return c
		}
	}
	return v1.PodCondition{}
}

// try runs kubectl in the test's namespace, as the administrator.
func (c *cluster) try(args ...string) (string, error) {
	return c.plane.kubectl("admin", "", append([]string{"-n", c.namespace}, args...)...)
}

// kubectl is try without an error.
func (c *cluster) kubectl(args ...string) string {
	c.t.Helper()
	out, err := c.try(args...)
	if err != nil {
		c.t.Fatal(err)
	}
	return out
}

// apply has the API server have the objects of a manifest, in which THE_NODE stands for the test's
// node.
func (c *cluster) apply(manifest string) {
	c.t.Helper()
	c.plane.mustKubectl(strings.ReplaceAll(manifest, "THE_NODE", c.name), "apply", "-n", c.namespace, "-f", "-")
}

// kubectlIn runs kubectl with an input, and returns what it said and its exit code.
func (c *cluster) kubectlIn(input string, args ...string) answer {
	c.t.Helper()
	var out, errOut strings.Builder
	cmd := c.kubectlCommand(args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(input), &out, &errOut
	err := cmd.Run()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		c.t.Fatal(err)
	}
	return answer{code: cmd.ProcessState.ExitCode(), out: out.String(), errOut: errOut.String()}
}

func (c *cluster) kubectlCommand(args ...string) *exec.Cmd {
	return exec.CommandContext(c.ctx, c.plane.binary, append([]string{"kubectl", "--kubeconfig", c.plane.dir + "/admin.kubeconfig", "-n", c.namespace}, args...)...)
}

// followKubectl runs a kubectl command that goes on.
func (c *cluster) followKubectl(args ...string) *follower {
	c.t.Helper()
	out, err := os.CreateTemp(c.place.Dir, "follow-")
	if err != nil {
		c.t.Fatal(err)
	}
	defer out.Close()
	f := &follower{n: c.node, cmd: c.kubectlCommand(args...), out: out.Name(), ended: make(chan struct{})}
	f.cmd.Stdout, f.cmd.Stderr = out, out
	if err := f.cmd.Start(); err != nil {
		c.t.Fatal(err)
	}
	go func() {
		_ = f.cmd.Wait() // the state tells more
		close(f.ended)
	}()
	return f
}

// helloPod is a pod of the test's namespace with one container, main, that runs the hello image
// with the arguments. It is for the test's node: after an outage the scheduler may for a while
// still see the node of the test before.
func (c *cluster) helloPod(name string, args ...string) *v1.Pod {
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: c.namespace},
		Spec: v1.PodSpec{
			NodeSelector: map[string]string{v1.LabelHostname: c.name},
			Containers:   []v1.Container{{Name: "main", Image: helloImage, Args: args}},
		},
	}
}

// withTools gives the pod's containers the host's programs.
func withTools(p *v1.Pod) *v1.Pod {
	for _, dir := range []string{"usr", "lib", "lib64"} {
		p.Spec.Volumes = append(p.Spec.Volumes, v1.Volume{Name: "host-" + dir, VolumeSource: v1.VolumeSource{HostPath: &v1.HostPathVolumeSource{Path: "/" + dir}}})
		for i := range p.Spec.Containers {
			main := &p.Spec.Containers[i]
			main.VolumeMounts = append(main.VolumeMounts, v1.VolumeMount{Name: "host-" + dir, MountPath: "/" + dir, ReadOnly: true})
		}
	}
	return p
}

// shell makes the pod's first container a shell that runs a script.
func shell(p *v1.Pod, script string) *v1.Pod {
	p.Spec.Containers[0].Command, p.Spec.Containers[0].Args = []string{"/usr/bin/sh", "-c", script}, nil
	return withTools(p)
}

// create makes pods.
func (c *cluster) create(pods ...*v1.Pod) {
	c.t.Helper()
	for _, p := range pods {
		if err := c.client.CreatePod(c.ctx, p); err != nil {
			c.t.Fatal(err)
		}
	}
}

// awaitAPI waits until the pods of the test's namespace are, in the API, as they shall be, and
// returns them.
func (c *cluster) awaitAPI(what string, holds func(pods) bool) pods {
	c.t.Helper()
	span := patience(2 * time.Minute)
	limit := time.NewTimer(span)
	defer limit.Stop()
	for {
		if now, synced := c.apiPods(); synced && holds(now) {
			return now
		}
		select {
		case <-c.changed:
		case <-limit.C:
			c.t.Fatalf("waited %v for %s", span, what)
		case <-c.ctx.Done():
			c.t.Fatalf("wait for %s: %v", what, context.Cause(c.ctx))
		}
	}
}

// awaitWithin waits for what may take long: until each pod was looked at again (syncFrequency, and
// what it is varied by), or the control plane's back-off has passed.
func (c *cluster) awaitWithin(what string, holds func() bool) {
	c.t.Helper()
	span := patience(3 * time.Minute)
	limit := time.NewTimer(span)
	defer limit.Stop()
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for !holds() {
		select {
		case <-tick.C:
		case <-limit.C:
			c.t.Fatalf("waited %v for %s", span, what)
		case <-c.ctx.Done():
			c.t.Fatalf("wait for %s: %v", what, context.Cause(c.ctx))
		}
	}
}

func (c *cluster) apiPods() (of pods, synced bool) {
	all, synced := c.watched.List()
	for _, p := range all {
		if p.Namespace == c.namespace {
			of = append(of, p)
		}
	}
	return of, synced
}

// awaitAPIReady waits until the pods of these names are ready in the API.
func (c *cluster) awaitAPIReady(names ...string) pods {
	c.t.Helper()
	return c.awaitAPI(fmt.Sprintf("%q to be ready in the API", names), func(p pods) bool { return p.ready(names...) })
}

// awaitEvent waits until the API has an event of the object with this reason and a message that has
// the text.
func (c *cluster) awaitEvent(object, reason, text string) {
	c.t.Helper()
	var seen []string
	defer func() {
		if c.t.Failed() {
			c.t.Logf("the events of %s: %q", object, seen)
		}
	}()
	until(c.t, fmt.Sprintf("an event %s of %s", reason, object), func() bool {
		out, err := c.try("get", "events", "--field-selector", "involvedObject.name="+object, "-o", "json")
		if err != nil {
			return false
		}
		var list v1.EventList
		if err := json.Unmarshal([]byte(out), &list); err != nil {
			c.t.Fatal(err)
		}
		seen = nil
		for _, e := range list.Items {
			seen = append(seen, e.Reason+": "+e.Message)
			if e.Reason == reason && strings.Contains(e.Message, text) {
				return true
			}
		}
		return false
	})
}

// exec runs a program in the pod's container main, which must succeed, and returns what it printed.
func (c *cluster) exec(pod string, program ...string) string {
	c.t.Helper()
	return c.kubectl(append([]string{"exec", pod, "-c", "main", "--"}, program...)...)
}

// bodies are the processes of the pods' containers, by pod and container.
func (n *node) bodies(p pods) map[string]int {
	n.t.Helper()
	out := map[string]int{}
	for _, pod := range p {
		for _, s := range pod.Status.ContainerStatuses {
			out[pod.Name+"/"+s.Name] = n.pid(containerID(pod, s.Name))
		}
	}
	return out
}

// stays checks that for a while a condition does not cease to hold.
func (c *cluster) stays(what string, span time.Duration, holds func() bool) {
	c.t.Helper()
	end := time.NewTimer(span)
	defer end.Stop()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		if !holds() {
			c.t.Fatalf("%s: no longer", what)
		}
		select {
		case <-tick.C:
		case <-end.C:
			return
		case <-c.ctx.Done():
			c.t.Fatalf("%s: %v", what, context.Cause(c.ctx))
		}
	}
}
