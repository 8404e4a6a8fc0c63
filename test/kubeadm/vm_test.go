//go:build e2e && vm

package main

import (
	"context"
	_ "embed"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

//go:embed vm.yaml
var machineConfig string

// Where a user puts the programs, the unit of the kubelet and kubeadm's drop-in.
const (
	programsDir = "/usr/bin"
	unitFile    = "/etc/systemd/system/kubelet.service"
	dropInFile  = "/usr/lib/systemd/system/kubelet.service.d/10-kubeadm.conf"

	resolvedFile = "/etc/systemd/resolved.conf.d/nameserver.conf"
)

// whole is the cluster of a machine that is a node by itself: with its own systemd, and no check of
// kubeadm's left out.
type whole struct {
	*world
	name, address string
}

// run runs a program of the machine, which must succeed, and returns what it prints.
func (m *whole) run(program string, args ...string) string {
	m.t.Helper()
	began := time.Now()
	out, err := exec.CommandContext(m.ctx, program, args...).CombinedOutput()
	m.t.Logf("%s %s: %v", program, strings.Join(args, " "), time.Since(began).Round(time.Second))
	if err != nil {
		m.t.Fatalf("%s %q: %v\n%s", program, args, err, tail(string(out), 8000))
	}
	return strings.TrimSpace(string(out))
}

// newWhole has the machine be as an administrator leaves it for kubeadm: programs, unit, forwarding
// of packets, a default route, and a registry on the loopback. The folder has the programs that
// run.sh of test/vm brings.
func newWhole(t *testing.T, folder string) *whole {
	t.Helper()
	if _, err := os.Stat("/run/systemd/system"); err != nil {
		t.Fatal("systemd does not run this host: run this test by make e2e-vm-kubeadm")
	}
	for _, name := range []string{"kubeadm", "kubectl"} {
		if err := os.Symlink("controlplane", filepath.Join(folder, name)); err != nil {
			t.Fatal(err)
		}
	}
	p, err := findPrograms(folder+"/kubeadm-cluster", "", "../../docs/kubelet.service")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeoutCause(t.Context(), 50*time.Minute, errors.New("the test took longer than 50 minutes"))
	t.Cleanup(cancel)
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	m := &whole{name: host, world: &world{cluster: &cluster{dir: t.TempDir(), programs: p}, t: t, ctx: ctx}}
	m.programs.version = m.run(p.kubeadm, "version", "-o", "short")
	m.install()
	m.serveImages()
	return m
}

// install installs the programs and the unit as docs/cluster-node.md describes, and sets up a
// network that kubeadm accepts.
func (m *whole) install() {
	m.t.Helper()
	p := m.programs
	for name, program := range map[string]string{"berth": p.berth, "kubelet": p.berth, "kubeadm": p.kubeadm, "kubectl": p.kubectl} {
		if err := os.Symlink(program, filepath.Join(programsDir, name)); err != nil {
			m.t.Fatal(err)
		}
	}
	service, err := os.ReadFile("../../docs/kubelet.service")
	err = errors.Join(err, os.MkdirAll(filepath.Dir(dropInFile), 0o755),
		os.WriteFile(unitFile, service, 0o644), os.WriteFile(dropInFile, dropIn, 0o644))
	if err != nil {
		m.t.Fatal(err)
	}
	m.run("systemctl", "daemon-reload")
	m.run("systemctl", "enable", "kubelet")
	m.run("sysctl", "-w", "net.ipv4.ip_forward=1")
	fields := strings.Fields(m.run("ip", "-4", "-o", "address", "show", "scope", "global")) // 2: ens1 inet 10.0.2.15/24 …
	if len(fields) < 4 {
		m.t.Fatalf("the machine has the addresses %q", fields)
	}
	m.address, _, _ = strings.Cut(fields[3], "/")
	m.run("ip", "route", "replace", "default", "dev", fields[1])
	// A nameserver that nobody is, which is known at once: CoreDNS does not start without one.
	err = errors.Join(os.MkdirAll(filepath.Dir(resolvedFile), 0o755), os.WriteFile(resolvedFile, []byte("[Resolve]\nDNS="+m.address+"\n"), 0o644))
	if err != nil {
		m.t.Fatal(err)
	}
	m.run("systemctl", "restart", "systemd-resolved")
}

// serveImages has the registry with the images of the cluster listen on the loopback.
func (m *whole) serveImages() {
	m.t.Helper()
	serving, stop := context.WithCancel(context.Background())
	m.t.Cleanup(stop)
	if err := registryServer(serving, m.dir+"/registry.sock", m.programs); err != nil {
		m.t.Fatal(err)
	}
	l, err := net.Listen("tcp", registryAddress)
	if err != nil {
		m.t.Fatal(err)
	}
	context.AfterFunc(serving, func() { l.Close() })
	go forward(l, "unix", m.dir+"/registry.sock")
}

// writeConfig writes kubeadm's configuration. Probes of the control plane have time: each start of
// an API server that was ended for being slow makes it slower still.
func (m *whole) writeConfig() {
	m.t.Helper()
	config := strings.NewReplacer("NODE_NAME", m.name, "NODE_ADDRESS", m.address, "PATCHES", m.dir+"/patches", "REGISTRY", registryAddress,
		"VERSION", m.programs.version).Replace(machineConfig)
	err := errors.Join(os.Mkdir(m.dir+"/patches", 0o700), os.WriteFile(m.dir+"/kubeadm.yaml", []byte(config), 0o600))
	for _, c := range []string{"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"} {
		patch := "spec: {containers: [{name: " + c + ", livenessProbe: {timeoutSeconds: 120}, startupProbe: {timeoutSeconds: 120}}]}\n"
		err = errors.Join(err, os.WriteFile(m.dir+"/patches/"+c+"+strategic.yaml", []byte(patch), 0o600))
	}
	if err != nil {
		m.t.Fatal(err)
	}
}

// told is what a failure is understood from.
func (m *whole) told() {
	if !m.t.Failed() {
		return
	}
	for _, command := range []string{
		"journalctl --no-pager -u kubelet -p warning | tail -c 8000", "ps -A -o pid,etime,time,args", "berth get pods -A -o wide",
		"kubectl --kubeconfig /etc/kubernetes/admin.conf get events -A | tail -40",
		"tail -n 15 /var/log/pods/*/*/*.log | tail -c 12000",
	} {
		out, err := exec.Command("sh", "-c", command).CombinedOutput()
		m.t.Logf("%s: %v\n%s", command, err, out)
	}
}

// kubeadm makes a machine with cgroup v2 and systemd a cluster of one node whose kubelet Berth is,
// with every check of its own; names of Services are answered, a restart of the unit touches no
// container, and kubeadm takes it all back.
func TestVMKubeadm(t *testing.T) {
	m := newWhole(t, "/opt/guest")
	t.Cleanup(m.told)
	if socket := m.run("berth", "runtime"); socket != criSocket {
		t.Fatalf("berth runtime prints %q", socket)
	}
	m.writeConfig()
	t.Log(m.run("kubeadm", "init", "--config", m.dir+"/kubeadm.yaml"))
	if err := os.Symlink("/etc/kubernetes/admin.conf", m.kubeconfig()); err != nil {
		t.Fatal(err)
	}
	for _, part := range []struct {
		name string
		test func(*whole)
	}{
		{"Node", (*whole).testNode},
		{"Cgroups", (*whole).testCgroups},
		{"Names", (*whole).testNames},
		{"Restart", (*whole).testRestart},
		{"Reset", (*whole).testReset},
	} {
		if !t.Run(part.name, func(t *testing.T) {
			in := *m.world
			in.t = t
			part.test(&whole{world: &in, name: m.name, address: m.address})
		}) {
			return // the next parts go on from this one
		}
	}
}

// testNode: the node is ready, and so is what kubeadm has put on it.
func (m *whole) testNode() {
	m.kubectl("wait", "--for=condition=Ready", "node/"+m.name, "--timeout=12m")
	m.kubectl("-n", "kube-system", "rollout", "status", "daemonset/kube-proxy", "--timeout=12m")
	m.kubectl("-n", "kube-system", "rollout", "status", "deployment/coredns", "--timeout=12m")
	m.kubectl("-n", "kube-system", "wait", "--for=condition=Ready", "pod", "-l", "tier=control-plane", "--timeout=12m")
	if got := strings.Fields(m.kubectl("-n", "kube-system", "get", "pods", "-l", "tier=control-plane", "-o", "name")); len(got) != 4 {
		m.t.Errorf("pods of the control plane: %q", got)
	}
	if got := m.kubectl("get", "node", m.name, "-o", "jsonpath={.spec.podCIDR} {.status.addresses[?(@.type=='InternalIP')].address}"); got != "10.244.0.0/24 "+m.address {
		m.t.Errorf("the node has %q", got)
	}
	for property, want := range map[string]string{"Type": "notify", "ActiveState": "active"} {
		if got := m.run("systemctl", "show", "-P", property, "kubelet"); got != want {
			m.t.Errorf("systemd has the kubelet with %s %q, want %q", property, got, want)
		}
	}
}

// testCgroups: kubeadm has the kubelet use systemd's cgroups, of version 2.
func (m *whole) testCgroups() {
	if _, err := os.Stat("/sys/fs/cgroup/cgroup.controllers"); err != nil {
		m.t.Errorf("this machine has no cgroup v2: %v", err)
	}
	if got := m.run("systemctl", "show", "-P", "ActiveState", "kubepods.slice"); got != "active" {
		m.t.Errorf("kubepods.slice is %q", got)
	}
	server := strings.Fields(m.run("pgrep", "-x", "kube-apiserver"))
	if len(server) != 1 {
		m.t.Fatalf("processes of the API server: %q", server)
	}
	cgroup, err := os.ReadFile("/proc/" + server[0] + "/cgroup")
	if err != nil || !strings.HasPrefix(string(cgroup), "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod") ||
		!strings.HasSuffix(strings.TrimSpace(string(cgroup)), ".scope") {
		m.t.Errorf("the API server is in the cgroup %q, %v", cgroup, err)
	}
}

// testNames: a pod reaches the pods of a Deployment by the name of their Service.
func (m *whole) testNames() {
	m.apply(webObjects)
	m.kubectl("rollout", "status", "deployment/web", "--timeout=10m")
	// kube-proxy, too, takes its time on this machine.
	m.apply(clientPod("asks", m.name, "-quiet", "-times", "20", "-patience", "4m", "http://web.default.svc.cluster.local"))
	m.kubectl("wait", "--for=jsonpath={.status.containerStatuses[0].state.terminated.reason}", "pod/asks", "--timeout=6m")
	if got := m.kubectl("logs", "asks"); !strings.Contains(got, "asked 20 failed 0") {
		m.t.Errorf("the pod says %q", got)
	}
}

// testRestart: systemctl restart is an agent that goes on with the same containers.
func (m *whole) testRestart() {
	before := m.restarts()
	m.run("systemctl", "restart", "kubelet")
	m.await("the kubelet to be healthy", func() bool {
		c, err := net.DialTimeout("tcp", "127.0.0.1:10248", time.Second)
		if err == nil {
			c.Close()
		}
		return err == nil
	})
	m.kubectl("wait", "--for=condition=Ready", "node/"+m.name, "--timeout=5m")
	m.kubectl("wait", "--for=condition=Ready", "pods", "-l", "app=web", "--timeout=5m")
	if after := m.restarts(); after != before {
		m.t.Errorf("containers before:\n%s\nafter:\n%s", before, after)
	}
}

// testReset: what kubeadm takes back has nothing left.
func (m *whole) testReset() {
	m.run("systemctl", "stop", "kubelet")
	m.run("berth", "stop", "--all")
	m.run("kubeadm", "reset", "--force", "--cleanup-tmp-dir", "--cri-socket", criSocket)
	for what, script := range map[string]string{
		"processes":       `ps -A -o comm= | grep -e '^containerd' -e '^kube' -e '^etcd' -e '^coredns' || true`,
		"mounts":          `grep -e ' /var/lib/kubelet/' -e ' /run/berth' -e ' /run/netns' /proc/self/mounts || true`,
		"cgroups of pods": `find /sys/fs/cgroup -type d -name '*kubepods*-pod*'`,
		"interfaces":      `ip -o link | grep -v -e ' lo:' -e ' en' -e ' eth' || true`,
		"files":           `find /etc/kubernetes /var/lib/kubelet /var/lib/etcd -mindepth 1 -type f 2>/dev/null || true`,
	} {
		if left := m.run("sh", "-c", script); left != "" {
			m.t.Errorf("%s that are left:\n%s", what, left)
		}
	}
}
