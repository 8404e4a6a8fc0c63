package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// The unit that users copy runs with kubeadm's drop-in what this says, with what kubeadm has
// written.
func TestUnitCommand(t *testing.T) {
	text, err := os.ReadFile("../../docs/kubelet.service")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for name, content := range map[string]string{
		"kubelet.service": string(text) + string(dropIn) + "EnvironmentFile=-" + dir + "/flags.env\nEnvironmentFile=-" + dir + "/none\n",
		"flags.env":       `KUBELET_KUBEADM_ARGS="--node-ip=192.0.2.1 --hostname-override=box"` + "\nKUBELET_EXTRA_ARGS=-v=4\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cmd, err := unitCommand(filepath.Join(dir, "kubelet.service"))
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"/usr/bin/kubelet", "--bootstrap-kubeconfig=/etc/kubernetes/bootstrap-kubelet.conf", "--kubeconfig=/etc/kubernetes/kubelet.conf",
		"--config=/var/lib/kubelet/config.yaml", "--node-ip=192.0.2.1", "--hostname-override=box", "-v=4",
	}
	if diff := cmp.Diff(want, cmd.Args); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
