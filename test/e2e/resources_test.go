//go:build e2e

package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"berth/internal/host/cgroups"
)

// limits has a container say what its cgroup and its process tell of its limits. An unknown file is
// said as nothing.
const limits = `
one() { say "$1=$(cat /sys/fs/cgroup/$2 2>/dev/null || cat /sys/fs/cgroup/$3 2>/dev/null | tr ' ' /)"; }
one shares cpu/cpu.shares none
one quota cpu/cpu.cfs_quota_us cpu.max
one period cpu/cpu.cfs_period_us none
one memory memory/memory.limit_in_bytes memory.max
one swap memory/memory.memsw.limit_in_bytes memory.swap.max
one together none memory.oom.group
say "oom=$(cat /proc/self/oom_score_adj)"
`

// wantSaid checks what the container main of a pod said of its limits.
func (n *node) wantSaid(pod string, lines ...string) {
	n.t.Helper()
	for _, line := range lines {
		n.awaitStory(pod, "main "+line)
	}
}

// bounded gives a container requests and limits, each "cpu memory"; "" is none.
func bounded(c v1.Container, requests, limits string) v1.Container {
	c.Resources = resourcesOf(requests, limits)
	return c
}

func resourcesOf(requests, limits string) v1.ResourceRequirements {
	list := func(s string) v1.ResourceList {
		cpu, memory, ok := strings.Cut(s, " ")
		if !ok {
			return nil
		}
		return v1.ResourceList{v1.ResourceCPU: resource.MustParse(cpu), v1.ResourceMemory: resource.MustParse(memory)}
	}
	return v1.ResourceRequirements{Requests: list(requests), Limits: list(limits)}
}

// podCgroup returns the file's content in the pod's cgroup, of whatever driver and version.
func (n *node) podCgroup(p *v1.Pod, v1File, v2File string) string {
	n.t.Helper()
	uid := string(p.UID)
	for _, dir := range n.place.cgroupTree() {
		base := filepath.Base(dir)
		if base != "pod"+uid && !strings.HasSuffix(base, "-pod"+strings.ReplaceAll(uid, "-", "_")+".slice") {
			continue
		}
		if b, err := os.ReadFile(filepath.Join(dir, byVersion(v1File, v2File))); err == nil {
			return strings.TrimSpace(string(b))
		}
	}
	n.t.Fatalf("no %s in the cgroups of pod %s: %v", byVersion(v1File, v2File), uid, n.place.cgroupTree())
	return ""
}

// oomScore returns what a process has that is to have the score. Without CAP_SYS_RESOURCE nobody
// can lower it below the own one.
func oomScore(t *testing.T, want int) string {
	t.Helper()
	var self [1]unix.CapUserData
	if err := unix.Capget(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_1}, &self[0]); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile("/proc/self/oom_score_adj")
	if err != nil {
		t.Fatal(err)
	}
	own, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		t.Fatal(err)
	}
	if self[0].Effective&(1<<unix.CAP_SYS_RESOURCE) == 0 {
		want = max(want, own)
	}
	return fmt.Sprintf("oom=%d", want)
}

// Each limit is seen from inside of a container.
func TestLimitsFromInside(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.put(n.act("guaranteed", v1.RestartPolicyNever, nil, bounded(actor("main", limits+"stay"), "300m 48Mi", "300m 48Mi")))
	n.put(n.act("burstable", v1.RestartPolicyNever, nil, bounded(actor("main", limits+"stay"), "250m 32Mi", "500m 64Mi")))
	n.put(n.act("effort", v1.RestartPolicyNever, nil, actor("main", limits+"stay")))
	n.start()
	p := n.awaitReady("guaranteed", "burstable", "effort")
	const none = "9223372036854771712"
	for pod, want := range map[string][2][]string{
		"guaranteed": {
			{"shares=307", "quota=30000", "period=100000", "memory=50331648"},
			{"quota=30000/100000", "memory=50331648", "together=1"},
		},
		"burstable": {{"shares=256", "quota=50000", "memory=67108864"}, {"quota=50000/100000", "memory=67108864"}},
		"effort":    {{"shares=2", "quota=-1", "memory=" + none, "oom=1000"}, {"quota=max/100000", "memory=max", "oom=1000"}},
	} {
		if version, _ := cgroups.Detect(); version == 2 {
			n.wantSaid(pod, want[1]...)
		} else {
			n.wantSaid(pod, want[0]...)
		}
	}
	n.wantSaid("guaranteed", oomScore(t, -997))
	if cgroups.SwapAccounted() {
		n.wantSaid("guaranteed", byVersion("swap=50331648", "swap=0"))
	}
	if got, want := n.podCgroup(p.named("guaranteed"), "cpu.shares", "cpu.weight"), byVersion("307", "12"); got != want {
		t.Errorf("the guaranteed pod's part of the CPU is %s, want %s", got, want)
	}
}

