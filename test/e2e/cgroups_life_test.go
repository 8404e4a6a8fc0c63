//go:build e2e

package e2e

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth/internal/host/cgroups"
	"berth/internal/pod"
)

// sleeper is a process in a cgroup below the pod's, in all hierarchies that limit something, as a
// runtime makes it. It ignores SIGTERM.
func sleeper(t *testing.T, cgroup string) (dirs []string, ended <-chan error) {
	t.Helper()
	return sleeperIn(t, cgroup, "container")
}

// sleeperIn is sleeper for a cgroup of this name.
func sleeperIn(t *testing.T, cgroup, name string) (dirs []string, ended <-chan error) {
	t.Helper()
	parents := []string{filepath.Join(cgroupMount, cgroup)}
	if version, _ := cgroups.Detect(); version == 1 {
		parents = []string{filepath.Join(cgroupMount, "memory", cgroup), filepath.Join(cgroupMount, "freezer", cgroup)}
	}
	cmd := exec.Command("sh", "-c", "trap '' TERM; exec sleep 300")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	t.Cleanup(func() { _ = cmd.Process.Kill() })                // it has ended, unless the test failed
	until(t, "the program to have its arguments", func() bool { // which the kernel sets last
		line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", cmd.Process.Pid))
		return err == nil && strings.HasPrefix(string(line), "sleep\x00")
	})
	for _, parent := range parents {
		dir := filepath.Join(parent, name)
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(fmt.Sprint(cmd.Process.Pid)), 0o644); err != nil {
			t.Fatal(err)
		}
		dirs = append(dirs, dir)
	}
	return dirs, done
}

