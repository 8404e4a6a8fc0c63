//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"berth/internal/host/cgroups"
)

// A second agent is refused on the root directory, the run directory and the cgroup root of a
// living one, which it does no harm.
func TestSecondAgentIsRefused(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.write("web.yaml", manifest("web", "serve"))
	first := n.start()
	web := n.awaitReady("web").named("web")
	runtime := n.containerd()
	ownRoot, ownRun := []string{"--root-dir", n.place.Dir + "/root2"}, []string{"--run-dir", n.place.Dir + "/run2"}
	for _, second := range []struct {
		name, same string
		own        []string
	}{
		{"root directory", n.place.Root, ownRun},
		{"run directory", n.place.Run, ownRoot},
		{"cgroup root", n.place.Cgroup, slices.Concat(ownRoot, ownRun)},
	} {
		a := n.launch(second.own...)
		if code := a.wait(); code == 0 {
			t.Errorf("same %s: exit code 0, want a refusal:\n%s", second.name, a.said())
		}
		wantText(t, "the output of the agent with the same "+second.name, a.said(), "Error: ", second.name+" "+second.same, "another agent")
		if strings.Contains(a.said(), "containerd") {
			t.Errorf("same %s: the agent touched the runtime before it was refused:\n%s", second.name, a.said())
		}
	}
	select {
	case <-first.ended:
		t.Fatalf("the first agent ended:\n%s", first.said())
	default:
	}
	if got := n.containerd(); got != runtime || unix.Kill(runtime, 0) != nil {
		t.Errorf("containerd was process %d, is %d now", runtime, got)
	}
	if got := n.awaitReady("web").named("web"); containerID(got, "main") != containerID(web, "main") {
		t.Error("the pod of the first agent was touched")
	}
	n.write("more.yaml", manifest("more", "serve"))
	n.awaitReady("more")
}

// An agent that is given the cgroup root of somebody else by mistake, as of a kubelet, does the
// pods of that one no harm.
func TestOthersPodsInTheCgroupRoot(t *testing.T) {
	n := newNode(t)
	m := newCgroups(t, n.place.Cgroup, cgroups.Allocatable{})
	t.Cleanup(func() {
		if err := m.RemovePod(context.Background(), "aaaa-1"); err != nil {
			t.Error(err)
		}
	})
	if err := m.EnsurePod(t.Context(), resourcePod("aaaa-1", v1.ResourceRequirements{})); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(cgroupMount, "cpu", m.PodPath("aaaa-1"))
	if version, _ := cgroups.Detect(); version == 2 {
		dir = filepath.Join(cgroupMount, m.PodPath("aaaa-1"))
	}
	process := exec.Command("sleep", "infinity")
	if err := process.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = process.Process.Kill() // an agent that does it harm has killed it
		_ = process.Wait()         // it was killed
	})
	if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(fmt.Sprint(process.Process.Pid)), 0o644); err != nil {
		t.Fatal(err)
	}
	n.write("more.yaml", manifest("more", "serve"))
	a := n.start()
	n.awaitReady("more")
	until(t, "the agent to tell of the pod that is not its own", func() bool { return strings.Contains(a.said(), "left alone; agents on one machine") })
	n.berth("stop", "--all")
	if code := a.wait(); code != 0 {
		t.Errorf("exit code %d, want 0:\n%s", code, a.said())
	}
	if pids, err := os.ReadFile(filepath.Join(dir, "cgroup.procs")); err != nil || strings.TrimSpace(string(pids)) != fmt.Sprint(process.Process.Pid) {
		t.Errorf("in the cgroup of the other one's pod are %q, want its process %d (%v)", pids, process.Process.Pid, err)
	}
}

// A signal, like berth stop, ends the agent and nothing else.
func TestStopLeavesPods(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.write("web.yaml", manifest("web", "serve"))
	for _, stop := range []struct {
		name string
		do   func(a *agent)
	}{
		{"SIGINT", func(a *agent) { a.end(unix.SIGINT) }},
		{"SIGTERM", func(a *agent) { a.end(unix.SIGTERM) }},
		{"berth stop", func(a *agent) {
			wantText(t, "berth stop", n.berth("stop"), "pods and runtime go on")
			if code := a.wait(); code != 0 {
				t.Errorf("exit code %d, want 0:\n%s", code, a.said())
			}
		}},
	} {
		a := n.start()
		web := n.awaitReady("web").named("web")
		url := "http://" + web.Status.PodIP + ":8080/"
		answers(t, url) // a moment after it runs
		stop.do(a)
		if _, err := get(url); err != nil {
			t.Errorf("the pod does not answer after %s: %v", stop.name, err)
		}
		if a := n.command(n.ctx, "get", "pods"); a.code == 0 || !strings.Contains(a.errOut, "no agent is running") {
			t.Errorf("berth get pods after %s: %v", stop.name, a)
		}
	}
}

