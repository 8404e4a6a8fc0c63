//go:build e2e

package e2e

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/cpuset"
)

// places has a container say where it may run and have its memory, of which run it is.
const places = `
allowed() { while read -r key value; do [ "$key" != "$1_allowed_list:" ] || echo "$value"; done < /proc/self/status; }
say "run $run on CPUs $(allowed Cpus) with memory of $(allowed Mems)"
`

// allowed returns where the kernel lets the process run (Cpus) or have its memory (Mems); "" if
// there is no such process any more.
func allowed(pid, what string) string {
	b, err := os.ReadFile(filepath.Join("/proc", pid, "status"))
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(b)) {
		if list, ok := strings.CutPrefix(line, what+"_allowed_list:"); ok {
			return strings.TrimSpace(list)
		}
	}
	return ""
}

// cpusOfPods returns the CPUs on which each pod's containers may run, as their cgroups and every
// process in them have it, by the pods' names. Of cgroups that are nobody's it has the path. What
// only holds a sandbox open is left out: it never runs.
func (n *node) cpusOfPods(now pods) map[string]string {
	n.t.Helper()
	sandboxes := map[string]bool{}
	for _, p := range now {
		for _, id := range n.sandboxes(p) {
			sandboxes[id] = true
		}
	}
	owner := func(dir string) string {
		base := filepath.Base(dir)
		for id := range sandboxes {
			if strings.Contains(base, id) {
				return ""
			}
		}
		for _, p := range now {
			for _, c := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
				if id := containerID(p, c.Name); id != "" && strings.Contains(base, id) {
					return p.Name
				}
			}
		}
		return dir
	}
	found := map[string]map[string]bool{}
	for _, dir := range n.place.cgroupTree() {
		cpus, err := os.ReadFile(filepath.Join(dir, byVersion("cpuset.cpus", "cpuset.cpus.effective")))
		if err != nil || !strings.Contains(dir, "kubepods") {
			continue
		}
		procs, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
		who := owner(dir)
		if err != nil || len(procs) == 0 || who == "" {
			continue
		}
		if found[who] == nil {
			found[who] = map[string]bool{}
		}
		found[who][strings.TrimSpace(string(cpus))] = true
		for _, pid := range strings.Fields(string(procs)) {
			if list := allowed(pid, "Cpus"); list != "" {
				found[who][list] = true
			}
		}
	}
	out := map[string]string{}
	for who, lists := range found {
		out[who] = strings.Join(slices.Sorted(maps.Keys(lists)), " and ")
	}
	return out
}

// awaitCPUs waits until all containers run on these CPUs, which are given by the pods' names, and
// no cgroup of pods has others.
func (n *node) awaitCPUs(now pods, want map[string]string) {
	n.t.Helper()
	var got map[string]string
	defer func() {
		if !maps.Equal(got, want) {
			n.t.Logf("the CPUs of pods are %v, want %v", got, want)
		}
	}()
	until(n.t, fmt.Sprintf("the CPUs of pods to be %v", want), func() bool {
		got = n.cpusOfPods(now)
		return maps.Equal(got, want)
	})
}

// wantCPUState checks what the file says that the next agent reads.
func (n *node) wantCPUState(shared string, owned map[string]map[string]string) {
	n.t.Helper()
	var state struct {
		Policy  string                       `json:"policyName"`
		Shared  string                       `json:"defaultCpuSet"`
		Entries map[string]map[string]string `json:"entries"`
	}
	b, err := os.ReadFile(n.cpuState())
	if err == nil {
		err = json.Unmarshal(b, &state)
	}
	same := func(a, b map[string]string) bool { return maps.Equal(a, b) }
	if err != nil || state.Policy != "static" || state.Shared != shared || !maps.EqualFunc(state.Entries, owned, same) {
		n.t.Errorf("the file of CPUs is %s, %v; want %s shared and %v", b, err, shared, owned)
	}
}

func (n *node) cpuState() string { return n.place.Root + "/cpu_manager_state" }

// split is a machine of which pods can have a single CPU: all others are reserved.
type split struct{ all, reserved, own, nodes string }

