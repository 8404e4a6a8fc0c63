//go:build e2e && podshim

package podshim

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// What short execs write is there, also when many run at a time.
func TestOutputOfShortExecs(t *testing.T) {
	r := newRig(t)
	pod, id := r.runs("short", "sleep")
	var all sync.WaitGroup
	for worker := range 10 {
		all.Go(func() {
			for i := range 30 {
				text := fmt.Sprintf("%d of %d", i, worker)
				want := outcome{text, "and " + text, 3, ""}
				if got := r.execSync(id, 0, "/payload", "say", text, "and "+text, "3"); got != want {
					t.Errorf("%+v, want %+v", got, want)
				}
			}
		})
	}
	all.Wait()
	r.must(r.remove(pod))
	r.wantNothingLeft()
}

// The log is there as soon as the container is, as others make links to it. Without a folder for
// it, there is no container.
func TestTheLogIsThereAtOnce(t *testing.T) {
	r := newRig(t)
	pod, _ := r.runs("silent", "sleep")
	if st, err := os.Stat(r.logFile("silent", "c")); err != nil || !st.Mode().IsRegular() || st.Size() != 0 {
		t.Errorf("the log of a container that says nothing: %v, %v", st, err)
	}
	c := containerConfig(r, "silent", "nowhere", "sleep")
	c.Annotations[logAnnotation] = r.path("logs", "no-such", "c.log")
	if _, err := r.containerIn(pod, podConfig(r, "silent"), c, func() {}); err == nil || !strings.Contains(err.Error(), "open the log "+r.path("logs", "no-such", "c.log")) {
		t.Errorf("error %v, want one that names the log", err)
	}
	r.must(r.remove(pod))
	r.wantNothingLeft()
}

// networkOf is the path of a pod's network namespace, where the verbose status has it.
func (r *rig) networkOf(pod string) (path string, info map[string]any) {
	r.Helper()
	ctx, cancel := r.within()
	defer cancel()
	a, err := r.rt.PodSandboxStatus(ctx, &cri.PodSandboxStatusRequest{PodSandboxId: pod, Verbose: true})
	r.must(err)
	var i struct {
		RuntimeSpec struct {
			Linux struct{ Namespaces []struct{ Type, Path string } }
		}
	}
	r.must(json.Unmarshal([]byte(a.Info["info"]), &i))
	r.must(json.Unmarshal([]byte(a.Info["info"]), &info))
	for _, n := range i.RuntimeSpec.Linux.Namespaces {
		if n.Type == "network" {
			path = n.Path
		}
	}
	return path, info
}

// The verbose status of a pod has what that of a stock one has, also after a restart.
func TestVerboseStatusOfAPod(t *testing.T) {
	r := newRig(t)
	pod, id := r.runs("verbose", "sleep")
	own, err := os.Stat(fmt.Sprintf("/proc/%d/ns/net", r.pidOf(id)))
	r.must(err)
	stock, err := r.podBy("stock", podConfig(r, "verbose-stock"))
	r.must(err)
	for range 2 {
		path, info := r.networkOf(pod)
		if st, err := os.Stat(path); err != nil || !os.SameFile(st, own) {
			t.Errorf("%q is not the network namespace of the pod (%v)", path, err)
		}
		_, want := r.networkOf(stock)
		for _, k := range []string{"processStatus", "netNamespaceClosed", "runtimeType"} {
			if info[k] != want[k] {
				t.Errorf("%s: %v, want %v as with stock shims", k, info[k], want[k])
			}
		}
		if pid, _ := info["pid"].(float64); pid == 0 || info["config"] == nil {
			t.Errorf("no pid or config: %v", info)
		}
		r.kill()
		r.start()
	}
	for _, p := range r.pods() {
		r.must(r.remove(p.Id))
	}
	r.wantNothingLeft()
}

