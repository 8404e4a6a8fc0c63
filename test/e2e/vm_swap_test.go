//go:build e2e && vm

package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// swapConfig is the configuration of a kubelet without an API server that lets pods swap.
const swapConfig = `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
containerRuntimeEndpoint: embedded
failSwapOn: false
memorySwap: {swapBehavior: LimitedSwap}
cgroupRoot: %s
podLogsDir: %s
staticPodPath: %s
enableServer: false
healthzPort: 0
authentication: {webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
`

// startConfigured starts a kubelet without an API server, with a configuration that says where its cgroups, logs and manifests are, and returns when
// it answers.
func (n *node) startConfigured(format string) {
	n.t.Helper()
	config := n.place.Dir + "/kubelet.yaml"
	must(n.t, os.WriteFile(config, fmt.Appendf(nil, format, n.place.Cgroup, n.podLogs(), n.manifests()), 0o644))
	a := n.newAgent()
	a.cmd = exec.Command(n.binary, "kubelet", "--config", config, "--hostname-override", "n1", "--root-dir", n.place.Root, "--run-dir", n.place.Run,
		"--cert-dir", n.place.Root+"/pki")
	log, err := os.Create(a.log)
	must(n.t, err)
	defer log.Close()
	a.cmd.Stdout, a.cmd.Stderr = log, log
	a.run()
	until(n.t, "the agent to answer", func() bool {
		_, err := n.list(n.ctx)
		return err == nil
	})
}

// What containers may swap, seen from inside: static pods are critical, and critical pods do not swap on a machine that has swap and lets others
// (KEP-2400).
func TestVMSwap(t *testing.T) {
	needsUnified(t)
	if swaps := strings.Count(readFile(t, "/proc/swaps"), "\n"); swaps == 0 {
		t.Fatal("this host has no swap: run this test by make e2e-vm")
	}
	const request = 96 << 20
	n := newNode(t)
	bytes := func(n int64) v1.ResourceList {
		return v1.ResourceList{v1.ResourceMemory: *resource.NewQuantity(n, resource.BinarySI)}
	}
	var names []string
	for name, r := range map[string]v1.ResourceRequirements{
		"burstable":  {Requests: bytes(request), Limits: bytes(2 * request)},
		"level":      {Requests: v1.ResourceList{v1.ResourceMemory: *resource.NewQuantity(request, resource.BinarySI), v1.ResourceCPU: resource.MustParse("10m")}, Limits: bytes(request)},
		"guaranteed": {Limits: amounts("100m", "96Mi")},
		"effort":     {},
	} {
		p := n.act(name, v1.RestartPolicyAlways, nil, actor("main", "cat /sys/fs/cgroup/memory.swap.max > /shared/swap; say looked\nstay\n"))
		p.Spec.Containers[0].Resources = r
		n.put(p)
		names = append(names, name+"-n1")
	}
	n.startConfigured(swapConfig)
	n.awaitReady(names...)
	for _, name := range names {
		name = strings.TrimSuffix(name, "-n1")
		n.awaitStory(name, "main looked")
		wantFile(t, filepath.Join(n.stage(name), "swap"), "0")
	}
}
