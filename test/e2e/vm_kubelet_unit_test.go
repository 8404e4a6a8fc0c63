//go:build e2e && vm

package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
)

// kubeadmDropIn is the drop-in of kubeadm's packages (kubernetes.io, "The kubelet drop-in file for
// systemd"), without its comments.
const kubeadmDropIn = `[Service]
Environment="KUBELET_KUBECONFIG_ARGS=--bootstrap-kubeconfig=/etc/kubernetes/bootstrap-kubelet.conf --kubeconfig=/etc/kubernetes/kubelet.conf"
Environment="KUBELET_CONFIG_ARGS=--config=/var/lib/kubelet/config.yaml"
EnvironmentFile=-/var/lib/kubelet/kubeadm-flags.env
EnvironmentFile=-/etc/default/kubelet
ExecStart=
ExecStart=/usr/bin/kubelet $KUBELET_KUBECONFIG_ARGS $KUBELET_CONFIG_ARGS $KUBELET_KUBEADM_ARGS $KUBELET_EXTRA_ARGS
`

// kubeadmFiles are the paths of that drop-in, and of what it names.
var kubeadmFiles = struct{ program, dropIn, kubeconfig, config, flags, extra string }{
	"/usr/bin/kubelet", "/usr/lib/systemd/system/kubelet.service.d/10-kubeadm.conf",
	"/etc/kubernetes/kubelet.conf", "/var/lib/kubelet/config.yaml", "/var/lib/kubelet/kubeadm-flags.env", "/etc/default/kubelet",
}

// writeKubeletUnit has the node's agent be kubelet.service, by the documented unit file and
// kubeadm's drop-in.
func (c *cluster) writeKubeletUnit() *unit {
	c.t.Helper()
	text, err := os.ReadFile("../../docs/kubelet.service")
	must(c.t, err)
	kubeconfig, err := os.ReadFile(c.plane.dir + "/node-" + c.name + ".kubeconfig")
	must(c.t, err)
	for file, content := range map[string]string{
		unitFolder + "kubelet.service": string(text),
		kubeadmFiles.dropIn:            kubeadmDropIn,
		kubeadmFiles.kubeconfig:        string(kubeconfig),
		kubeadmFiles.config:            c.config(),
		kubeadmFiles.flags:             fmt.Sprintf("KUBELET_KUBEADM_ARGS=\"--hostname-override=%s\"\n", c.name),
		kubeadmFiles.extra:             fmt.Sprintf("KUBELET_EXTRA_ARGS=--root-dir=%s --run-dir=%s --cert-dir=%s/pki\n", c.place.Root, c.place.Run, c.place.Root),
	} {
		must(c.t, os.MkdirAll(filepath.Dir(file), 0o755))
		must(c.t, os.WriteFile(file, []byte(content), 0o600))
	}
	must(c.t, os.Symlink(c.binary, kubeadmFiles.program))
	systemctl(c.t, "daemon-reload")
	return c.unit("kubelet.service")
}

// removeKubeletUnit undoes writeKubeletUnit.
func (c *cluster) removeKubeletUnit() {
	f := kubeadmFiles
	c.unit("kubelet.service").remove()
	for _, file := range []string{f.program, f.kubeconfig, f.config, f.flags, f.extra, f.dropIn, filepath.Dir(f.dropIn)} {
		must(c.t, os.Remove(file))
	}
	must(c.t, c.removeLogLinks())
}

// nodeReady waits until the Node is ready.
func (c *cluster) nodeReady() {
	c.t.Helper()
	c.awaitWithin("the node to be ready", func() bool {
		n, err := c.client.GetNode(c.ctx, c.name)
		return err == nil && nodeCondition(n, v1.NodeReady).Status == v1.ConditionTrue
	})
}

// As kubelet.service of a node that kubeadm made, the agent is stopped, restarted, killed, replaced
// and hangs, and no container notices. It is ready for systemd without an API server.
func TestVMKubeletUnit(t *testing.T) {
	needsSystemd(t)
	c := newCluster(t)
	c.ownBinary()
	u := c.writeKubeletUnit()
	t.Cleanup(c.removeKubeletUnit)
	c.put(c.act("worker", v1.RestartPolicyAlways, nil, actor("main", ticking)))
	u.command("start")
	c.nodeReady()
	c.create(withTools(c.helloPod("web", "serve")))
	c.awaitAPIReady("web")
	s := u.steady("web", "worker-"+c.name)
	u.wantTold("2 of 2 pods are ready")
	if comm := strings.TrimSpace(readFile(t, fmt.Sprintf("/proc/%d/comm", u.pid()))); comm != "kubelet" {
		t.Errorf("the process is called %s", comm)
	}
	s.outlives(t)
	c.nodeReady()

	c.plane.must("stop-apiserver")
	u.command("restart")
	s.goesOn("with an agent that knows no API server")
	for name, pid := range s.bodies {
		if err := unix.Kill(pid, 0); err != nil {
			t.Errorf("over a restart without an API server, the process of %s: %v", name, err)
		}
	}
	until(t, "the journal to have why there is no API server", func() bool {
		for line := range strings.Lines(journalOf(t, u.name, "-p", "warning", "-o", "json")) {
			var entry map[string]any
			must(t, json.Unmarshal([]byte(line), &entry))
			if text, _ := entry["ERROR"].(string); strings.Contains(text, "connection refused") {
				return true
			}
		}
		return false
	})
	c.plane.must("start-apiserver")
	c.nodeReady()
	s.unchanged("the time without an API server")
	if p := c.awaitAPIReady("web").named("web"); container(p, "main").RestartCount != 0 {
		t.Errorf("the API has %d restarts of the container", container(p, "main").RestartCount)
	}
}
