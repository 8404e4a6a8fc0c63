package shims

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"
)

// All processes of a cgroup and of its child are killed, with cgroup v1 and v2. It requires root,
// and a hierarchy of the version.
func TestKillOnce(t *testing.T) {
	for name, control := range map[string]string{"version 1": "freezer.state", "version 2": "cgroup.kill"} {
		t.Run(name, func(t *testing.T) {
			dir := groupWith(t, control)
			var all []*exec.Cmd
			for _, at := range []string{dir, dir, filepath.Join(dir, "below")} {
				cmd := exec.Command("sleep", "1000")
				if err := cmd.Start(); err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { cmd.Process.Kill() })
				if err := os.WriteFile(filepath.Join(at, "cgroup.procs"), []byte(strconv.Itoa(cmd.Process.Pid)), 0); err != nil {
					t.Fatal(err)
				}
				all = append(all, cmd)
			}
			// cgroup.kill may have killed them before.
			if some, err := killOnce(dir); !some && control != "cgroup.kill" || err != nil {
				t.Errorf("%t, %v, want some", some, err)
			}
			for _, cmd := range all {
				cmd.Wait()
				if s, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || s.Signal() != syscall.SIGKILL {
					t.Errorf("a process ended as %s", cmd.ProcessState)
				}
			}
			for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
				some, err := killOnce(dir)
				if !some && err == nil {
					break
				}
				if err != nil || time.Now().After(deadline) {
					t.Fatalf("%t, %v, want none", some, err)
				}
			}
		})
	}
}

// groupWith creates a cgroup with a child in a hierarchy that has the file.
func groupWith(t *testing.T, control string) string {
	t.Helper()
	for _, root := range []string{cgroupRoot + "/freezer", cgroupRoot + "/unified", cgroupRoot} {
		dir, err := os.MkdirTemp(root, "podshim-test-")
		if err != nil {
			continue
		}
		below := filepath.Join(dir, "below")
		t.Cleanup(func() {
			os.Remove(below)
			if err := os.Remove(dir); err != nil {
				t.Error(err)
			}
		})
		if _, err := os.Stat(filepath.Join(dir, control)); err == nil && os.Mkdir(below, 0o755) == nil {
			return dir
		}
	}
	t.Skipf("there is no hierarchy with %s where a cgroup can be made", control)
	return ""
}
