//go:build e2e && vm

package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"berth/internal/host/cgroups"
)

// needsUnified fails the test where resources are not managed with cgroup v2.
func needsUnified(t *testing.T) {
	t.Helper()
	if version, _ := cgroups.Detect(); version != 2 {
		t.Fatalf("this host manages resources with cgroup version %d: run this test by make e2e-vm", version)
	}
}

// needsSystemd fails the test where systemd is not the host's init (sd_booted(3)).
func needsSystemd(t *testing.T) {
	t.Helper()
	if _, err := os.Stat("/run/systemd/system"); err != nil {
		t.Fatal("systemd does not run this host: run this test by make e2e-vm")
	}
}

// systemctl runs the command, which must succeed, and returns what it printed.
func systemctl(t *testing.T, args ...string) string {
	t.Helper()
	out, err := exec.Command("systemctl", args...).CombinedOutput()
	if err != nil {
		t.Fatalf("systemctl %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out))
}

// The tree of cgroup v2 with each driver: where pods and containers lie, what is written there,
// what a container sees of it from inside, and that nothing is left.
func TestVMCgroups(t *testing.T) {
	needsUnified(t)
	for _, driver := range []cgroups.Driver{cgroups.Cgroupfs, cgroups.Systemd} {
		t.Run(string(driver), func(t *testing.T) {
			if driver == cgroups.Systemd {
				needsSystemd(t)
			}
			n := newNode(t)
			n.flags = append(n.flags, "--cgroup-driver", string(driver))
			with := func(name string, r v1.ResourceRequirements) {
				p := n.act(name, v1.RestartPolicyAlways, nil, actor("main", "stay\n"))
				p.Spec.Containers[0].Resources = r
				n.put(p)
			}
			with("guaranteed", v1.ResourceRequirements{Limits: amounts("500m", "64Mi")})
			with("burstable", v1.ResourceRequirements{Requests: amounts("250m", "32Mi"), Limits: v1.ResourceList{v1.ResourceMemory: resource.MustParse("96Mi")}})
			with("effort", v1.ResourceRequirements{})
			a := n.start()
			now := n.awaitReady("guaranteed", "burstable", "effort")

			for _, tc := range []struct {
				pod, class  string
				cpu, memory string // of the pod, and of its only container
			}{
				{"guaranteed", "", "50000 100000", "67108864"},
				{"burstable", "burstable", "max 100000", "100663296"},
				{"effort", "besteffort", "max 100000", "max"},
			} {
				pod := now.named(tc.pod)
				dir := podCgroup(n, driver, tc.class, string(pod.UID))
				inner := filepath.Join(dir, containerID(pod, "main"))
				if driver == cgroups.Systemd {
					inner = filepath.Join(dir, "cri-containerd-"+containerID(pod, "main")+".scope")
				}
				for _, at := range []string{dir, inner} {
					wantFile(t, at+"/cpu.max", tc.cpu)
					wantFile(t, at+"/memory.max", tc.memory)
				}
				if procs := readFile(t, inner+"/cgroup.procs"); procs == "" {
					t.Errorf("%s: no process in %s", tc.pod, inner)
				}
				// The container's own cgroup is the root of what it sees.
				for file, want := range map[string]string{"cpu.max": tc.cpu, "memory.max": tc.memory} {
					if said := n.execIn("", tc.pod, "--", "/usr/bin/cat", "/sys/fs/cgroup/"+file); strings.TrimSpace(said.out) != want {
						t.Errorf("%s sees %s as %v, want %q", tc.pod, file, said, want)
					}
				}
			}
			if driver == cgroups.Systemd {
				for _, p := range now {
					unit := filepath.Base(podCgroup(n, driver, map[string]string{"burstable": "burstable", "effort": "besteffort"}[p.Name], string(p.UID)))
					if state := systemctl(t, "show", "-P", "ActiveState", unit); state != "active" {
						t.Errorf("systemd has %s as %s", unit, state)
					}
				}
				// What systemd believes is what is written: a reload of it changes nothing.
				systemctl(t, "daemon-reload")
				guaranteed := now.named("guaranteed")
				wantFile(t, podCgroup(n, driver, "", string(guaranteed.UID))+"/memory.max", "67108864")
				wantFile(t, podCgroup(n, driver, "", string(guaranteed.UID))+"/cpu.max", "50000 100000")
			}

			var all []traces
			for _, p := range now {
				all = append(all, n.traces(p))
				n.remove(p.Name + ".yaml")
			}
			for _, p := range now {
				n.awaitGone(p.UID)
			}
			for _, tr := range all {
				n.wantGone(tr)
			}
			if driver == cgroups.Systemd {
				if units := systemctl(t, "list-units", "--all", "--plain", "--no-legend", "*-pod*.slice", "cri-containerd-*.scope"); strings.Contains(units, strings.TrimSuffix(n.place.slice()[1:], ".slice")) {
					t.Errorf("units are left:\n%s", units)
				}
			}
			a.kill()
		})
	}
}

// podCgroup is the directory of a pod's cgroup in the unified hierarchy; class is "" for a
// guaranteed pod.
func podCgroup(n *node, driver cgroups.Driver, class, uid string) string {
	if driver == cgroups.Cgroupfs {
		return filepath.Join(cgroupMount, n.place.Cgroup, "kubepods", class, "pod"+uid)
	}
	name := strings.TrimSuffix(n.place.slice(), ".slice")
	dir := cgroupMount + name + ".slice"
	for _, word := range []string{"kubepods", class, "pod" + uid} {
		if word != "" {
			name += "-" + strings.ReplaceAll(word, "-", "_")
			dir += name + ".slice"
		}
	}
	return dir
}

func readFile(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Error(err)
	}
	return strings.TrimSpace(string(b))
}

func wantFile(t *testing.T, name, want string) {
	t.Helper()
	if got := readFile(t, name); got != want {
		t.Errorf("%s: %q, want %q", name, got, want)
	}
}

// Who is killed first when memory runs out: best-effort pods, then burstable ones by what they use
// of their share, and last the guaranteed ones, the sandboxes and the runtime.
func TestVMOOMScores(t *testing.T) {
	// The child's own score; without CAP_SYS_RESOURCE it may only be raised
	// (proc_pid_oom_score_adj(5)).
	if err := exec.Command("sh", "-c", "echo -999 > /proc/self/oom_score_adj").Run(); err != nil {
		t.Fatal("this host lets nobody lower oom_score_adj: run this test by make e2e-vm")
	}
	n := newNode(t)
	for name, r := range map[string]v1.ResourceRequirements{
		"guaranteed": {Limits: amounts("100m", "32Mi")},
		"burstable":  {Requests: amounts("100m", "32Mi")},
		"effort":     {},
	} {
		p := n.act(name, v1.RestartPolicyAlways, nil, actor("main", "stay\n"))
		p.Spec.Containers[0].Resources = r
		n.put(p)
	}
	n.start()
	now := n.awaitReady("guaranteed", "burstable", "effort")
	score := func(pid int) int {
		t.Helper()
		value, err := strconv.Atoi(readFile(t, fmt.Sprintf("/proc/%d/oom_score_adj", pid)))
		must(t, err)
		return value
	}
	of := func(name string) int { return score(n.pid(containerID(now.named(name), "main"))) }
	if got := of("guaranteed"); got != -997 {
		t.Errorf("a guaranteed pod has %d, want -997", got)
	}
	if got := of("effort"); got != 1000 {
		t.Errorf("a best-effort pod has %d, want 1000", got)
	}
	if got := of("burstable"); got < 3 || got > 999 {
		t.Errorf("a burstable pod has %d, want 3 to 999", got)
	}
	if got := score(n.containerd()); got != -999 {
		t.Errorf("the runtime has %d, want -999", got)
	}
	for _, id := range n.sandboxes(now.named("effort")) {
		want := -998
		if exists(t, n.place.Run+"/containerd/keepers/"+id) {
			want = -999 // a pod shim goes no sooner than the runtime
		}
		if got := score(n.pid(id)); got != want {
			t.Errorf("a sandbox has %d, want %d", got, want)
		}
	}
}
