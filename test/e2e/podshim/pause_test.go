//go:build e2e && podshim

package podshim

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// A container that is paused does nothing, says so, takes no execs, and can be ended in each way,
// also after a restart of containerd.
func TestPause(t *testing.T) {
	for _, driver := range drivers() {
		t.Run(driver, func(t *testing.T) {
			r := newRigBy(t, driver)
			ids := r.pair("paused", func(*cri.ContainerConfig) {}, "write")
			writes := func(h string) {
				t.Helper()
				file := r.logFile("paused-"+h, "c")
				before, err := os.Stat(file)
				r.must(err)
				eventually(r, h+": the container writes", func() error {
					if now, err := os.Stat(file); err != nil || now.Size() <= before.Size() {
						return fmt.Errorf("%d bytes, and %v", before.Size(), err)
					}
					return nil
				})
			}
			for _, h := range handlers {
				writes(h)
				if s := r.state(ids[h]); s != "RUNNING" || r.frozen(ids[h]) {
					t.Fatalf("%s: %s, before the pause", h, s)
				}
				r.must(r.pause(ids[h]))
				if s := r.state(ids[h]); s != "PAUSED" || !r.frozen(ids[h]) {
					t.Errorf("%s: %s, frozen: %t", h, s, r.frozen(ids[h]))
				}
				if o := r.execSync(ids[h], 0, "/payload", "say", "x", "", "0"); !strings.Contains(o.Error, "cannot exec in a paused state") {
					t.Errorf("%s: an exec while it is paused: %q", h, o)
				}
			}
			r.kill()
			r.start()
			id := ids["podshim"]
			if s := r.state(id); s != "PAUSED" || !r.frozen(id) {
				t.Errorf("after the restart: %s, frozen: %t", s, r.frozen(id))
			}
			r.must(r.resume(id))
			if s := r.state(id); s != "RUNNING" || r.frozen(id) {
				t.Errorf("after it was let go on: %s, frozen: %t", s, r.frozen(id))
			}
			writes("podshim")
			r.must(r.pause(id))
			if s := r.stopped(id); s.ExitCode != 137 {
				t.Errorf("stopped while it was paused: %v", s)
			}
			if err := r.pause(id); err == nil {
				t.Error("a container that has ended was paused")
			}

			pod, id := r.runs("whole", "sleep") // its pod is stopped
			r.must(r.pause(id))
			r.must(r.remove(pod))

			pod, id = r.runs("without", "sleep") // its pod shim is killed
			r.must(r.pause(id))
			r.must(syscall.Kill(r.podshimOf(pod), syscall.SIGKILL))
			if s := r.exits(id); s.ExitCode != 137 {
				t.Errorf("its pod shim was killed while it was paused: %v", s)
			}

			pod, id = r.runs("away", "sleep") // its pod shim is killed while containerd is away
			r.must(r.pause(id))
			r.kill()
			r.must(syscall.Kill(r.podshimOf(pod), syscall.SIGKILL))
			r.start()
			if s := r.exits(id); s.ExitCode != 137 {
				t.Errorf("its pod shim was killed while it was paused and containerd away: %v", s)
			}
			for _, p := range r.pods() {
				if strings.HasSuffix(p.Metadata.Name, "-stock") {
					continue // its shim is not this test's
				}
				r.must(r.remove(p.Id))
			}
			r.must(r.resume(ids["stock"]))
			r.removeAll()
		})
	}
}

// frozen is what the kernel says of a container.
func (r *rig) frozen(id string) bool {
	r.Helper()
	file, want := cgroups+"/freezer"+r.groupOf(id)+"/freezer.state", "FROZEN\n"
	if unified() {
		file, want = cgroups+r.groupOf(id)+"/cgroup.events", "frozen 1\n"
	}
	b, err := os.ReadFile(file)
	r.must(err)
	return strings.Contains(string(b), want)
}
