//go:build e2e

package e2e

import (
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/runtime/embedded"
)

// examples copies the manifests of examples/hello, with a host port that is free here.
func examples(n *node) (hostPort int) {
	n.t.Helper()
	files, err := filepath.Glob("../../examples/hello/*.yaml")
	if err != nil || len(files) != 2 {
		n.t.Fatalf("the examples are %v, error %v; want two manifests", files, err)
	}
	hostPort = freePort(n.t)
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			n.t.Fatal(err)
		}
		n.write(filepath.Base(f), strings.ReplaceAll(string(text), "hostPort: 8088", "hostPort: "+strconv.Itoa(hostPort)))
	}
	return hostPort
}

// answers waits until the address answers and returns with what.
func answers(t *testing.T, url string) (body string) {
	t.Helper()
	until(t, url+" to answer", func() bool {
		var err error
		body, err = get(url)
		return err == nil
	})
	return body
}

// nodeAddress is the address under which others reach this host, "" if it has none.
func nodeAddress(t *testing.T) string {
	t.Helper()
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	bridges := func(ip net.IP) bool { return ip[0] == 10 && ip[1] >= 88 && ip[1] < 128 } // of agents
	for _, a := range addrs {
		if n, ok := a.(*net.IPNet); ok && n.IP.To4() != nil && n.IP.IsGlobalUnicast() && !bridges(n.IP.To4()) {
			return n.IP.String()
		}
	}
	return ""
}

// The pods of examples/hello run, and answer where the README says.
func TestExamplesServe(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	port := examples(n)
	n.start()
	now := n.awaitReady("hello", "pair")
	hello, pair := now.named("hello"), now.named("pair")
	for _, p := range now {
		if p.Status.Phase != v1.PodRunning {
			t.Errorf("pod %s is ready and %s, want it Running", p.Name, p.Status.Phase)
		}
	}

	urls := []string{"http://" + hello.Status.PodIP + ":8080/", "http://127.0.0.1:" + strconv.Itoa(port) + "/"}
	if ip := nodeAddress(t); ip != "" {
		urls = append(urls, "http://"+net.JoinHostPort(ip, strconv.Itoa(port))+"/")
	}
	for _, url := range urls {
		wantText(t, url, answers(t, url), "Hello from hello", "pod IP "+hello.Status.PodIP)
	}
	// What one container of the pair writes, the other serves.
	stamp := "http://" + pair.Status.PodIP + ":8080/files/stamp"
	until(t, stamp, func() bool {
		body, err := get(stamp)
		return err == nil && strings.HasPrefix(body, "pair wrote stamp ")
	})
	n.awaitLog("hello", "GET / 200")
	wantText(t, "the log of hello", n.berth("logs", "hello"), "listening on")
}

// With --once the agent ends when its pods are ready, and they run on; the next agent takes over
// what it finds.
func TestOnceEndsWhenReadyAndTheNextAgentAdopts(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	port := examples(n)
	once := n.launch("--once")
	if code := once.wait(); code != 0 {
		t.Fatalf("exit code %d, want 0:\n%s", code, once.said())
	}
	wantText(t, "its output", once.said(), "All pods are ready", "curl http://localhost:"+strconv.Itoa(port))
	answers(t, "http://127.0.0.1:"+strconv.Itoa(port)+"/")
	runtime := n.containerd()

	second := n.launch("--once")
	if code := second.wait(); code != 0 {
		t.Fatalf("exit code of the second run %d, want 0:\n%s", code, second.said())
	}
	third := time.Now()
	n.start()
	for _, p := range n.awaitReady("hello", "pair") {
		if ids := n.sandboxes(p); len(ids) != 1 {
			t.Errorf("pod %s has the sandboxes %v, want the first and no other", p.Name, ids)
		}
		for _, c := range p.Status.ContainerStatuses {
			if c.RestartCount != 0 {
				t.Errorf("container %s of pod %s was restarted %d times by agents that came and went", c.Name, p.Name, c.RestartCount)
			}
		}
		for _, e := range n.explain(p.Name) {
			if e.Time.After(third) && (strings.HasPrefix(e.Decision, "sandbox created") || strings.HasPrefix(e.Decision, "container started")) {
				t.Errorf("the third agent did not adopt pod %s: %s", p.Name, e.Decision)
			}
		}
	}
	if got := n.containerd(); got != runtime {
		t.Errorf("containerd is process %d now, want the adopted %d", got, runtime)
	}
}

