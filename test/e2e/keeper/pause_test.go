//go:build e2e && keeper

package keeper

import (
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// A container that is paused does nothing, says so, takes no execs, and can be ended in each way,
// also after a restart of containerd.
func TestPause(t *testing.T) {
	for _, driver := range drivers() {
		t.Run(driver, func(t *testing.T) {
			r := newRigBy(t, driver)
			ids := r.pair("paused", func(*cri.ContainerConfig) {}, "write")
			grows := func(h string) bool {
				file := r.logFile("paused-"+h, "c")
				before, err := os.Stat(file)
				r.must(err)
				deadline := time.Now().Add(slower() * 200 * time.Millisecond)
				for time.Now().Before(deadline) {
					if now, err := os.Stat(file); err == nil && now.Size() > before.Size() {
						return true
					}
					time.Sleep(10 * time.Millisecond)
				}
				return false
			}
			for _, h := range handlers {
				if s := r.state(ids[h]); s != "RUNNING" || !grows(h) {
					t.Fatalf("%s: %s, before the pause", h, s)
				}
				r.must(r.pause(ids[h]))
				grows(h) // what was on its way
				if s := r.state(ids[h]); s != "PAUSED" || grows(h) {
					t.Errorf("%s: %s, and writes: %t", h, s, grows(h))
				}
				if o := r.execSync(ids[h], 0, "/payload", "say", "x", "", "0"); !strings.Contains(o.Error, "cannot exec in a paused state") {
					t.Errorf("%s: an exec while it is paused: %q", h, o)
				}
			}
			r.kill()
			r.start()
			id := ids["keeper"]
			if s := r.state(id); s != "PAUSED" || grows("keeper") {
				t.Errorf("after the restart: %s", s)
			}
			r.must(r.resume(id))
			if s := r.state(id); s != "RUNNING" || !grows("keeper") {
				t.Errorf("after it was let go on: %s", s)
			}
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

			pod, id = r.runs("without", "sleep") // its keeper is killed
			r.must(r.pause(id))
			r.must(syscall.Kill(r.keeperOf(pod), syscall.SIGKILL))
			if s := r.exits(id); s.ExitCode != 137 {
				t.Errorf("its keeper was killed while it was paused: %v", s)
			}

			pod, id = r.runs("away", "sleep") // its keeper is killed while containerd is away
			r.must(r.pause(id))
			r.kill()
			r.must(syscall.Kill(r.keeperOf(pod), syscall.SIGKILL))
			r.start()
			if s := r.exits(id); s.ExitCode != 137 {
				t.Errorf("its keeper was killed while it was paused and containerd away: %v", s)
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
