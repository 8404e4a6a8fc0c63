//go:build e2e && podshim

package podshim

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

const killedForMemory = "OOMKilled"

// hungry has a pod by each handler whose container takes memory without end when the file
// /volume/go is there.
func (r *rig) hungry(name string, program string) (ids map[string]string, file string) {
	r.Helper()
	file = r.path("volume-"+name, "go")
	r.must(os.MkdirAll(filepath.Dir(file), 0o755))
	return r.pair(name, func(c *cri.ContainerConfig) {
		c.Linux.Resources.MemoryLimitInBytes, c.Linux.Resources.MemorySwapLimitInBytes = 48<<20, 48<<20
		c.Mounts = []*cri.Mount{{HostPath: filepath.Dir(file), ContainerPath: "/volume"}}
	}, program, "/volume/go"), file
}

// Who is killed for want of memory is told to be, also if containerd was not there then, and also
// if it is another process than the container's first.
func TestOutOfMemory(t *testing.T) {
	for _, driver := range drivers() {
		t.Run(driver, func(t *testing.T) {
			r := newRigBy(t, driver)
			ids, file := r.hungry("plain", "eat")
			r.must(os.WriteFile(file, nil, 0o644))
			for h, id := range ids {
				if s := r.exits(id); s.Reason != killedForMemory || s.ExitCode != 137 {
					t.Errorf("%s: %s with code %d, want %s", h, s.Reason, s.ExitCode, killedForMemory)
				}
			}
			ids, file = r.hungry("child", "feed")
			r.must(os.WriteFile(file, nil, 0o644))
			for h, id := range ids {
				eventually(r, h+": the other process is told of", func() error {
					if s := r.status(id); s.Reason != killedForMemory || s.State != cri.ContainerState_CONTAINER_RUNNING {
						return fmt.Errorf("%s, %q", s.State, s.Reason)
					}
					return nil
				})
				r.stopped(id)
			}

			later, file := r.hungry("later", "eat")
			away, awayFile := r.hungry("away", "eat")
			child, childFile := r.hungry("child-away", "feed")
			quiet, _ := r.hungry("quiet", "eat")
			waiting := r.pid(away["podshim"])
			r.kill()
			for _, f := range []string{awayFile, childFile} {
				r.must(os.WriteFile(f, nil, 0o644))
			}
			eventually(r, "the container ends while containerd is away", func() error {
				if _, err := os.Stat(fmt.Sprintf("/proc/%d", waiting)); err == nil {
					return fmt.Errorf("process %d is there", waiting)
				}
				return nil
			})
			r.start()
			r.must(os.WriteFile(file, nil, 0o644))
			for what, id := range map[string]string{"after the restart": later["podshim"], "while containerd was away": away["podshim"]} {
				eventually(r, what+": it is told", func() error {
					if s := r.status(id); s.Reason != killedForMemory || s.ExitCode != 137 {
						return fmt.Errorf("%s, %q with code %d", s.State, s.Reason, s.ExitCode)
					}
					return nil
				})
			}
			eventually(r, "another process, while containerd was away: it is told", func() error {
				if s := r.status(child["podshim"]); s.Reason != killedForMemory || s.State != cri.ContainerState_CONTAINER_RUNNING {
					return fmt.Errorf("%s, %q", s.State, s.Reason)
				}
				return nil
			})
			if s := r.stopped(quiet["podshim"]); s.Reason == killedForMemory {
				t.Errorf("a container that was stopped: %q", s.Reason)
			}
			r.removeAll()
		})
	}
}

// The reason is known as well if containerd is killed while it deletes the task.
func TestOutOfMemoryIsKept(t *testing.T) {
	r := newRig(t)
	r.kill()
	for _, point := range []string{"task-deleted", "task-folder-gone"} {
		r.env = []string{"PODSHIM_POINT=" + point}
		r.startPoints()
		pod, err := r.pod(point)
		r.must(err)
		c := containerConfig(r, point, "c", "eat")
		c.Linux.Resources.MemoryLimitInBytes, c.Linux.Resources.MemorySwapLimitInBytes = 48<<20, 48<<20
		if _, err := r.container(pod, c, func() {}); err != nil { // it may end sooner than its start is answered
			t.Logf("%s: %v", point, err)
		}
		select {
		case <-r.ended:
		case <-time.After(slower() * time.Minute):
			t.Fatalf("%s: containerd was not killed there", point)
		}
		r.env = nil
		r.start()
		all := r.containers()
		if len(all) != 1 {
			t.Fatalf("%s: %d containers", point, len(all))
		}
		eventually(r, point+": the reason is told", func() error {
			if s := r.status(all[0].Id); s.Reason != killedForMemory || s.ExitCode != 137 {
				return fmt.Errorf("%s, %q with code %d", s.State, s.Reason, s.ExitCode)
			}
			return nil
		})
		r.removeAll()
		r.kill()
	}
}