// With --once the agent says why the pods do not become ready, and fails.
func TestOnceSaysWhatIsNotReady(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.write("web.yaml", manifest("web", "serve"))
	n.write("wrong.yaml", strings.ReplaceAll(manifest("wrong", "serve"), helloImage, unknownImage))
	a := n.launch("--once", "--once-timeout", "30s") // much more than web takes
	if code := a.wait(); code == 0 {
		t.Errorf("exit code 0 though the image of a pod does not exist:\n%s", a.said())
	}
	log, err := os.ReadFile(a.log)
	if err != nil {
		t.Fatal(err)
	}
	_, reason, _ := strings.Cut(string(log), "Error: ")
	wantText(t, "the error", reason, "not all pods are ready after 30s", "default/wrong", unknownImage)
	if strings.Contains(reason, "default/web") {
		t.Errorf("the error names a pod that is ready: %s", reason)
	}
}

// With --once a manifest that is refused ends the agent at once: no time will make it a pod.
func TestOnceSaysWhatIsRefused(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.write("broken.yaml", "kind: Pod\n  name: [\n")
	a := n.launch("--once")
	if code := a.wait(); code == 0 {
		t.Errorf("exit code 0 though the manifest was refused:\n%s", a.said())
	}
	wantText(t, "its output", a.said(), "Error: broken.yaml: ")
}

// A container whose process is killed is started again at once, in the same sandbox.
func TestKilledContainerRestarts(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.write("web.yaml", manifest("web", "serve"))
	n.start()
	before := n.awaitReady("web").named("web")
	sandboxes := n.sandboxes(before)
	n.signal(before, "main", unix.SIGKILL)
	after := n.await("the container to be restarted", func(p pods) bool {
		return p.ready("web") && container(p.named("web"), "main").RestartCount == 1
	}).named("web")

	if got := n.sandboxes(after); !slices.Equal(got, sandboxes) {
		t.Errorf("the sandboxes are %v, want unchanged %v", got, sandboxes)
	}
	if after.UID != before.UID || after.Status.PodIP != before.Status.PodIP {
		t.Errorf("pod %s with address %s became %s with %s", before.UID, before.Status.PodIP, after.UID, after.Status.PodIP)
	}
	last := container(after, "main").LastTerminationState.Terminated
	if last == nil || last.ExitCode != 137 || "containerd://"+containerID(before, "main") != last.ContainerID {
		t.Errorf("the last state is %v, want the end of %s with code 137", last, containerID(before, "main"))
	}
	// The end, the restart, and nothing that waited for a clock between them.
	entries := n.explain("web")
	wantInOrder(t, entries, "container started: for the first time", "main terminated", "container started: restart 1", "main running")
	for _, e := range entries {
		if strings.Contains(e.Decision, "BackOff") {
			t.Errorf("the first restart was put off: %s: %s", e.Decision, e.Why)
		}
	}
	answers(t, "http://"+after.Status.PodIP+":8080/")
}

// A removed manifest ends its pod, and nothing of it is left on the host.
func TestRemovedManifestLeavesNothing(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	port := examples(n)
	n.start()
	now := n.awaitReady("hello", "pair")
	hello, pair := now.named("hello"), now.named("pair")
	tr := n.traces(hello)
	n.remove("hello.yaml")
	n.awaitGone(hello.UID)
	n.wantGone(tr)
	if ids := n.sandboxes(hello); len(ids) > 0 {
		t.Errorf("sandboxes of the removed pod: %v", ids)
	}
	if body, err := get("http://127.0.0.1:" + strconv.Itoa(port) + "/"); err == nil {
		t.Errorf("the host port of a removed pod still answers: %q", body)
	}
	wantInOrder(t, n.explain("hello"), "container stopped", "sandbox stopped", "pod removed")

	still := n.awaitReady("pair").named("pair")
	if containerID(still, "writer") != containerID(pair, "writer") || container(still, "writer").RestartCount != 0 {
		t.Errorf("the other pod was touched: %v", still.Status.ContainerStatuses)
	}
}

