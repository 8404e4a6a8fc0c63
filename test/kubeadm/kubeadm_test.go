//go:build e2e

package main

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// A cluster that kubeadm makes of two Berth nodes does what clusters are for, and is gone when
// kubeadm takes it back. The parts are told one after the other; RUN='^TestKubeadm$/^Drain$' runs
// init, join and one of them.
func TestKubeadm(t *testing.T) {
	w := newWorld(t)
	if err := w.init(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := w.join(t.Context(), w.nodes[1]); err != nil {
		t.Fatal(err)
	}
	for _, part := range []struct {
		name string
		test func(*world)
	}{
		{"Nodes", (*world).testNodes},
		{"CronJob", (*world).testCronJob},
		{"MetricsServer", (*world).testMetricsServer},
		{"Service", (*world).testService},
		{"RollingUpdate", (*world).testRollingUpdate},
		{"StatefulSet", (*world).testStatefulSet},
		{"Job", (*world).testJob},
		{"NetworkPolicy", (*world).testNetworkPolicy},
		{"Autoscaling", (*world).testAutoscaling},
		{"DaemonSet", (*world).testDaemonSet},
		{"Drain", (*world).testDrain},
		{"Debug", (*world).testDebug},
		{"Copy", (*world).testCopy},
		{"UpgradeNode", (*world).testUpgradeNode},
		{"RenewCertificates", (*world).testRenewCertificates},
		{"CronJobHasRun", (*world).testCronJobHasRun},
		{"Reset", (*world).testReset},
	} {
		t.Run(part.name, func(t *testing.T) { part.test(w.in(t)) })
	}
}

// testNodes: both nodes are ready, with the identity that kubeadm wants them to have, and so is
// what kubeadm has put on them.
func (w *world) testNodes() {
	w.kubectl("wait", "--for=condition=Ready", "nodes", "--all", "--timeout=120s")
	w.kubectl("-n", "kube-system", "rollout", "status", "daemonset/kube-proxy", "--timeout=120s")
	w.kubectl("-n", "kube-system", "rollout", "status", "deployment/coredns", "--timeout=120s")
	w.kubectl("-n", "kube-system", "wait", "--for=condition=Ready", "pod", "-l", "tier=control-plane", "--timeout=120s")
	if got := strings.Fields(w.kubectl("-n", "kube-system", "get", "pods", "-l", "tier=control-plane", "-o", "name")); len(got) != 4 {
		w.t.Errorf("pods of the control plane: %q", got)
	}
	address, err := os.ReadFile(w.dir + "/address")
	if err != nil {
		w.t.Fatal(err)
	}
	w.kubectl("--server", "https://"+string(address), "get", "nodes") // the certificate names the address
	for _, n := range w.nodes {
		if files := w.on(n, "find", "/etc/cni", "/opt/cni", "-type", "f"); files != "" {
			w.t.Errorf("node %s has network plugins of the machine: %s", n.name, files)
		}
		for path, want := range map[string]string{
			`{.spec.podCIDRs}`: fmt.Sprintf("[%q,%q]", n.podCIDR, n.podCIDR6),
			`{.status.addresses[?(@.type=="InternalIP")].address}`: n.address + " " + n.address6,
		} {
			if got := w.kubectl("get", "node", n.name, "-o", "jsonpath="+path); got != want {
				w.t.Errorf("%s of node %s is %s, want %s", path, n.name, got, want)
			}
		}
		// kubeadm has the kubelet's kubeconfig name the certificate that is renewed.
		if got := w.on(n, "cat", "/etc/kubernetes/kubelet.conf"); !strings.Contains(got, "client-certificate: /var/lib/kubelet/pki/kubelet-client-current.pem") {
			w.t.Errorf("kubelet.conf of node %s:\n%s", n.name, got)
		}
	}
	if taints := w.kubectl("get", "node", w.nodes[0].name, "-o", "jsonpath={.spec.taints[*].key}"); taints != "node-role.kubernetes.io/control-plane" {
		w.t.Errorf("the control plane has the taints %q", taints)
	}
}

// testUpgradeNode: kubeadm writes the kubelet's configuration and the static pods anew; the agent
// starts anew on it, and no container does.
func (w *world) testUpgradeNode() {
	w.kubectl("rollout", "status", "deployment/web", "--timeout=60s")
	w.await("pods that were replaced to be gone", func() bool {
		return w.kubectl("get", "pods", "-A", "-l", "!batch.kubernetes.io/job-name", "-o", "jsonpath={.items[*].metadata.deletionTimestamp}") == ""
	})
	before := w.restarts()
	for _, n := range w.nodes {
		out := w.on(n, "kubeadm", "upgrade", "node", "--ignore-preflight-errors", "SystemVerification", "--patches", n.home+"/patches")
		if !strings.Contains(out, "[upgrade/kubelet-config]") {
			w.t.Errorf("kubeadm upgrade node on %s says %q", n.name, out)
		}
		if got := w.on(n, "cat", "/var/lib/kubelet/config.yaml"); !strings.Contains(got, "cgroupRoot: "+cgroupOf(n.home)) || !strings.Contains(got, criSocket) {
			w.t.Errorf("config.yaml of node %s:\n%s", n.name, got)
		}
		w.on(n, "systemctl", "restart", "kubelet")
		w.await("the kubelet of "+n.name+" to be healthy", func() bool {
			_, err := n.run(w.ctx, "curl", "-fs", "http://127.0.0.1:10248/healthz")
			return err == nil
		})
	}
	w.kubectl("wait", "--for=condition=Ready", "nodes", "--all", "--timeout=60s")
	if after := w.restarts(); after != before {
		w.t.Errorf("containers before:\n%s\nafter:\n%s", before, after)
	}
}

// testRenewCertificates: certificates that kubeadm renews are in force when the static pods were
// taken away and given back, as kubeadm's documentation has it.
func (w *world) testRenewCertificates() {
	n := w.nodes[0]
	serial := func() string {
		return w.on(n, "sh", "-c", "openssl s_client -connect 127.0.0.1:6443 </dev/null 2>/dev/null | openssl x509 -noout -serial")
	}
	before := serial()
	if out := w.on(n, "kubeadm", "certs", "renew", "all"); !strings.Contains(out, "certificate for serving the Kubernetes API renewed") {
		w.t.Errorf("kubeadm certs renew says %q", out)
	}
	w.on(n, "sh", "-c", "mkdir /etc/kubernetes/away && mv /etc/kubernetes/manifests/*.yaml /etc/kubernetes/away")
	w.await("the control plane to end", func() bool {
		return !strings.Contains(w.on(n, "ps", "-A", "-o", "comm"), "kube-apiserver") && !strings.Contains(w.on(n, "ps", "-A", "-o", "comm"), "etcd")
	})
	w.on(n, "sh", "-c", "mv /etc/kubernetes/away/*.yaml /etc/kubernetes/manifests && rmdir /etc/kubernetes/away")
	w.await("the API server to answer", func() bool {
		_, err := w.try("", "get", "--raw", "/readyz")
		return err == nil
	})
	if now := serial(); now == before {
		w.t.Errorf("the API server still has %q", before)
	}
	if err := w.writeKubeconfig(w.ctx); err != nil { // the administrator's was renewed, too
		w.t.Fatal(err)
	}
	w.kubectl("-n", "kube-system", "wait", "--for=condition=Ready", "pod", "-l", "tier=control-plane", "--timeout=120s")
	w.kubectl("wait", "--for=condition=Ready", "nodes", "--all", "--timeout=120s")
}

// testReset: a node that kubeadm resets has nothing left, is forgotten, and joins again; then the
// whole cluster goes.
func (w *world) testReset() {
	worker := w.nodes[1]
	w.kubectl("drain", worker.name, "--ignore-daemonsets", "--delete-emptydir-data", "--force", "--timeout=120s")
	w.reset(worker)
	w.kubectl("delete", "node", worker.name)
	w.on(worker, "berth", "runtime")
	if err := w.join(w.ctx, worker); err != nil {
		w.t.Fatal(err)
	}
	w.kubectl("wait", "--for=condition=Ready", "node/"+worker.name, "--timeout=120s")
	w.reset(worker)
	w.reset(w.nodes[0])
}

// reset takes a node back.
func (w *world) reset(n *node) {
	w.t.Helper()
	w.on(n, "systemctl", "stop", "kubelet")
	w.on(n, "berth", "stop", "--all")
	w.on(n, "kubeadm", "reset", "--force", "--cleanup-tmp-dir", "--cri-socket", criSocket)
	for what, script := range map[string]string{
		"processes":             `ps -A -o pid=,ppid=,args= | grep -v -e ' ps -A' -e ' grep ' -e ' sh -c ' -e kubeadm-cluster -e nsenter || true`,
		"files":                 `find /etc/kubernetes /var/lib/kubelet /var/lib/etcd -mindepth 1 ! -path /etc/kubernetes/pki ! -path /etc/kubernetes/manifests ! -path /etc/kubernetes/tmp 2>/dev/null || true`,
		"mounts":                `grep -e ' /var/lib/kubelet/' -e ' /run/' /proc/self/mounts || true`,
		"cgroups of pods":       `find /sys/fs/cgroup -path '*` + cgroupOf(n.home) + `/*' -type d -name 'pod*'`,
		"interfaces":            `ip -o link | grep -v -e ' lo:' -e ' eth0@' || true`,
		"namespaces of network": `lsns -t net -n -o NS | tail -n +2`,
	} {
		if left := strings.TrimSpace(w.on(n, "sh", "-c", script)); left != "" {
			w.t.Errorf("%s of %s that are left:\n%s", what, n.name, left)
		}
	}
}