func splitCPUs(t *testing.T) split {
	t.Helper()
	read := func(name string) string {
		b, err := os.ReadFile("/sys/devices/system/" + name + "/online")
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(string(b))
	}
	s := split{all: read("cpu"), nodes: read("node")}
	all, err := cpuset.Parse(s.all)
	if err != nil || all.Size() < 2 {
		t.Fatalf("this test needs two CPUs, and the machine has %s (%v)", s.all, err)
	}
	own := cpuset.New(slices.Max(all.List()))
	s.own, s.reserved = own.String(), all.Difference(own).String()
	return s
}

// static is the configuration that shares out CPUs. What is not moved at once is not moved within
// the test.
func (s split) static() string {
	return fmt.Sprintf("cpuManagerPolicy: static\ncpuManagerReconcilePeriod: 24h\nreservedSystemCPUs: %q\n", s.reserved)
}

// pinned are the CPUs of the pods pinned and rest.
func (s split) pinned() map[string]string {
	return map[string]string{"pinned-n1": s.own, "rest-n1": s.reserved}
}

// A container of a Guaranteed pod has its CPU to itself: others leave it at once, it keeps it over
// restarts of its own and of the agent, and they get it back when it ends.
func TestCPUsPinned(t *testing.T) {
	t.Parallel()
	m := splitCPUs(t)
	n := newNode(t)
	rests := actor("main", places+"stay")
	rests.Resources.Requests = v1.ResourceList{v1.ResourceMemory: resource.MustParse("16Mi")}
	n.put(n.act("rest", v1.RestartPolicyAlways, nil, rests))
	a := n.startConfigured(m.static())
	now := n.awaitReady("rest-n1")
	n.awaitStory("rest", "main run 1 on CPUs "+m.all+" with memory of "+m.nodes)
	n.awaitCPUs(now, map[string]string{"rest-n1": m.all})
	n.wantCPUState(m.all, nil)

	pinned := bounded(actor("main", places+`if [ $run = 1 ]; then until [ -e /shared/again ]; do sleep 0.1; done; exit 3; fi
stay`), "", "1 32Mi")
	n.put(n.act("pinned", v1.RestartPolicyAlways, nil, pinned))
	now = n.awaitReady("pinned-n1", "rest-n1")
	both := m.pinned()
	n.awaitCPUs(now, both)
	n.awaitStory("pinned", "main run 1 on CPUs "+m.own+" with memory of "+m.nodes)
	p := now.named("pinned-n1")
	owned := map[string]map[string]string{string(p.UID): {"main": m.own}}
	n.wantCPUState(m.reserved, owned)
	n.wantNoQuota(p)
	rest := now.named("rest-n1")
	if said := n.execIn("", "rest-n1", "--", "/usr/bin/grep", "Cpus_allowed_list", "/proc/self/status"); strings.Join(strings.Fields(said.out), " ") != "Cpus_allowed_list: "+m.reserved {
		t.Errorf("a program in the container that shares sees %v", said)
	}

	a.kill()
	n.awaitCPUs(now, both)
	n.mark("pinned", "again") // it ends while there is no agent
	n.startConfigured(m.static())
	now = n.await("the container to run again", func(p pods) bool {
		return p.ready("pinned-n1", "rest-n1") && container(p.named("pinned-n1"), "main").RestartCount == 1
	})
	n.awaitStory("pinned", "main run 2 on CPUs "+m.own+" with memory of "+m.nodes)
	n.awaitCPUs(now, both)
	n.wantCPUState(m.reserved, owned)
	n.wantNoQuota(p)
	if c := container(now.named("rest-n1"), "main"); c.ContainerID != container(rest, "main").ContainerID || c.RestartCount != 0 {
		t.Errorf("the container that shares is %s after %d restarts", c.ContainerID, c.RestartCount)
	}

	n.remove("pinned.yaml")
	n.awaitGone(p.UID)
	n.awaitCPUs(pods{rest}, map[string]string{"rest-n1": m.all})
	n.wantCPUState(m.all, nil)
}

