//go:build e2e

package e2e

import (
	"fmt"
	"net"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	v1 "k8s.io/api/core/v1"
)

// probedPod has one container with a folder of the host at /state and the host's programs. Probes
// are indented as fields of a container.
func probedPod(name, state, probes string) string {
	return fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata:
  name: %s
spec:
  terminationGracePeriodSeconds: 1
  volumes:
  - name: state
    hostPath: {path: %s}
  - name: usr
    hostPath: {path: /usr}
  - name: lib
    hostPath: {path: /usr/lib}
  - name: lib64
    hostPath: {path: /lib64}
  containers:
  - name: main
    image: berth.local/hello:1
    args: ["serve", "-dir", "/state"]
    volumeMounts:
    - {name: state, mountPath: /state, readOnly: true}
    - {name: usr, mountPath: /usr, readOnly: true}
    - {name: lib, mountPath: /lib, readOnly: true}
    - {name: lib64, mountPath: /lib64, readOnly: true}
%s`, name, state, probes)
}

// there is a probe that succeeds while the file is in the pod's /state.
func there(kind, file, settings string) string {
	return fmt.Sprintf("    %s: {exec: {command: [/usr/bin/test, -e, /state/%s]}, periodSeconds: 1, %s}\n", kind, file, settings)
}

// state is the folder behind a pod's /state.
type state struct {
	t   *testing.T
	dir string
}

func (n *node) newState() state {
	n.t.Helper()
	s := state{n.t, n.place.Dir + "/state"}
	if err := os.Mkdir(s.dir, 0o755); err != nil {
		n.t.Fatal(err)
	}
	return s
}

func (s state) put(file string) {
	s.t.Helper()
	if err := os.WriteFile(s.dir+"/"+file, nil, 0o644); err != nil {
		s.t.Fatal(err)
	}
}

func (s state) remove(file string) {
	s.t.Helper()
	if err := os.Remove(s.dir + "/" + file); err != nil {
		s.t.Fatal(err)
	}
}

// awaitUnready waits until the pod runs and is not ready, and returns it.
func (n *node) awaitUnready(name string) *v1.Pod {
	n.t.Helper()
	return n.await(name+" to run and not to be ready", func(p pods) bool {
		s := p.named(name)
		return s != nil && container(s, "main").State.Running != nil && !isReady(s)
	}).named(name)
}

// A pod is ready as long as its readiness probe says so. Its container is not touched, and the next
// agent does not doubt it.
func TestReadinessProbe(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	s := n.newState()
	const probe = "    readinessProbe: {httpGet: {path: /files/ready, port: web}, periodSeconds: 1, failureThreshold: %d}\n    ports: [{name: web, containerPort: 8080}]\n"
	n.write("fickle.yaml", probedPod("fickle", s.dir, fmt.Sprintf(probe, 2)))
	s.put("ready")
	n.write("steady.yaml", probedPod("steady", s.dir, fmt.Sprintf(probe, 3600)))
	n.start()
	first := n.awaitReady("fickle", "steady")
	s.remove("ready")
	unready := n.awaitUnready("fickle")
	if c := container(unready, "main"); c.Started == nil || !*c.Started || c.RestartCount != 0 {
		t.Errorf("the container is %+v, want it started and never restarted", c)
	}
	wantInOrder(t, n.explain("fickle"), "main readiness probe: success", "Readiness probe failed: HTTP probe failed with statuscode: 404",
		"main readiness probe: failure: failures in a row: 2, failureThreshold: 2")
	s.put("ready")
	n.awaitReady("fickle")

	// With the file gone, only what the agent before knew speaks for the pods.
	n.berth("stop")
	s.remove("ready")
	n.start()
	n.awaitUnready("fickle")
	now := n.awaitReady("steady")
	for _, name := range []string{"fickle", "steady"} {
		wantInOrder(t, n.explain(name), "main readiness probe: success, as before the agent's start")
		if got, want := containerID(now.named(name), "main"), containerID(first.named(name), "main"); got != want {
			t.Errorf("the container of %s is %s, was %s", name, got, want)
		}
	}
	wantInOrder(t, n.explain("fickle"), "as before the agent's start", "readiness probe: failure")

	// A container is what was ready, not a pod.
	n.signal(now.named("steady"), "main", unix.SIGKILL)
	n.await("the next incarnation not to be ready", func(p pods) bool {
		c := container(p.named("steady"), "main")
		return c.RestartCount == 1 && c.State.Running != nil && !c.Ready
	})
}

// A container whose liveness probe fails is restarted.
func TestLivenessProbe(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	s := n.newState()
	s.put("alive")
	n.write("alive.yaml", probedPod("alive", s.dir, there("livenessProbe", "alive", "failureThreshold: 2")))
	n.start()
	before := n.awaitReady("alive").named("alive")
	s.remove("alive")
	restarted := n.await("the container to be restarted", func(p pods) bool {
		return container(p.named("alive"), "main").RestartCount == 1
	}).named("alive")
	s.put("alive")
	n.awaitReady("alive")
	if got := containerID(restarted, "main"); got == containerID(before, "main") {
		t.Errorf("the container is still %s", got)
	}
	wantInOrder(t, n.explain("alive"), "main container started: for the first time", "Liveness probe failed",
		"main liveness probe: failure: failures in a row: 2, failureThreshold: 2", "main container started: restart 1")
}

// Nothing but the startup probe runs before the container has started; what fails for ever is
// restarted.
func TestStartupProbe(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	s := n.newState()
	n.write("slow.yaml", probedPod("slow", s.dir, there("startupProbe", "up", "failureThreshold: 60")+
		there("livenessProbe", "up", "failureThreshold: 1")+there("readinessProbe", "up", "failureThreshold: 1")))
	n.write("never.yaml", probedPod("never", s.dir, there("startupProbe", "nothing", "failureThreshold: 1")))
	n.start()
	n.await("the container that never starts to be restarted", func(p pods) bool {
		return container(p.named("never"), "main").RestartCount >= 1
	})
	wantInOrder(t, n.explain("never"), "Startup probe failed", "main startup probe: failure", "main container started: restart 1")
	slow := n.awaitUnready("slow")
	if c := container(slow, "main"); c.Started == nil || *c.Started || c.RestartCount != 0 {
		t.Errorf("the container is %+v, want it running, not started, and never restarted", c)
	}
	for _, e := range n.explain("slow") {
		if strings.Contains(e.Error, "Liveness") || strings.Contains(e.Error, "Readiness") {
			t.Errorf("%s before the container has started", e.Error)
		}
	}
	s.put("up")
	ready := n.awaitReady("slow").named("slow")
	if c := container(ready, "main"); c.Started == nil || !*c.Started || c.RestartCount != 0 {
		t.Errorf("the container is %+v, want it started and never restarted", c)
	}
	wantInOrder(t, n.explain("slow"), "main startup probe: success", "main readiness probe: success")
}

// TCP and gRPC are probed at the pod's address, which on the host's network is the node's.
func TestSocketProbes(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	tcp, rpc := freePort(t), freePort(t)
	pod := func(name, handler string) string {
		return manifest(name, "sleep") + "    readinessProbe: {" + handler + ", periodSeconds: 1, failureThreshold: 1}\n  hostNetwork: true\n"
	}
	n.write("tcp.yaml", pod("tcp", fmt.Sprintf("tcpSocket: {port: %d}", tcp)))
	n.write("grpc.yaml", pod("grpc", fmt.Sprintf("grpc: {port: %d, service: shop}", rpc)))
	n.start()
	n.awaitUnready("tcp")
	n.awaitUnready("grpc")

	listen := func(port int) net.Listener {
		t.Helper()
		l, err := net.Listen("tcp", fmt.Sprintf(":%d", port))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close() }) // closed already, unless the test fails
		return l
	}
	plain := listen(tcp)
	shop := health.NewServer()
	shop.SetServingStatus("shop", healthpb.HealthCheckResponse_NOT_SERVING)
	server := grpc.NewServer()
	healthpb.RegisterHealthServer(server, shop)
	l := listen(rpc)
	go func() { _ = server.Serve(l) }()
	t.Cleanup(server.Stop)
	n.awaitReady("tcp")
	until(t, "the shop to be heard to be closed", func() bool {
		for _, e := range n.explain("grpc") {
			if strings.Contains(e.Error, `service unhealthy (responded with "NOT_SERVING")`) {
				return true
			}
		}
		return false
	})
	shop.SetServingStatus("shop", healthpb.HealthCheckResponse_SERVING)
	n.awaitReady("tcp", "grpc")
	if err := plain.Close(); err != nil {
		t.Fatal(err)
	}
	n.awaitUnready("tcp")
	server.Stop()
	n.awaitUnready("grpc")
	wantInOrder(t, n.explain("tcp"), "Readiness probe failed", "readiness probe: success", "readiness probe: failure")
	wantInOrder(t, n.explain("grpc"), "Readiness probe failed", "readiness probe: success", "readiness probe: failure")
}
