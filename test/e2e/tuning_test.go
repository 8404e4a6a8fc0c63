//go:build e2e

package e2e

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"berth/internal/host/tuning"
)

// kernelSettings are those that an agent with a KubeletConfiguration sets.
var kernelSettings = map[string]int{
	"vm.overcommit_memory": 1, "vm.panic_on_oom": 0, "kernel.panic": 10, "kernel.panic_on_oops": 1,
	"kernel.keys.root_maxkeys": 1000000, "kernel.keys.root_maxbytes": 25000000,
}

// keepKernelSettings returns what gives the machine of the tests its kernel settings back.
func keepKernelSettings() (restore func()) {
	host := tuning.Host{Proc: "/proc"}
	before := map[string]int{}
	for name := range kernelSettings {
		if value, err := host.ReadSysctl(name); err == nil {
			before[name] = value
		}
	}
	return func() {
		for name, value := range before {
			if now, err := host.ReadSysctl(name); err != nil || now == value {
				continue
			}
			if err := host.WriteSysctl(name, value); err != nil {
				fmt.Fprintf(os.Stderr, "the kernel setting %s was %d before the tests: %v\n", name, value, err)
			}
		}
	}
}

// An agent with a KubeletConfiguration sets the kernel and its own process as that says, and warns
// of what this machine does not let it set. With protectKernelDefaults it sets nothing, and does
// not start on a kernel that is not as pods need it.
func TestAgentIsTuned(t *testing.T) {
	host := tuning.Host{Proc: "/proc"}
	group := fmt.Sprintf("/berth-e2e-agent-%d", os.Getpid())
	t.Cleanup(func() { removeCgroups(t, group) }) // when the runtime, which is in it, has ended
	n := newNode(t)
	a := n.startConfigured("kubeletCgroups: " + group + "\nmaxOpenFiles: 1000\n")
	warned := a.said()
	for name, want := range kernelSettings {
		if got, err := host.ReadSysctl(name); err != nil || got != want {
			t.Logf("%s is %d, %v", name, got, err)
			wantText(t, "the log", warned, "kernel settings are not what pods need, and cannot be set", strings.ReplaceAll(name, ".", "/"))
		}
	}
	if score := strings.TrimSpace(a.proc("oom_score_adj")); score != "-999" {
		t.Logf("the OOM score is %s", score)
		if strings.Count(warned, "oomScoreAdj is not set") != 1 {
			t.Errorf("it warns of the OOM score other than once:\n%s", warned)
		}
	}
	files := 0
	for line := range strings.Lines(a.proc("limits")) {
		if rest, ok := strings.CutPrefix(line, "Max open files"); ok {
			files, _ = strconv.Atoi(strings.Fields(rest)[0])
		}
	}
	if files < 1000 {
		t.Errorf("it may have %d files open", files)
	}
	dirs := controllersWith(t, group)
	if cgroups := a.proc("cgroup"); strings.Count(cgroups, ":"+group+"\n") != len(dirs) {
		t.Errorf("it is not in its cgroup, of which there are %q:\n%s", dirs, cgroups)
	}
	a.end(unix.SIGTERM)

	if err := host.WriteSysctl("kernel.panic", 11); err != nil {
		t.Logf("kernel.panic cannot be made wrong: %v", err)
	}
	b := n.launchConfigured("protectKernelDefaults: true\n")
	if code := b.wait(); code == 0 {
		t.Error("it starts on a kernel that is not as it must be")
	}
	wantText(t, "the error", b.said(), "protectKernelDefaults: the kernel setting kernel.panic is ", "and must be 10: set it (sysctl -w kernel.panic=10")
}

// proc returns what the kernel says of the agent's process.
func (a *agent) proc(file string) string {
	a.n.t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", a.cmd.Process.Pid, file))
	if err != nil {
		a.n.t.Fatal(err)
	}
	return string(b)
}
