//go:build e2e

package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"testing"

	"berth/internal/host/cgroups"
)

// A daemon that is in no cgroup is moved into that of daemons, in each hierarchy, and stays there;
// one that is in a cgroup in one of them is left alone.
// The test has a root of its own: it moves no process but its own.
func TestDaemonsAreGathered(t *testing.T) {
	root := fmt.Sprintf("/berth-e2e-daemons-%d", os.Getpid())
	t.Cleanup(func() { removeCgroups(t, root) })
	stray := exec.Command("sleep", "1000")
	if err := stray.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = stray.Process.Kill()
		_ = stray.Wait() // it was killed
	})
	if _, err := cgroups.OpenDaemons("/", root); err != nil {
		t.Fatal(err)
	}
	roots := controllersWith(t, root)
	for _, dir := range roots {
		if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), fmt.Append(nil, stray.Process.Pid), 0); err != nil {
			t.Fatal(err)
		}
	}
	other := exec.Command("sleep", "1000")
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = other.Process.Kill()
		_ = other.Wait() // it was killed
	})
	if len(roots) > 1 { // version 1
		if err := os.WriteFile(filepath.Join(roots[0], "cgroup.procs"), fmt.Append(nil, other.Process.Pid), 0); err != nil {
			t.Fatal(err)
		}
	}
	for _, want := range []int{1, 0} { // the second time nothing is left to do
		d, err := cgroups.OpenDaemons(root, "/system")
		if err != nil {
			t.Fatal(err)
		}
		if moved, err := d.Gather(); err != nil || moved != want {
			t.Fatalf("moved %d processes, %v", moved, err)
		}
	}
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", stray.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Count(string(b), path.Join(root, "system")+"\n"); got != len(roots) {
		t.Errorf("it is there in %d of %d hierarchies:\n%s", got, len(roots), b)
	}
}

// controllersWith returns the folders of a cgroup of the machine in the hierarchies of controllers.
func controllersWith(t *testing.T, cgroup string) []string {
	t.Helper()
	var out []string
	for _, pattern := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/*"} {
		found, err := filepath.Glob(pattern + cgroup)
		if err != nil {
			t.Fatal(err)
		}
		for _, dir := range found {
			if h := filepath.Base(strings.TrimSuffix(dir, cgroup)); h != "systemd" && h != "unified" {
				out = append(out, dir)
			}
		}
	}
	if len(out) == 0 {
		t.Fatalf("there is no cgroup %s", cgroup)
	}
	return out
}

// removeCgroups removes a cgroup of a test, and those below it, when nothing is in them any more.
func removeCgroups(t *testing.T, cgroup string) {
	t.Helper()
	until(t, "the test's cgroups to be gone", func() bool {
		left := 0
		for _, pattern := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/*"} {
			dirs, err := filepath.Glob(pattern + cgroup)
			if err != nil {
				t.Fatal(err)
			}
			for _, dir := range dirs {
				below, err := filepath.Glob(dir + "/*/cgroup.procs")
				if err != nil {
					t.Fatal(err)
				}
				for _, b := range below {
					_ = os.Remove(filepath.Dir(b)) // busy while a process ends
				}
				if os.Remove(dir) != nil {
					left++
				}
			}
		}
		return left == 0
	})
}