// berth stop --all ends pods, runtime and agent; the next agent starts them anew.
func TestStopAllEndsEverything(t *testing.T) {
	n := newNode(t)
	port := examples(n)
	a := n.start()
	hello := n.awaitReady("hello", "pair").named("hello")
	tr, runtime := n.traces(hello), n.containerd()
	wantText(t, "berth stop --all", n.berth("stop", "--all"), "have ended")
	if code := a.wait(); code != 0 {
		t.Errorf("exit code %d, want 0:\n%s", code, a.said())
	}
	n.wantGone(tr)
	if err := unix.Kill(runtime, 0); err == nil {
		t.Errorf("containerd, process %d, still runs", runtime)
	}
	n.wantNothingRuns()
	if claims, err := filepath.Glob("/run/berth-subnets/*"); err != nil || slices.ContainsFunc(claims, n.ownsSubnet) {
		t.Errorf("a range of addresses is still claimed: %v (%v)", claims, err)
	}
	if strings.Contains(a.said(), "go on running") {
		t.Errorf("the agent says that pods go on running after all were stopped:\n%s", a.said())
	}

	n.start()
	n.awaitReady("hello", "pair")
	answers(t, "http://127.0.0.1:"+strconv.Itoa(port)+"/")
}

// With --rm an agent that ends takes everything with it, what it took over from another included.
func TestRemoveLeavesNothing(t *testing.T) {
	n := newNode(t)
	examples(n)
	n.write("memory.yaml", memoryPod)
	a := n.start()
	n.awaitReady("hello", "pair", "memory")
	a.kill()
	a = n.start("--rm")
	var all []traces
	var sandboxes []string
	for _, p := range n.awaitReady("hello", "pair", "memory") {
		all = append(all, n.traces(p))
		sandboxes = append(sandboxes, n.sandboxes(p)...)
	}
	bridge := n.bridge()
	if !exists(t, "/sys/class/net/"+bridge) {
		t.Errorf("the pods have no bridge %s", bridge)
	}
	claim, err := filepath.Glob("/run/berth-subnets/*")
	if err != nil || !slices.ContainsFunc(claim, n.ownsSubnet) {
		t.Errorf("none of %v is a link to %s (%v)", claim, n.place.Root, err)
	}
	a.end(unix.SIGTERM)

	for _, tr := range all {
		n.wantGone(tr)
	}
	n.wantNothingRuns()
	if exists(t, "/sys/class/net/"+bridge) {
		t.Errorf("bridge %s is left", bridge)
	}
	if claim, _ = filepath.Glob("/run/berth-subnets/*"); slices.ContainsFunc(claim, n.ownsSubnet) {
		t.Errorf("a range of addresses is still claimed: %v", claim)
	}
	for _, id := range sandboxes {
		if left, err := filepath.Glob("/var/lib/cni/results/*" + id + "*"); err != nil || len(left) > 0 {
			t.Errorf("network attachments are left: %v (%v)", left, err)
		}
	}
	for _, dir := range []string{"bundle", "containerd", "runtime", "pods"} {
		if exists(t, filepath.Join(n.place.Root, dir)) {
			t.Errorf("%s is left in the root directory", dir)
		}
	}
	if tree := n.place.cgroupTree(); len(tree) > 0 {
		t.Errorf("cgroups are left: %v", tree)
	}
	for _, dir := range []string{n.podLogs(), n.logLinks()} {
		if entries, err := os.ReadDir(dir); err == nil && len(entries) > 0 {
			t.Errorf("%s still has %v", dir, entries)
		}
	}
}

// ownsSubnet reports whether a claim of a range of addresses is the node's.
func (n *node) ownsSubnet(claim string) bool {
	target, err := os.Readlink(claim)
	return err == nil && strings.HasPrefix(target, n.place.Root+"/")
}

// wantNothingRuns checks that no process and no mount of the node is left.
func (n *node) wantNothingRuns() {
	n.t.Helper()
	pids, err := n.place.processes()
	if err != nil {
		n.t.Fatal(err)
	}
	for _, pid := range pids {
		cmdline, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cmdline")
		n.t.Errorf("process %d is left: %s", pid, strings.ReplaceAll(string(cmdline), "\x00", " "))
	}
	mounts, err := n.place.mounts()
	if err != nil || len(mounts) > 0 {
		n.t.Errorf("mounts are left: %v (%v)", mounts, err)
	}
}
