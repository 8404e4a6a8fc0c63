//go:build e2e && podshim

package podshim

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Where nothing in memory may be executed, pods by pod shims are refused with what is to be done,
// and others run. The sysctl is one of a PID namespace, so containerd has one of its own here.
// Before Linux 6.3 there is none.
func TestNothingInMemoryMayBeExecuted(t *testing.T) {
	const sysctl = "/proc/sys/vm/memfd_noexec"
	if _, err := os.Stat(sysctl); err != nil {
		t.Logf("nothing keeps the pod shim from being copied into memory: %v", err)
		return
	}
	r := newRigBy(t, "cgroupfs") // systemd does not know the processes of that namespace
	r.kill()
	programs := r.programs
	r.programs = r.path("noexec")
	r.must(os.Mkdir(r.programs, 0o700))
	r.must(os.Symlink(filepath.Join(programs, "stock"), filepath.Join(r.programs, "stock")))
	script := "#!/bin/sh\nexec unshare --pid --fork --kill-child --mount-proc sh -c 'echo 2 >" + sysctl + " && exec \"$0\" \"$@\"' " + filepath.Join(programs, "podshim-containerd") + " \"$@\"\n"
	r.must(os.WriteFile(filepath.Join(r.programs, "podshim-containerd"), []byte(script), 0o700))
	r.start()
	if _, err := r.podBy("podshim", podConfig(r, "refused")); err == nil || !strings.Contains(err.Error(), "vm.memfd_noexec must not be 2") {
		t.Errorf("a pod by a pod shim: %v, want an error that names the sysctl", err)
	}
	config := podConfig(r, "stock")
	pod, err := r.podBy("stock", config)
	r.must(err)
	id, err := r.containerIn(pod, config, containerConfig(r, "stock", "c", "exit", "0", "3"), func() {})
	r.must(err)
	if s := r.exits(id); s.ExitCode != 3 {
		t.Errorf("a container by a stock shim ended with %d, want 3", s.ExitCode)
	}
	ctx, cancel := r.within()
	defer cancel()
	list, err := r.rt.ListPodSandbox(ctx, &cri.ListPodSandboxRequest{})
	r.must(err)
	if len(list.Items) != 1 {
		t.Errorf("pods %v, want the stock one", list.Items)
	}
	r.must(r.remove(pod))
	r.kill()
	r.programs = programs
	r.start()
	r.wantNothingLeft()
}
