package agenttest

import (
	"maps"
	"os"
	"path/filepath"

	"berth/internal/cluster/kube/kubetest"
	"berth/internal/cluster/node"
	"berth/internal/config"
)

// NodeName is the name of the machine.
const NodeName = "node"

// Join makes the machine a cluster member: it replaces the agent by one that runs as a kubelet,
// with an in-memory API server.
func (w *World) Join() {
	w.T.Helper()
	w.StopAgent()
	w.API = kubetest.New()
	w.StartAgent()
}

// kubelet returns the configuration of a cluster member.
func (w *World) kubelet() *config.Kubelet {
	w.T.Helper()
	file := filepath.Join(w.dir, "kubelet.yaml")
	content := "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n" +
		"containerRuntimeEndpoint: unix:///run/none.sock\nfailCgroupV1: false\nfailSwapOn: false\n" +
		"enableServer: false\nhealthzPort: 0\npodLogsDir: " + filepath.Join(w.dir, "logs") + "\n" + w.Kubelet
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		w.T.Fatal(err)
	}
	values := map[string]string{"config": file, "kubeconfig": filepath.Join(w.dir, "none"), "root-dir": filepath.Join(w.dir, "root")}
	maps.Copy(values, w.Flags)
	flags := config.NewFlags()
	for _, f := range flags.All() {
		if value, ok := values[f.Name]; ok {
			if err := f.Set(value); err != nil {
				w.T.Fatal(err)
			}
		}
	}
	k, err := config.Load(flags)
	if err != nil {
		w.T.Fatal(err)
	}
	return k
}

// nodeMachine returns what a cluster member reports of the machine.
func nodeMachine() (node.Machine, error) {
	return node.Machine{CPUs: 4, Memory: 8 << 30, Storage: 64 << 30, MachineID: "m", SystemUUID: "s", BootID: "b", Kernel: "6", OSImage: "in memory"}, nil
}