// A changed manifest replaces its pod; one that can no longer be read changes nothing but what is
// said of it.
func TestChangedManifestReplacesThePod(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.write("web.yaml", manifest("web", "serve"))
	n.start()
	first := n.awaitReady("web").named("web")
	tr := n.traces(first)

	n.write("web.yaml", manifest("web", "serve", "-port", "8081"))
	second := n.await("the changed pod", func(p pods) bool {
		return p.ready("web") && p.named("web").UID != first.UID && !p.has(first.UID)
	}).named("web")
	n.wantGone(tr)
	answers(t, "http://"+second.Status.PodIP+":8081/")

	n.write("web.yaml", "apiVersion: v1\nkind: Pod\nmetadata: [\n")
	n.await("the problem to be shown", func(pods) bool { return len(n.problems()) == 1 })
	third := n.awaitReady("web").named("web")
	if third.UID != second.UID || containerID(third, "main") != containerID(second, "main") {
		t.Errorf("pod %s became %s by a manifest that cannot be read", second.UID, third.UID)
	}
	until(t, "berth get pods to show the pod and the manifest", func() bool {
		shown := n.berth("get", "pods")
		return strings.Contains(shown, "\nweb ") && strings.Contains(shown, "\nweb.yaml ")
	})
	wantInOrder(t, n.explain("web.yaml"), "manifest refused")

	n.write("web.yaml", manifest("web", "serve", "-port", "8081"))
	n.await("the problem to go", func(pods) bool { return len(n.problems()) == 0 })
	if got := n.awaitReady("web").named("web"); containerID(got, "main") != containerID(second, "main") {
		t.Errorf("the repaired manifest, which says what it said before, replaced the pod")
	}
}

// A runtime that the agent did not bring along serves as well, and is left as it is.
func TestForeignRuntime(t *testing.T) {
	m := newMachine(t)
	r := m.runtime(embedded.Config{})
	m.ensure(r)
	m.runs(r)
	runtime := m.pid()

	n := newNode(t)
	n.flags = append(n.flags, "--container-runtime-endpoint", r.Endpoint())
	port := freePort(t)
	n.write("web.yaml", strings.Replace(manifest("web", "serve"), "    args:", "    ports: [{containerPort: 8080, hostPort: "+strconv.Itoa(port)+"}]\n    args:", 1))
	a := n.start()
	web := n.awaitReady("web").named("web")
	wantText(t, "the pod's answer", answers(t, "http://"+web.Status.PodIP+":8080/"), "Hello from web")
	answers(t, "http://127.0.0.1:"+strconv.Itoa(port)+"/")
	wantText(t, "berth version", n.berth("version"), "containerd", r.Endpoint())
	n.signal(web, "main", unix.SIGKILL)
	n.await("the container to be restarted", func(p pods) bool {
		return p.ready("web") && container(p.named("web"), "main").RestartCount == 1
	})
	if exists(t, n.place.Root+"/containerd") || exists(t, n.place.Root+"/bundle") {
		t.Error("the agent unpacked a runtime of its own")
	}

	n.berth("stop", "--all")
	if code := a.wait(); code != 0 {
		t.Errorf("exit code %d, want 0:\n%s", code, a.said())
	}
	if got := m.pid(); got != runtime || unix.Kill(runtime, 0) != nil {
		t.Errorf("the foreign containerd was process %d, is %d now", runtime, got)
	}
	if tree := n.place.cgroupTree(); slices.ContainsFunc(tree, func(dir string) bool { return strings.Contains(dir, string(web.UID)) }) {
		t.Errorf("a cgroup of the pod is left: %v", tree)
	}
	if body, err := get("http://127.0.0.1:" + strconv.Itoa(port) + "/"); err == nil {
		t.Errorf("the pod still answers: %q", body)
	}
	if resp, err := m.client(r.Endpoint()).runtime.ListPodSandbox(t.Context(), &runtimeapi.ListPodSandboxRequest{}); err != nil || len(resp.Items) > 0 {
		t.Errorf("the runtime still has %v, error %v; want no sandbox", resp.GetItems(), err)
	}
}
