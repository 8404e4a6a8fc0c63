//go:build e2e && kubelet

package e2e

import (
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"berth/internal/runtime/embedded"
)

// swapLimit bounds a test in which the agents of a node change, its clean-up apart.
var swapLimit = patience(12 * time.Minute)

// swapNode is a node of the shared control plane that a real kubelet and Berth run in turns, over
// one containerd and one root directory.
type swapNode struct {
	*cluster
	kubelet string // the program of the Kubernetes project
}

// newSwapNode makes the node, with its containerd running and no agent.
func newSwapNode(t *testing.T, more string) *swapNode {
	t.Helper()
	s := &swapNode{cluster: newClusterFor(t, swapLimit), kubelet: os.Getenv("KUBELET")}
	if _, err := os.Stat(s.kubelet); err != nil {
		t.Fatalf("KUBELET must name the kubelet, as make e2e-swap does: %v", err)
	}
	// What the agents mount in mount namespaces of their own, everyone is to see: volumes, and the
	// networks of pods that a containerd makes which Berth has started.
	for _, dir := range []string{s.place.Root, s.place.Run} {
		must(t, os.MkdirAll(dir, 0o755))
		must(t, unix.Mount(dir, dir, "", unix.MS_BIND, ""))
		must(t, unix.Mount("", dir, "", unix.MS_SHARED, ""))
	}
	r, err := embedded.New(embedded.Config{Root: s.place.Root, RunDir: s.place.Run, Log: slog.New(slog.DiscardHandler)})
	must(t, err)
	_, err = r.Ensure(t.Context())
	must(t, err)
	for _, dir := range []string{s.place.Root + "/device-plugins", s.podLogs()} {
		must(t, os.MkdirAll(dir, 0o755))
	}
	s.rememberMemory()
	// The kubelet wants its cgroup to be there.
	hierarchies, err := filepath.Glob(cgroupMount + "/*/cgroup.procs")
	must(t, err)
	for _, procs := range append(hierarchies, cgroupMount+"/cgroup.procs") {
		if exists(t, procs) {
			must(t, os.MkdirAll(filepath.Join(filepath.Dir(procs), s.place.Cgroup), 0o755))
		}
	}
	s.configure(more)
	s.reconfigure("containerRuntimeEndpoint: embedded", "containerRuntimeEndpoint: unix://"+s.place.Run+"/containerd.sock\noomScoreAdj: 0\nclusterDNS: [10.96.0.10]\nclusterDomain: cluster.local")
	return s
}

// inside has a program see a machine whose memory does not grow while the test runs, as that of
// a virtual one may, and, below /var/lib/kubelet, where the kubelet has some folders whatever
// its root directory is, those of this node. A containerd that Berth starts there finds what the
// one before it has kept of the networks of pods.
func (s *swapNode) inside(program ...string) *exec.Cmd {
	script := fmt.Sprintf(`set -e
for node in %[1]s/memory/node*; do mount --bind $node /sys/devices/system/node/$(basename $node)/meminfo; done
mkdir -p /var/lib/cni %[1]s/cni
mount --bind /var/lib/cni %[1]s/cni
mount -t tmpfs none /var/lib
mkdir -p /var/lib/kubelet/device-plugins /var/lib/cni
mount --bind %[2]s/device-plugins /var/lib/kubelet/device-plugins
mount --bind %[1]s/cni /var/lib/cni
exec "$@"`, s.place.Dir, s.place.Root)
	return exec.Command("unshare", append([]string{"--mount", "--propagation", "unchanged", "sh", "-c", script, "sh"}, program...)...)
}

// rememberMemory keeps what the machine says of its memory now.
func (s *swapNode) rememberMemory() {
	s.t.Helper()
	files, err := filepath.Glob("/sys/devices/system/node/node*/meminfo")
	must(s.t, err, os.Mkdir(s.place.Dir+"/memory", 0o755))
	for _, file := range files {
		b, err := os.ReadFile(file)
		must(s.t, err, os.WriteFile(filepath.Join(s.place.Dir, "memory", filepath.Base(filepath.Dir(file))), b, 0o644))
	}
}

// flags are those that both agents are started with.
func (s *swapNode) agentFlags() []string {
	return append([]string{
		"--config", s.place.Dir + "/kubelet.yaml", "--hostname-override", s.name,
		"--root-dir", s.place.Root, "--cert-dir", s.place.Root + "/pki", "--v", "4",
	}, s.identity...)
}

// startReal starts the kubelet of the Kubernetes project, and returns when the node is ready.
func (s *swapNode) startReal() *agent {
	s.t.Helper()
	return s.startAs("kubelet", s.inside(append([]string{s.kubelet}, s.agentFlags()...)...))
}

// startBerth starts Berth with the kubelet's flags and configuration, and returns when the node is
// ready.
func (s *swapNode) startBerth() *agent {
	s.t.Helper()
	return s.startAs("berth", s.inside(append([]string{s.binary, "kubelet", "--run-dir", s.place.Run}, s.agentFlags()...)...))
}

func (s *swapNode) startAs(who string, cmd *exec.Cmd) *agent {
	s.t.Helper()
	s.agents++
	file := fmt.Sprintf("%s/agent-%d-%s.log", s.place.Dir, s.agents, who)
	a := &agent{n: s.node, cmd: cmd, ended: make(chan struct{}), out: file, log: file}
	log, err := os.Create(file)
	must(s.t, err)
	defer log.Close()
	a.cmd.Stdout, a.cmd.Stderr = log, log
	a.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	since := time.Now()
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
	must(s.t, <-started)
	s.t.Cleanup(func() {
		if s.t.Failed() {
			s.tellCluster()
		}
		_ = a.cmd.Process.Kill() // one that has ended is no harm
		<-a.ended
		if err := s.removeLogLinks(); err != nil {
			s.t.Errorf("clean up: %v", err)
		}
	})
	s.awaitWithin(who+" to report the node ready", func() bool {
		select {
		case <-a.ended:
			s.t.Fatalf("%s ended at its start, %v:\n%s", who, a.cmd.ProcessState, a.said())
		default:
		}
		n, err := s.client.GetNode(s.ctx, s.name)
		if err != nil {
			return false
		}
		ready := nodeCondition(n, v1.NodeReady)
		return ready.Status == v1.ConditionTrue && !ready.LastHeartbeatTime.Time.Before(since.Truncate(time.Second))
	})
	s.t.Logf("%s is ready after %v", who, time.Since(since).Round(100*time.Millisecond))
	return a
}

// stop ends an agent by SIGTERM. The kubelet ends with a code of its own.
func (s *swapNode) stop(a *agent) {
	s.t.Helper()
	must(s.t, a.cmd.Process.Signal(unix.SIGTERM))
	a.wait()
}

func (s *swapNode) read(name string) string {
	b, err := os.ReadFile(filepath.Join(s.place.Root, name))
	if err != nil {
		return err.Error()
	}
	return strings.TrimSpace(string(b))
}