// Pods that a new database does not know are ended, and the log says so.
func TestPodsOfAnotherDatabase(t *testing.T) {
	r := newRig(t)
	pod, _ := r.runs("orphan", "sleep")
	r.kill()
	r.must(os.Remove(r.path("root", "io.containerd.metadata.v1.bolt", "meta.db")))
	r.start()
	eventually(r, "the pod ends", func() error {
		for _, left := range r.leftovers() {
			if strings.HasPrefix(left, "process ") || strings.Contains(left, "/keepers/") {
				return fmt.Errorf("left: %s", left)
			}
		}
		return nil
	})
	b, err := os.ReadFile(r.path("log"))
	r.must(err)
	if !strings.Contains(string(b), "pod "+pod+" is not in containerd's database") {
		t.Error("the log does not tell of the pod")
	}
}

// Without containerd, its program ends all that pod shims have: also what is paused, what is among
// the host's processes, what has lost its pod shim, and what has a file that cannot be read. It
// does nothing while containerd serves.
func TestEndPodshims(t *testing.T) {
	r := newRig(t)
	r.runs("plain", "sleep")
	_, paused := r.runs("paused", "sleep")
	r.must(r.pause(paused))
	host := r.place("podshim", "host pid", "")
	r.must(host.err)
	lost, _ := r.runs("lost", "sleep")
	podshim := r.podshimOf(lost)
	damaged, _ := r.runs("damaged", "sleep")
	if out, err := r.endPodshims(); err == nil || !strings.Contains(out, "another containerd serves the pods") {
		t.Errorf("beside containerd: %v, %s", err, out)
	}
	if s := r.podStatus(lost); s.State != cri.PodSandboxState_SANDBOX_READY {
		t.Errorf("beside containerd: a pod is %s", s.State)
	}
	r.kill()
	r.must(syscall.Kill(podshim, syscall.SIGKILL))
	r.must(os.WriteFile(r.path("state", "keepers", damaged, "pod.json"), []byte("{"), 0o600))
	for range 2 { // the second time there is nothing
		if out, err := r.endPodshims(); err != nil {
			t.Errorf("%v: %s", err, out)
		}
	}
	for _, left := range r.leftovers() {
		if strings.HasPrefix(left, "process ") || strings.Contains(left, "/keepers/") || strings.HasSuffix(left, "cgroup.procs") {
			t.Errorf("left: %s", left)
		}
	}
}

// endPodshims ends all pods where no containerd runs.
func (r *rig) endPodshims() (said string, err error) {
	out, err := exec.Command(filepath.Join(r.programs, "podshim-containerd"), "--state", r.path("state"), "end-podshims").CombinedOutput()
	return string(out), err
}

// A container that containerd cannot find any more, as its folder has been emptied, is ended with
// it; its pod goes on.
func TestContainerThatContainerdCannotFind(t *testing.T) {
	r := newRig(t)
	pod, id := r.runs("emptied", "sleep")
	r.kill()
	files, err := filepath.Glob(r.path("state", "io.containerd.runtime.v2.task", "k8s.io", id, "*"))
	r.must(err)
	for _, file := range files {
		r.must(os.RemoveAll(file))
	}
	r.start()
	r.exits(id)
	eventually(r, "the container is gone", func() error {
		if left := r.members(id); len(left) > 0 {
			return fmt.Errorf("left: %v", left)
		}
		_, err := os.Stat(r.path("state", "keepers", pod, "task-"+id+".json"))
		if !os.IsNotExist(err) {
			return fmt.Errorf("its file is there: %v", err)
		}
		return nil
	})
	if s := r.podStatus(pod); s.State != cri.PodSandboxState_SANDBOX_READY {
		t.Errorf("the pod is %s", s.State)
	}
	if again, err := r.container(pod, containerConfig(r, "emptied", "again", "exit", "0", "3"), func() {}); err != nil {
		t.Error(err)
	} else if s := r.exits(again); s.ExitCode != 3 {
		t.Errorf("the next container of the pod ended with %d, want 3", s.ExitCode)
	}
	r.must(r.remove(pod))
	r.wantNothingLeft()
}