// What the runtime does not end is killed by the cgroup: one container, without the others of its
// pod, or all of the pod. The cgroups stay.
func TestKillByCgroup(t *testing.T) {
	m, _ := cgroupTree(t, cgroups.Allocatable{})
	p := resourcePod("ffff-6", v1.ResourceRequirements{Requests: amounts("100m", "16Mi")})
	if err := m.EnsurePod(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	first, second := strings.Repeat("1a", 32), strings.Repeat("2b", 32)
	_, endedFirst := sleeperIn(t, m.PodParent(p), first)
	dirs, endedSecond := sleeperIn(t, m.PodParent(p), second)
	var ids []string
	running := func() string {
		found, err := m.Processes(p.UID)
		if err != nil {
			t.Fatal(err)
		}
		ids = nil
		for _, each := range found {
			ids = append(ids, string(each.Container))
			if !strings.Contains(each.Command, "sleep 300") {
				t.Errorf("process %d is %q", each.PID, each.Command)
			}
		}
		return strings.Join(slices.Sorted(slices.Values(ids)), " ")
	}
	if got := running(); got != first+" "+second {
		t.Errorf("running are %q", got)
	}
	if err := m.KillContainer(t.Context(), p.UID, pod.ContainerID(first)); err != nil {
		t.Error(err)
	}
	if err := <-endedFirst; err == nil || !strings.Contains(err.Error(), "killed") {
		t.Errorf("the first process ended with %v, want a kill", err)
	}
	if got := running(); got != second {
		t.Errorf("running are %q, want only the second", got)
	}
	if err := m.KillPod(t.Context(), p.UID); err != nil {
		t.Error(err)
	}
	if err := <-endedSecond; err == nil || !strings.Contains(err.Error(), "killed") {
		t.Errorf("the second process ended with %v, want a kill", err)
	}
	if got := running(); got != "" || !exists(t, dirs[0]) {
		t.Errorf("running are %q; the cgroup is there: %t", got, exists(t, dirs[0]))
	}
	if err := m.KillPod(t.Context(), "none"); err != nil {
		t.Errorf("a pod without a cgroup: %v", err)
	}
	if err := m.RemovePod(t.Context(), p.UID); err != nil {
		t.Error(err)
	}
}

// A container that was frozen and forgotten does not keep its pod's cgroup.
func TestRemoveFrozenPod(t *testing.T) {
	m, _ := cgroupTree(t, cgroups.Allocatable{})
	p := resourcePod("eeee-5", v1.ResourceRequirements{Requests: amounts("100m", "16Mi")})
	if err := m.EnsurePod(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	dirs, ended := sleeper(t, m.PodParent(p))
	for _, dir := range dirs {
		file, frozen := filepath.Join(dir, "cgroup.freeze"), "1"
		if version, _ := cgroups.Detect(); version == 1 {
			if file, frozen = filepath.Join(dir, "freezer.state"), "FROZEN"; !exists(t, file) {
				continue
			}
		}
		if err := os.WriteFile(file, []byte(frozen), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := m.RemovePod(t.Context(), p.UID); err != nil {
		t.Error(err)
	}
	if err := <-ended; err == nil || !strings.Contains(err.Error(), "killed") {
		t.Errorf("the process ended with %v, want a kill", err)
	}
	for _, dir := range dirs {
		if exists(t, dir) {
			t.Errorf("%s is still there", dir)
		}
	}
}

// manyCommand has this program make many pods' cgroups, and tell of each on its standard output.
const manyCommand = "make-pod-cgroups"

// cgroupPods is how many pods the node has.
const cgroupPods = 300

func manyPod(i int) *v1.Pod {
	uid := types.UID(fmt.Sprintf("many-%d", i))
	switch i % 3 {
	case 0:
		return resourcePod(uid, v1.ResourceRequirements{Limits: amounts("100m", "16Mi")})
	case 1:
		return resourcePod(uid, v1.ResourceRequirements{Requests: amounts("100m", "16Mi")})
	}
	return resourcePod(uid, v1.ResourceRequirements{})
}

// Three hundred pods come and go, and an agent that is killed while they come leaves nothing that
// the next does not find.
func TestManyPodCgroups(t *testing.T) {
	if root := os.Getenv(manyCommand); root != "" {
		makeMany(t, root)
		return
	}
	m, root := cgroupTree(t, cgroups.Allocatable{MilliCPU: 2000})
	cmd := exec.Command(os.Args[0], "-test.run=^TestManyPodCgroups$")
	cmd.Env = append(os.Environ(), manyCommand+"="+root)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	made := 0
	for lines := bufio.NewScanner(out); made < cgroupPods/2 && lines.Scan(); {
		if strings.HasPrefix(lines.Text(), "made ") {
			made++
		}
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // it was killed
	if made < cgroupPods/2 {
		t.Fatalf("the agent made %d pods' cgroups, want %d", made, cgroupPods/2)
	}

	next := newCgroups(t, root, cgroups.Allocatable{MilliCPU: 2000})
	if err := next.EnsureQoS(t.Context()); err != nil {
		t.Fatal(err)
	}
	found, err := next.List()
	if err != nil {
		t.Fatal(err)
	}
	if len(found) < made || len(found) > cgroupPods {
		t.Errorf("the next agent finds %d pods, want %d or a few more", len(found), made)
	}
	for i := range cgroupPods { // those that were made half-way, too
		if err := next.EnsurePod(t.Context(), manyPod(i)); err != nil {
			t.Fatal(err)
		}
	}
	if all, err := next.List(); err != nil || len(all) != cgroupPods {
		t.Fatalf("%d pods have cgroups, %v, want %d", len(all), err, cgroupPods)
	}
	parent := path.Dir(m.PodParent(manyPod(1)))
	if shares, want := readCgroup(t, parent, "cpu", "cpu.shares", "cpu.weight"), byVersion("10240", "391"); shares != want {
		t.Errorf("burstable has %s of the CPU, want %s", shares, want)
	}
	for i := range cgroupPods {
		if err := next.RemovePod(t.Context(), manyPod(i).UID); err != nil {
			t.Fatal(err)
		}
	}
	if left, err := m.List(); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	if shares, want := readCgroup(t, parent, "cpu", "cpu.shares", "cpu.weight"), byVersion("2", "1"); shares != want {
		t.Errorf("burstable without pods has %s of the CPU, want %s", shares, want)
	}
}

func makeMany(t *testing.T, root string) {
	m := newCgroups(t, root, cgroups.Allocatable{MilliCPU: 2000})
	for i := range cgroupPods {
		if err := m.EnsurePod(t.Context(), manyPod(i)); err != nil {
			t.Fatal(err)
		}
		fmt.Println("made", i)
	}
}

// byVersion returns the first value for a host with cgroup version 1, the second for version 2.
func byVersion(one, two string) string {
	if version, _ := cgroups.Detect(); version == 2 {
		return two
	}
	return one
}

// An agent that starts leaves burstable pods their part of the CPU while it has not seen them yet,
// also where it is more than the sum of what their weights tell.
func TestBurstableSharesAcrossAgents(t *testing.T) {
	m, root := cgroupTree(t, cgroups.Allocatable{})
	pods := []*v1.Pod{
		resourcePod("ffff-6", v1.ResourceRequirements{Requests: amounts("1", "16Mi")}), resourcePod("ffff-7", v1.ResourceRequirements{Requests: amounts("500m", "16Mi")}),
	}
	for i := range 40 {
		pods = append(pods, resourcePod(types.UID(fmt.Sprintf("small-%d", i)), v1.ResourceRequirements{Requests: amounts("100m", "16Mi")}))
	}
	for _, p := range pods {
		if err := m.EnsurePod(t.Context(), p); err != nil {
			t.Fatal(err)
		}
	}
	parent := path.Dir(m.PodParent(pods[0]))
	want := func(when, one, two string) {
		t.Helper()
		if got := readCgroup(t, parent, "cpu", "cpu.shares", "cpu.weight"); got != byVersion(one, two) {
			t.Errorf("%s: %s, want %s", when, got, byVersion(one, two))
		}
	}
	want("all pods", "5632", "215")
	next := newCgroups(t, root, cgroups.Allocatable{})
	if err := next.EnsureQoS(t.Context()); err != nil {
		t.Fatal(err)
	}
	want("the next agent", "5632", "215")
	if err := next.EnsurePod(t.Context(), pods[1]); err != nil {
		t.Fatal(err)
	}
	want("one pod seen again", "5632", "215")
	if err := next.RemovePod(t.Context(), pods[0].UID); err != nil {
		t.Fatal(err)
	}
	want("another removed", "4608", "176")
}

// Cgroups of daemons are held to what is kept for them; one that is not there is an error that says
// so.
func TestReservedCgroups(t *testing.T) {
	m, root := cgroupTree(t, cgroups.Allocatable{})
	// Any cgroup that is there will do: that of best-effort pods has no limits of its own.
	there := strings.ReplaceAll(path.Dir(m.PodParent(resourcePod("none", v1.ResourceRequirements{}))), ".slice", "")
	if testDriver() == cgroups.Systemd {
		there = root + "/kubepods/besteffort"
	}
	keep := cgroups.Allocatable{MilliCPU: 500, MemoryBytes: 256 << 20, Pids: 100}
	if err := m.EnforceReserved(cgroups.Reserved{Field: "kubeReservedCgroup", Cgroup: there, Resources: keep}); err != nil {
		t.Fatal(err)
	}
	dir := path.Dir(m.PodParent(resourcePod("none", v1.ResourceRequirements{})))
	got := strings.Join([]string{
		readCgroup(t, dir, "cpu", "cpu.shares", "cpu.weight"), readCgroup(t, dir, "memory", "memory.limit_in_bytes", "memory.max"),
		readCgroup(t, dir, "pids", "pids.max", "pids.max"),
	}, " ")
	if want := byVersion("512", "20") + " 268435456 100"; got != want {
		t.Errorf("values %s, want %s", got, want)
	}
	err := m.EnforceReserved(cgroups.Reserved{Field: "systemReservedCgroup", Cgroup: root + "/nowhere", Resources: keep})
	if err == nil || !strings.Contains(err.Error(), "systemReservedCgroup") || !strings.Contains(err.Error(), "no such cgroup") {
		t.Errorf("a cgroup that is not there: %v", err)
	}
}

// Cgroups of containers are found when nothing runs in them, in whatever hierarchy, and removed;
// those in which something runs stay.
func TestEmptyContainers(t *testing.T) {
	m, _ := cgroupTree(t, cgroups.Allocatable{})
	p := resourcePod("ffff-6", v1.ResourceRequirements{})
	if err := m.EnsurePod(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	busy, _ := sleeper(t, m.PodParent(p))
	empty, occupied := strings.Repeat("e", 64), strings.Repeat("f", 64)
	var gone, stays []string
	for i, dir := range busy {
		gone, stays = append(gone, filepath.Join(filepath.Dir(dir), empty)), append(stays, filepath.Join(filepath.Dir(dir), occupied))
		for _, made := range []string{gone[i], stays[i]} {
			if err := os.Mkdir(made, 0o755); err != nil {
				t.Fatal(err)
			}
		}
	}
	// The process of one is in it in a single hierarchy.
	procs, err := os.ReadFile(filepath.Join(busy[0], "cgroup.procs"))
	if err == nil {
		err = os.WriteFile(filepath.Join(stays[0], "cgroup.procs"), procs, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	found, err := m.EmptyContainers()
	if err != nil || len(found) != 1 || len(found[empty]) != len(gone) {
		t.Fatalf("found %v, %v; want %v of %s", found, err, gone, empty)
	}
	if err := m.RemoveEmpty(found[empty]); err != nil {
		t.Error(err)
	}
	if err := m.RemoveEmpty(stays); err == nil {
		t.Error("a cgroup with a process could be removed")
	}
	for i := range gone {
		if exists(t, gone[i]) {
			t.Errorf("%s is still there", gone[i])
		}
	}
	if !exists(t, stays[0]) {
		t.Errorf("%s is gone, and a process was in it", stays[0])
	}
	if err := m.RemovePod(t.Context(), "ffff-6"); err != nil {
		t.Error(err)
	}
}
