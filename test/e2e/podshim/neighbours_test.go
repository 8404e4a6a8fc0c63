//go:build e2e && podshim

package podshim

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// limitMemory limits the memory of a cgroup, without swap.
func (r *rig) limitMemory(group string, bytes string) {
	r.Helper()
	file, swap := cgroups+"/memory"+group+"/memory.limit_in_bytes", cgroups+"/memory"+group+"/memory.memsw.limit_in_bytes"
	if unified() {
		file, swap = cgroups+group+"/memory.max", cgroups+group+"/memory.swap.max"
		if err := os.WriteFile(swap, []byte("0"), 0o644); !errors.Is(err, os.ErrNotExist) { // a kernel without swap
			r.must(err)
		}
	}
	both := !unified() // the one of both with swap may not be less than the other
	if _, err := os.Stat(swap); both && err == nil {
		r.must(os.WriteFile(swap, []byte("-1"), 0o644))
	}
	r.must(os.WriteFile(file, []byte(bytes), 0o644))
	if _, err := os.Stat(swap); both && err == nil {
		r.must(os.WriteFile(swap, []byte(bytes), 0o644))
	}
}

// memoryOf is how much memory a cgroup has.
func (r *rig) memoryOf(group string) int {
	r.Helper()
	file := cgroups + "/memory" + group + "/memory.usage_in_bytes"
	if unified() {
		file = cgroups + group + "/memory.current"
	}
	b, err := os.ReadFile(file)
	r.must(err)
	var n int
	_, err = fmt.Sscan(string(b), &n)
	r.must(err)
	return n
}

// wantAlive: the pod shims of these pods are as before.
func (r *rig) wantAlive(podshims map[string]int) {
	r.Helper()
	for pod, pid := range podshims {
		if now := r.podshimOf(pod); now != pid || unix.Kill(pid, 0) != nil {
			r.Errorf("the pod shim of pod %s was process %d, and is gone", pod, pid)
		}
	}
}

// wantLives: the container runs, was never short of memory, and takes execs.
func (r *rig) wantLives(id string) {
	r.Helper()
	if s := r.status(id); s.State != cri.ContainerState_CONTAINER_RUNNING || s.Reason != "" {
		r.Errorf("%s: %s, %q, want it to run", s.Metadata.Name, s.State, s.Reason)
	}
	if o := r.execSync(id, 0, "/payload", "say", "a", "b", "7"); o != (outcome{"a", "b", 7, ""}) {
		r.Errorf("an exec: %+v", o)
	}
}

// Who takes all memory of its pod, or all that itself may have, is killed, and told to be. Its
// neighbours in the pod and in others live on, as do the pod shims, which are in no pod's cgroup.
func TestOutOfMemoryBesideOthers(t *testing.T) {
	r := newRigBy(t, "cgroupfs")
	group, volume := r.group+"/pods/tight", r.path("volume")
	config := podConfig(r, "tight")
	config.Linux.CgroupParent = group
	pod, err := r.podOf(config)
	r.must(err)
	other, beside := r.runs("beside", "write")
	r.limitMemory(group, "67108864")
	r.must(os.Mkdir(volume, 0o755))
	podshims := map[string]int{pod: r.podshimOf(pod), other: r.podshimOf(other)}
	in := func(name string, limit int64, args ...string) string {
		t.Helper()
		c := containerConfig(r, "tight", name, args...)
		c.Linux.Resources.MemoryLimitInBytes, c.Linux.Resources.MemorySwapLimitInBytes = limit, limit
		c.Mounts = []*cri.Mount{{HostPath: volume, ContainerPath: "/volume"}}
		id, err := r.containerIn(pod, config, c, func() {})
		r.must(err)
		return id
	}
	quiet := in("quiet", 128<<20, "write")
	for name, limit := range map[string]int64{"its-pods": 128 << 20, "its-own": 24 << 20} {
		id := in(name, limit, "eat", "/volume/"+name)
		r.must(os.WriteFile(filepath.Join(volume, name), nil, 0o644))
		if s := r.exits(id); s.ExitCode != 137 || s.Reason != killedForMemory {
			t.Errorf("who takes all of %s: code %d, %q, want 137, %s", name, s.ExitCode, s.Reason, killedForMemory)
		}
		r.wantLives(quiet)
		r.wantLives(beside)
		r.wantAlive(podshims)
	}
	if s := r.stopped(quiet); s.Reason == killedForMemory {
		t.Errorf("a container that was stopped: %q", s.Reason)
	}
	for name, log := range map[string]string{"quiet": r.logFile("tight", "quiet"), "beside": r.logFile("beside", "c")} {
		if n := r.lines(log); n == 0 {
			t.Errorf("the log of %s has no lines", name)
		}
	}
	r.must(r.remove(pod))
	for _, h := range hierarchies() {
		if err := os.Remove(h + group); !errors.Is(err, os.ErrNotExist) {
			r.must(err)
		}
	}
	r.removeAll()
}