// wantNoQuota checks that neither the container main of the pod nor the pod is slowed down.
func (n *node) wantNoQuota(p *v1.Pod) {
	n.t.Helper()
	now, err := n.list(n.ctx)
	if err != nil {
		n.t.Fatal(err)
	}
	id, want := containerID(now.named(p.Name), "main"), byVersion("-1", "max 100000")
	checked := 0
	for _, dir := range n.place.cgroupTree() {
		for _, level := range []string{dir, filepath.Dir(dir)} {
			b, err := os.ReadFile(filepath.Join(level, byVersion("cpu.cfs_quota_us", "cpu.max")))
			if err != nil || id == "" || !strings.Contains(filepath.Base(dir), id) {
				continue
			}
			checked++
			if got := strings.TrimSpace(string(b)); got != want {
				n.t.Errorf("the CPU quota of %s is %s, want %s", level, got, want)
			}
		}
	}
	if checked < 2 {
		n.t.Errorf("%d cgroups of the pod and its container %s have a quota to be looked at", checked, id)
	}
}

// With the strictest alignment a container has its CPU and its memory on one NUMA node; a machine
// with one works as without. A pod for which no CPU is left is refused.
func TestCPUsOneNode(t *testing.T) {
	t.Parallel()
	m := splitCPUs(t)
	n := newNode(t)
	near, err := filepath.Glob("/sys/devices/system/cpu/cpu" + m.own + "/node[0-9]*")
	if err != nil || len(near) != 1 {
		t.Fatalf("CPU %s lies on the NUMA nodes %q, %v", m.own, near, err)
	}
	node := strings.TrimPrefix(filepath.Base(near[0]), "node")
	n.startConfigured(m.static() + `topologyManagerPolicy: single-numa-node
memoryManagerPolicy: Static
evictionHard: {memory.available: 100Mi}
systemReserved: {memory: 28Mi}
reservedMemory: [{numaNode: 0, limits: {memory: 128Mi}}]
`)
	whole := bounded(actor("main", places+"stay"), "", "1 32Mi")
	n.put(n.act("pinned", v1.RestartPolicyAlways, nil, whole))
	n.put(n.act("rest", v1.RestartPolicyAlways, nil, actor("main", places+"stay")))
	now := n.awaitReady("pinned-n1", "rest-n1")
	n.awaitStory("pinned", "main run 1 on CPUs "+m.own+" with memory of "+node)
	n.awaitCPUs(now, m.pinned())

	n.put(n.act("second", v1.RestartPolicyAlways, nil, bounded(actor("main", "stay"), "", "1 32Mi")))
	second := n.await("the second pod to be refused", func(p pods) bool { return p.inPhase("second-n1", v1.PodFailed) }).named("second-n1")
	want := "Pod was rejected: Node didn't have enough resource: cpu, requested: 1000, used: 1000, capacity: 1000"
	if s := second.Status; s.Reason != "OutOfcpu" || s.Message != want {
		t.Errorf("the second pod is refused for %s: %s; want %s", s.Reason, s.Message, want)
	}
	n.awaitCPUs(now, m.pinned())
}

// A file of CPUs that does not fit ends the agent, which says what to do.
func TestCPUsUnusableState(t *testing.T) {
	t.Parallel()
	m := splitCPUs(t)
	n := newNode(t)
	if err := os.MkdirAll(n.place.Root, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct{ content, why string }{
		{`{"policyName":"static","defaultCpuSet":"0-1","checksum":7}`, "could not restore state from checkpoint: checkpoint is corrupted"},
		{`{"policyName":"none","defaultCpuSet":"","checksum":0}`, `could not restore state from checkpoint: configured policy "static" differs from state checkpoint policy "none"`},
	} {
		if err := os.WriteFile(n.cpuState(), []byte(tc.content), 0o600); err != nil {
			t.Fatal(err)
		}
		a := n.launchConfigured(m.static())
		if code := a.wait(); code == 0 {
			t.Errorf("with %s the agent ends with code 0", tc.content)
		}
		said := strings.ReplaceAll(a.said(), `\"`, `"`)
		wantText(t, "the log", said, tc.why+fmt.Sprintf(`, please drain this node and delete the CPU manager checkpoint file %q before restarting Kubelet`, n.cpuState()))
		if b, err := os.ReadFile(n.cpuState()); err != nil || string(b) != tc.content {
			t.Errorf("the file was changed to %s, %v", b, err)
		}
	}
}