// What a pod may use as a whole holds for its cgroup, and for containers that state nothing
// themselves.
func TestPodLevelResources(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	whole := resourcesOf("200m 48Mi", "400m 64Mi")
	shared := n.act("shared", v1.RestartPolicyNever, nil, actor("main", limits+"stay"), bounded(actor("own", "stay"), "100m 16Mi", "200m 32Mi"))
	shared.Spec.Resources = &whole
	hog := n.act("hog", v1.RestartPolicyNever, nil, actor("main", "exec tail /dev/zero"))
	hog.Spec.Resources = &whole
	n.put(shared)
	n.put(hog)
	n.start()
	p := n.awaitReady("shared").named("shared")
	n.wantSaid("shared", byVersion("quota=40000", "quota=40000/100000"), "memory=67108864")
	for what, files := range map[string][3]string{
		"memory": {"memory.limit_in_bytes", "memory.max", "67108864"},
		"CPU":    {"cpu.cfs_quota_us", "cpu.max", byVersion("40000", "40000 100000")},
		"shares": {"cpu.shares", "cpu.weight", byVersion("204", "8")},
	} {
		if got := n.podCgroup(p, files[0], files[1]); got != files[2] {
			t.Errorf("%s of the pod: %s, want %s", what, got, files[2])
		}
	}
	failed := n.await("the hog to fail", func(p pods) bool { return p.inPhase("hog", v1.PodFailed) }).named("hog")
	wantTerminated(t, failed, "main", 137, "OOMKilled")
	n.write("too-big.yaml", strings.Replace(manifest("too-big"), "spec:\n", "spec:\n  resources: {requests: {cpu: 9999}}\n", 1))
	n.await("the pod that asks for too much to be refused", func(p pods) bool { return p.inPhase("too-big", v1.PodFailed) })
	n.awaitEvents("", "OutOfcpu")
}

// A configuration's settings: processes of a pod, the period of quotas, and what is kept from pods.
func TestConfiguredResources(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.put(n.act("bound", v1.RestartPolicyNever, nil, bounded(actor("main", limits+"stay"), "", "500m 64Mi")))
	n.put(n.act("forker", v1.RestartPolicyNever, nil, actor("main", "for i in $(seq 100); do sleep infinity & done; stay")))
	a := n.startConfigured(`podPidsLimit: 40
cpuCFSQuotaPeriod: 20ms
kubeReserved: {cpu: 250m, memory: 256Mi, pid: "100"}
systemReserved: {memory: 256Mi, pid: "100"}
`)
	var p *v1.Pod
	n.await("the pod", func(all pods) bool { p = all.named("bound-n1"); return p != nil })
	n.wantSaid("bound", byVersion("quota=10000", "quota=10000/20000"))
	if got := n.podCgroup(p, "pids.max", "pids.max"); got != "40" {
		t.Errorf("the pod may have %s processes, want 40", got)
	}
	n.await("the pod with too many processes to fail", func(p pods) bool { return p.inPhase("forker-n1", v1.PodFailed) })
	n.awaitLog("forker-n1", "Cannot fork")

	var machine unix.Sysinfo_t
	if err := unix.Sysinfo(&machine); err != nil {
		t.Fatal(err)
	}
	want := int64(machine.Totalram)*int64(machine.Unit) - 512<<20
	until(t, "kubepods to be held to what is not reserved", func() bool {
		got, err := strconv.ParseInt(n.kubepods("memory.limit_in_bytes", "memory.max"), 10, 64)
		return err == nil && got > want-1<<20 && got < want+1<<20
	})
	a.end(unix.SIGTERM)
}

// startConfigured starts an agent as a kubelet without an API server, named n1, with more lines of
// a KubeletConfiguration, and waits until it answers.
func (n *node) startConfigured(more string) *agent {
	n.t.Helper()
	a := n.launchConfigured(more)
	until(n.t, "the agent to answer", func() bool {
		_, err := n.list(n.ctx)
		return err == nil
	})
	return a
}

// configuredAgent is that agent, not started.
func (n *node) configuredAgent(more string) *agent {
	n.t.Helper()
	config := n.place.Dir + "/kubelet.yaml"
	if !strings.Contains(more, "makeIPTablesUtilChains") {
		more += "makeIPTablesUtilChains: false\n" // those of the host stay as they are
	}
	if err := os.WriteFile(config, fmt.Appendf(nil, `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
containerRuntimeEndpoint: embedded
failCgroupV1: false
failSwapOn: false
cgroupRoot: %s
cgroupDriver: %s
podLogsDir: %s
staticPodPath: %s
enableServer: false
healthzPort: 0
authentication: {webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
%s`, n.place.Cgroup, testDriver(), n.podLogs(), n.manifests(), more), 0o600); err != nil {
		n.t.Fatal(err)
	}
	a := n.newAgent()
	a.out = os.DevNull // all of it is in the log
	a.cmd = exec.Command(n.binary, "kubelet", "--config", config, "--hostname-override", "n1", "--root-dir", n.place.Root, "--run-dir", n.place.Run, "--cert-dir", n.place.Root+"/pki")
	return a
}

// launchConfigured is startConfigured that does not wait.
func (n *node) launchConfigured(more string) *agent {
	n.t.Helper()
	a := n.configuredAgent(more)
	log, err := os.Create(a.log)
	if err != nil {
		n.t.Fatal(err)
	}
	defer log.Close()
	a.cmd.Stdout, a.cmd.Stderr = log, log
	a.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	a.run()
	return a
}

// kubepods returns the file's content in the cgroup of all pods.
func (n *node) kubepods(v1File, v2File string) string {
	n.t.Helper()
	for _, top := range n.place.cgroupDirs() {
		for _, name := range []string{"kubepods", strings.TrimSuffix(filepath.Base(top), ".slice") + "-kubepods.slice"} {
			if b, err := os.ReadFile(filepath.Join(top, name, byVersion(v1File, v2File))); err == nil {
				return strings.TrimSpace(string(b))
			}
		}
	}
	return ""
}