// oomScore is what the kernel adds when it looks for a process to kill.
func (r *rig) oomScore(pid int) string {
	r.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/oom_score_adj", pid))
	r.must(err)
	return strings.TrimSpace(string(b))
}

// The memory of the runtime's own cgroup comes to an end, here by files in memory, which no kill
// gives back. A pod shim is no sooner killed than containerd, and much smaller, so it lives on. One
// that is killed all the same takes its own pod with it, and that alone. containerd is started
// again, and has all.
func TestOutOfMemoryOfTheRuntime(t *testing.T) {
	r := newRig(t)
	hit, c1 := r.runs("hit", "write")
	missed, c2 := r.runs("missed", "write")
	for _, pod := range []string{hit, missed} {
		if k, c := r.oomScore(r.podshimOf(pod)), r.oomScore(r.cmd.Process.Pid); k != c {
			t.Errorf("a pod shim has an OOM score of %s, and containerd %s", k, c)
		}
	}
	r.must(os.WriteFile(fmt.Sprintf("/proc/%d/oom_score_adj", r.podshimOf(hit)), []byte("1000"), 0))
	lost, kept := r.podshimOf(hit), r.podshimOf(missed)

	memory := r.path("memory")
	r.must(os.Mkdir(memory, 0o755))
	r.must(unix.Mount("tmpfs", memory, "tmpfs", 0, "size=1g"))
	r.limitMemory(r.group+"/runtime", fmt.Sprint(r.memoryOf(r.group+"/runtime")+16<<20))
	fill := exec.Command("/bin/sh", "-c", r.entering(`exec "$@"`), "sh", "dd", "if=/dev/zero", "of="+filepath.Join(memory, "all"), "bs=64k")
	var said bytes.Buffer
	fill.Stdout, fill.Stderr = &said, &said
	if err := fill.Run(); fill.ProcessState.ExitCode() != -1 { // killed
		t.Fatalf("the memory did not come to an end: %v: %s", err, said.String())
	}
	select {
	case <-r.ended:
	case <-time.After(slower() * time.Minute):
		t.Fatal("containerd was not killed")
	}
	eventually(r, "the pod shim that the kernel was told to kill is gone", func() error {
		if unix.Kill(lost, 0) == nil {
			return fmt.Errorf("process %d is there", lost)
		}
		return nil
	})
	if unix.Kill(kept, 0) != nil {
		t.Error("the other pod shim is gone")
	}
	r.must(unix.Unmount(memory, 0))
	r.limitMemory(r.group+"/runtime", "1073741824")
	r.start()

	if s := r.exits(c1); s.ExitCode != 137 || s.Reason != "Error" { // it was not short of memory itself
		t.Errorf("the container whose pod shim was killed: code %d, %q, want 137, Error", s.ExitCode, s.Reason)
	}
	if s := r.podStatus(hit); s.State != cri.PodSandboxState_SANDBOX_NOTREADY {
		t.Errorf("the pod whose pod shim was killed: %s", s.State)
	}
	if s := r.podStatus(missed); s.State != cri.PodSandboxState_SANDBOX_READY {
		t.Errorf("the other pod: %s", s.State)
	}
	r.wantLives(c2)
	r.wantAlive(map[string]int{missed: kept})
	r.stopped(c2)
	for _, pod := range []string{"hit", "missed"} {
		if n := r.lines(r.logFile(pod, "c")); n == 0 {
			t.Errorf("the log of %s has no lines", pod)
		}
	}
	_, c3 := r.runs("later", "exit", "0", "3")
	if s := r.exits(c3); s.ExitCode != 3 {
		t.Errorf("a pod of after: code %d, want 3", s.ExitCode)
	}
	r.removeAll()
}
